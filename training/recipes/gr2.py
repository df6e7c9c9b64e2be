"""GR2: a language model that reasons, then re-ranks. Run it with `rerank recipe gr2`.

The paper's recipe (2602.07774) is mid-training on semantic IDs, fine-tuning on a teacher's traces, and DAPO with a
conditional reward; the technical report (2606.31984) adds on-policy distillation in the place of fine-tuning and a
second round of reinforcement without reasoning. Departs from both: prompts may show what is known of every candidate as
remarks (`rerank_env.agents.evidence`), rivals are fitted on the same evidence, and the table has intervals, seeds,
copies and validity. May import `rerank_env`; what needs the extra `language` is imported when a stage is run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from rerank_env import durable
from rerank_env.agents.policy import Policy
from rerank_env.data import amazon, read_options
from rerank_env.rewards.arguments import one_of
from rerank_env.training.recipes import Recipe
from rerank_env.training.recipes.card import EVALUATE, TABLE, About, card, ending
from rerank_env.training.recipes.changes import changed
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.planning import PACKAGE, Told, command_of, planned
from rerank_env.training.recipes.settings import REWARDS, SEEDED, Gr2Settings
from rerank_env.training.recipes.sizes import foretold, size_of
from rerank_env.training.recipes.stages import Plan, Work
from rerank_env.training.recipes.tables import METRICS, Kept, table

RIVAL = "LambdaMART"
NAMES: Mapping[str, str] = {
    "sft-targeted": "SFT on targeted traces",
    "sft-rejection": "SFT on rejection traces",
    "teacher": "teacher of OPD",
    "opd": "OPD",
    "dapo-naive": "RL with the naive reward",
    "dapo": "RL with the conditional reward",
    "dapo-gain": "RL with the gain over the incoming order",
    "internalise": "RL without reasoning",
}
"""What the rows of the table are called that are language models, by the stage that makes them."""

TOGETHER = ("midtrain", *NAMES)
"""The stages that several processes can run at once."""

VERSIONS: Mapping[str, int] = {}
"""By the name of a stage the number of what its code does, 1 where it is not here. A change by which the same settings
and inputs make something else raises it, so that what was made before is told from it.
"""

USAGE = """```python
import numpy as np
from rerank_env.agents.language import LanguagePolicy
from rerank_env.data import load

policy = LanguagePolicy.from_pretrained("{folder}")
requests = load("{data}", split="test"{options})
rankings = policy.rank(requests, rng=np.random.default_rng(0))  # a row of -1 is an answer that is no ranking
```"""

NOMINAL = {"amazon-beauty": (19_600, 2_160), "amazon-sports": (20_000, 2_020), "amazon-toys": (15_000, 2_010)}
"""About how many requests there are to learn from and to be tested on, before they are counted."""


def recipe(*, data: str, size: str, options: str | None, changes: Sequence[str]) -> Recipe:
    """The recipe for one of the Amazon data sets, whose purchases evidence is counted from.

    Raises as `rerank_env.training.recipes.recipe_of` says.
    """
    one_of("data set with a log of purchases", data, amazon.NAMES)
    read_options(options)
    chosen = size_of(size)
    settings = changed(chosen.settings, changes)
    plan = plan_of(settings, data=data, options=options)
    about = {
        "recipe": "gr2",
        "data": data,
        "size": size,
        "options": options,
        "settings": asdict(settings),
        "command": command_of("gr2", data=data, size=size, options=options, changes=changes),
    }

    def minutes(folder: RunFolder, forgotten: Collection[str]) -> Mapping[str, float]:
        counted = {} if "data" in forgotten else folder.metrics("data")
        tested = counted.get("test requests", NOMINAL[data][1])
        return foretold(chosen, settings, learned_from=learned_from(settings, counted, data), tested=tested)

    told = _about(data, size, options, settings)
    return Recipe(
        plan,
        about,
        card=lambda folder: card(folder, told, stages=list(plan.stages)),
        minutes=minutes,
        machine=chosen.speed.machine,
        check=partial(_check, settings),
        ending=lambda folder: ending(folder, told),
    )


def learned_from(settings: Gr2Settings, counted: Mapping[str, Any], data: str) -> int:
    """How many lists are learned from, as `inputs.prepared` chooses them: one a user in validation, some watched."""
    told = settings.lists
    train = counted.get("train requests", NOMINAL[data][0])
    unwatched = max(counted.get("validation requests", NOMINAL[data][0]) - told.watch, 0)
    found: int = {"train": train, "validation": unwatched, "both": train + unwatched}[told.learn_from]
    return min(told.most or found, found)


def plan_of(settings: Gr2Settings, *, data: str, options: str | None) -> Plan:
    """The stages that the rows of the table need, in order."""
    told = stages_told(settings, data=data, options=options)
    why = "none of the policies in rows needs it; name one that does in --set rows=..."
    return planned(told, ends=[EVALUATE], why=why, versions=VERSIONS, together=TOGETHER)


def stages_told(settings: Gr2Settings, *, data: str, options: str | None) -> list[Told]:
    """All stages there are, in order."""
    common = {"data": data, "options": options, **settings.group("seed", "lists")}
    words = {**common, **settings.group("wording", "model", "answering")}
    inputs, start, begins = ("data", "ids", "remarks"), settings.dapo.start, settings.opd.start
    traces = {**words, **settings.group("traces")}
    memory = settings.changed_in("memory")
    learned = {**traces, **settings.group("sft"), **memory}
    finer = settings.changed_in("surrogate", "stopping", "memory")
    dapo = {name: value for name, value in asdict(settings.dapo).items() if name not in ("start", *REWARDS)}
    reinforced = {**words, **settings.group("seeds"), "dapo": dapo, **finer}
    rewards = {name: {"reward": getattr(settings.dapo, name)} for name in REWARDS}
    lines: list[tuple[str, str, str, Sequence[str], Mapping[str, Any]]] = [
        ("data", "inputs.make_lists", "", (), {"data": data, "options": options}),
        ("ids", "inputs.make_ids", "", ["data"], {**common, **settings.group("ids")}),
        ("remarks", "inputs.make_remarks", "", ["data"], {**common, **settings.group("remarks")}),
        ("rivals", "inputs.fit_rivals", "", ["data"], {**common, **settings.group("seeds")}),
        ("base", "student.make_base", "", inputs, words),
        ("midtrain", "student.mid_train", "", [*inputs, "base"], {**words, **settings.group("midtrain"), **memory}),
        *(
            (f"traces-{mode}", "learning.collect_traces", mode, inputs, {**traces, **settings.changed_in("server")})
            for mode in ("targeted", "rejection")
        ),
        ("sft-targeted", "learning.fine_tune", "targeted", [*inputs, "midtrain", "traces-targeted"], learned),
        ("sft-rejection", "learning.fine_tune", "rejection", [*inputs, "midtrain", "traces-rejection"], learned),
        (
            "teacher", "learning.train_teacher", "", [*inputs, "base", "traces-rejection"],
            {**learned, **settings.group("teacher", "midtrain")},
        ),
        (
            "opd", "learning.distil", "", [*inputs, begins, settings.opd.teacher],
            {**words, **settings.group("opd"), **rewards["reward"], **finer},
        ),
        *(
            (
                name, "reinforcing.reinforce", "", [*inputs, start],
                {**reinforced, "start": start, **rewards[reward]},
            )
            for name, reward in (("dapo-naive", "naive"), ("dapo", "reward"), ("dapo-gain", "gain"))
        ),
        (
            "internalise", "reinforcing.internalise", "", [*inputs, "dapo"],
            {**reinforced, **rewards["reward"], **settings.group("internalise")},
        ),
        (
            EVALUATE, "gr2.evaluated", "", ["data", "rivals", *settings.rows],
            {**words, **settings.group("seeds", "evaluation", "rows")},
        ),
    ]  # fmt: skip
    return [Told(*line) for line in lines]


def evaluated(work: Work) -> Mapping[str, Any]:
    """Stage: every policy on the test split, once, with its answers kept, and the table of all of them."""
    from rerank_env.agents.lambdamart import LambdaMart
    from rerank_env.agents.linear import LinearPlackettLuce
    from rerank_env.training.recipes.inputs import LAMBDAMART, LINEAR, prepared
    from rerank_env.training.recipes.policies import POLICY, decoding_of, load_policy, seed_folder

    found, seeds = prepared(work.inputs["data"], work.settings), work.settings["seeds"]
    rivals = work.inputs["rivals"]
    policies: dict[str, list[Policy]] = {
        RIVAL: [LambdaMart.from_pretrained(rivals / f"{LAMBDAMART}-seed-{seed}") for seed in seeds],
        "supervised listwise": [LinearPlackettLuce.from_pretrained(rivals / LINEAR)],
    }
    decoding = decoding_of(work.settings)
    for name in work.settings["rows"]:
        folders = [seed_folder(work.inputs[name], seed) for seed in seeds] if name in SEEDED else [work.inputs[name]]
        answers = work.folder / "answers"
        policies[NAMES[name]] = [
            Kept(partial(load_policy, folder / POLICY, work.settings, decoding=decoding), answers / f"{name}-{number}")
            for number, folder in enumerate(folders)
        ]
    made = table(
        found.test, policies, rival=RIVAL, asked=found.asked["test"], seed=work.settings["seed"],
        resamples=work.settings["evaluation"]["resamples"],
    )  # fmt: skip
    told = made.to_dict()
    durable.replace(work.folder / TABLE, (json.dumps(told, indent=1) + "\n").encode())
    headline = told["rows"][NAMES["dapo"]]
    return {metric: headline["metrics"][metric]["value"] for metric in METRICS} | {
        "valid": headline["validity"], "copies": headline["identity_rate"],
    }  # fmt: skip


def _check(settings: Gr2Settings, todo: Collection[str]) -> None:
    import_module(f"{PACKAGE}.checking").check(settings, todo)


def _about(data: str, size: str, options: str | None, settings: Gr2Settings) -> About:
    policy = f"dapo/seed-{settings.seeds[0]}/policy"
    given = "".join(f", {name}={value!r}" for name, value in read_options(options).items())
    return About(
        title=f"GR2 re-ranker, {data}, size {size}",
        summary="A language model that reads the candidates of a re-ranking request and what is known of each, gives "
        "reasons, and answers with all of them in a better order.\n\nTrained by rerank-env with the recipe of GR2: "
        "mid-training on semantic IDs, fine-tuning on a teacher's traces, and reinforcement with a conditional reward. "
        "The policies of all stages are beside this card.",
        papers={"2602.07774": "GR2: Generative Reasoning Re-ranker", "2606.31984": "GR2 Technical Report"},
        headline=NAMES["dapo"],
        usage=USAGE.format(folder=policy, data=data, options=given),
        limits="Trained and tested on one public data set, with one relevant item a request, and only on requests "
        "whose item the first stage listed. What is known of candidates is counted from the purchases of this data "
        "set, so other catalogues need their own. Reasons are a text that the model writes before its answer; nothing "
        "shows that the answer follows from them.",
        base=settings.model.base,
        policy=policy,
    )
