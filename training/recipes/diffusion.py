"""Diffusion-GR2: the re-ranker of GR2 converted to block diffusion. Run it with `rerank recipe diffusion-gr2`.

The paper's recipe (2607.01170): the weights of the reinforced autoregressive policy, read block by block; conversion
fine-tuning on what that policy answers; on-policy distillation from it; reinforcement by trajectory replay. The stages
up to the teacher are those of `gr2`, and taken over from a run of it where they are the same. Departs from the paper:
fine-tuning learns the teacher's greedy answers, unless `cft.lessons` says otherwise; finished blocks are read causally,
as the model has always read them; the model of the size `tiny` is trained from nothing; the table has intervals, seeds,
what is wrong with answers before any repair, and a share of the gap that is undefined where there is no gap. May import
`rerank_env`; what needs the extra `language` is imported when a stage is run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path

from rerank_env.data import amazon, read_options
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError
from rerank_env.training.recipes import Recipe, gr2
from rerank_env.training.recipes.adopting import Adopted, foreseen, source_of
from rerank_env.training.recipes.card import EVALUATE, About, card, ending
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.diffusion_settings import CFT, IMITATION, OPD, RL, DiffusionSettings
from rerank_env.training.recipes.diffusion_sizes import foretold, size_of
from rerank_env.training.recipes.diffusion_table import names_of, results
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.planning import PACKAGE, Later, Told, command_of, later, planned
from rerank_env.training.recipes.settings import without
from rerank_env.training.recipes.stages import Plan

NAME, CONVERT = "diffusion-gr2", "convert"
Source = Callable[[Path], RunFolder | None]
"""What says, of a run's folder, which other run its stages may be taken from."""

OWN = (CONVERT, IMITATION, CFT, OPD, RL, EVALUATE)
"""The stages that GR2 does not have, or has in another form."""

ELSEWHERE = ("opd", "teacher", "internalise")
"""Groups of GR2's settings whose stages this recipe does not have."""

VERSIONS: Mapping[str, int] = {}
"""As that of `gr2`, of the stages in `OWN`."""

USAGE = """```python
import numpy as np
from rerank_env.agents.block_diffusion import BlockDiffusionPolicy
from rerank_env.data import load

policy = BlockDiffusionPolicy.from_pretrained("{folder}")
requests = load("{data}", split="test"{options})
rankings = policy.rank(requests, rng=np.random.default_rng(0))  # a row of -1 is an answer that is no ranking
```"""


def recipe(*, data: str, size: str, options: str | None, changes: Sequence[str]) -> Recipe:
    """The recipe for one of the Amazon data sets, whose purchases evidence is counted from.

    Raises as `rerank_env.training.recipes.recipe_of` says.
    """
    one_of("data set with a log of purchases", data, amazon.NAMES)
    read_options(options)
    chosen = size_of(size)
    for change in changes:
        if (group := change.partition("=")[0].partition(".")[0].strip()) in ELSEWHERE:
            raise InputError(
                f"the change {change!r} is of a stage that this recipe does not have; name one of its own, such as "
                f"block_opd, or run gr2 with it: {group} decides nothing here"
            )
    settings = changed(chosen.settings, changes)
    source = partial(source_of, settings.gr2, usual=f"gr2-{data}-{size}")
    plan = plan_of(settings, data=data, options=options, source=source)
    about = {
        "recipe": NAME,
        "data": data,
        "size": size,
        "options": options,
        "settings": asdict(settings),
        "command": command_of(NAME, data=data, size=size, options=options, changes=changes),
    }

    def coming(folder: RunFolder, forgotten: Collection[str]) -> dict[str, str]:
        return foreseen(plan, set(plan.stages) - set(OWN), folder, source(folder.directory), forgotten=forgotten)

    def minutes(folder: RunFolder, forgotten: Collection[str]) -> Mapping[str, float]:
        taken = [name for name, why in coming(folder, forgotten).items() if not why]
        there = source(folder.directory) if "data" in taken else None if "data" in forgotten else folder
        counted = there.metrics("data") if there else {}
        tested = counted.get("test requests", gr2.NOMINAL[data][1])
        known = gr2.learned_from(settings, counted, data)
        return {**foretold(chosen, settings, learned_from=known, tested=tested), **dict.fromkeys(taken, 0.0)}

    def notes(folder: RunFolder, forgotten: Collection[str]) -> list[str]:
        return _notes(coming(folder, forgotten), source(folder.directory), usual=f"gr2-{data}-{size}")

    told = _about(data, size, options, settings)
    return Recipe(
        plan,
        about,
        card=lambda folder: card(folder, told, stages=list(plan.stages)),
        minutes=minutes,
        machine=chosen.plain.speed.machine,
        check=partial(_check, settings),
        ending=lambda folder: ending(folder, told),
        notes=notes,
    )


def _notes(coming: Mapping[str, str], source: RunFolder | None, *, usual: str) -> list[str]:
    """What will be taken over and what will not, in a sentence each."""
    if not coming:
        return []
    if source is None:
        return [
            f"no run of gr2 to take stages from, so {', '.join(coming)} will be run here; one beside this run, called "
            f"{usual}, or named with --set gr2=FOLDER, is looked into"
        ]
    taken = ", ".join(name for name, why in coming.items() if not why)
    made = [f"{name}: not to be taken over as far as is known, as {source.directory} {why}"
            for name, why in coming.items() if why]  # fmt: skip
    return ([f"to be taken from {source.directory}: {taken}"] if taken else []) + made


def plan_of(settings: DiffusionSettings, *, data: str, options: str | None, source: Source) -> Plan:
    """The stages, in order; those of GR2 as GR2 has them, taken from what `source` says of a run's folder."""
    before = [line for line in gr2.stages_told(settings, data=data, options=options) if line.name != EVALUATE]

    def run(line: Told) -> Adopted | Later:
        return later(line) if line.name in OWN else Adopted(line.name, later(line), source)

    return planned(
        [*before, *_own(settings, data=data, options=options)],
        ends=[EVALUATE],
        why="no stage of this recipe needs it; it is one of gr2",
        versions={**gr2.VERSIONS, **VERSIONS},
        together=(*gr2.TOGETHER, CFT, OPD, RL),
        run=run,
    )


def _own(settings: DiffusionSettings, *, data: str, options: str | None) -> list[Told]:
    """The stages of block diffusion."""
    common = {"data": data, "options": options, **settings.group("seed", "lists")}
    words = {**common, **settings.group("wording", "model", "answering")}
    taught = {**words, "teacher": settings.seeds[0]}
    inputs, begins = ("data", "ids", "remarks"), settings.block_dapo.start
    memory, finer = settings.changed_in("memory"), settings.changed_in("stopping", "memory")
    reward = {"reward": settings.block_dapo.reward}
    lessons = settings.group("imitation" if settings.cft.lessons == IMITATION else "traces")
    reinforced = without(asdict(settings.block_dapo), "start", "reward")
    return [
        Told(CONVERT, "converting.convert_policy", needs=[*inputs, "dapo"],
             settings={**taught, **settings.group("blocks", "decode")}),
        Told(IMITATION, "converting.imitate", needs=[*inputs, "dapo"],
             settings={**taught, **settings.group("imitation")}),
        Told(CFT, "converting.fine_tune_blocks", needs=[*inputs, CONVERT, settings.cft.lessons],
             settings={**words, **lessons, **settings.group("cft"), **memory}),
        Told(OPD, "converting.distil_blocks", needs=[*inputs, CFT, "dapo"],
             settings={**taught, **settings.group("block_opd"), **reward, **finer}),
        Told(RL, "converting.reinforce_blocks", needs=[*inputs, begins],
             settings={**words, **settings.group("seeds"), "block_dapo": reinforced, "start": begins, **reward,
                       **finer}),
        Told(EVALUATE, "diffusion_table.evaluated", needs=["data", "dapo", CONVERT, CFT, OPD, RL],
             settings={**taught, **settings.group("seeds", "evaluation"), "start": begins}),
    ]  # fmt: skip


def _check(settings: DiffusionSettings, todo: Collection[str]) -> None:
    import_module(f"{PACKAGE}.diffusion_checking").check(settings, todo)


def _about(data: str, size: str, options: str | None, settings: DiffusionSettings) -> About:
    policy = f"{RL}/seed-{settings.seeds[0]}/policy"
    given = "".join(f", {name}={value!r}" for name, value in read_options(options).items())
    adapters = (
        " Adapters were learned; what is under them, the row of the mask token among it, stays as it was converted."
        if settings.model.adapter
        else ""
    )
    return About(
        title=f"Diffusion-GR2 re-ranker, {data}, size {size}",
        summary="A language model that reads the candidates of a re-ranking request and what is known of each, gives "
        "reasons, and answers with all of them in a better order; it writes many tokens at once, block by block.\n\n"
        "Trained by rerank-env with the recipe of Diffusion-GR2: the weights of an autoregressive re-ranker (GR2), "
        "conversion fine-tuning on its answers, on-policy distillation from it, and reinforcement by trajectory "
        "replay. The policies of all stages are beside this card.",
        papers={
            "2607.01170": "Diffusion-GR2",
            "2602.07774": "GR2: Generative Reasoning Re-ranker",
            "2606.31984": "GR2 Technical Report",
        },
        headline=names_of(settings.block_dapo.start)[RL],
        usage=USAGE.format(folder=policy, data=data, options=given),
        limits="Trained and tested on one public data set, with one relevant item a request, and only on requests "
        "whose item the first stage listed. What is known of candidates is counted from the purchases of this data "
        "set, so other catalogues need their own. Places that are committed in one round are drawn independently, so "
        f"answers can name a candidate twice; how many do is in the table, at the rule {settings.decode.rule} that the "
        "policies are saved with, and other rules have other shares. Reasons are a text that the model writes before "
        "its answer; nothing shows that the answer follows from them. Fewer passes of the model are not less time by "
        f"themselves: each computes a block of {settings.blocks.size} tokens.{adapters}",
        base=settings.model.base,
        policy=policy,
        results=results,
    )
