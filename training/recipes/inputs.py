"""What every stage of a language recipe starts from: lists, semantic IDs, remarks, rivals, and the words for them.

Each function that takes `Work` is a stage; the others read back what it left. A run remembers the hash of its requests,
and refuses to go on with others. May import `rerank_env.training` and the layers below; what needs torch, lightgbm or a
text encoder is imported inside functions. Suffixes: `_B` requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_env import durable, semantic_ids
from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.lambdamart import LambdaMart
from rerank_env.agents.linear import LinearPlackettLuce
from rerank_env.data import SPLITS, amazon, lists, load, read_options
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import SPLITTERS, Targets
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, template_of
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import CheckpointError, DataError, InputError
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.fingerprints import requests_hash
from rerank_env.training.recipes.settings import without
from rerank_env.training.recipes.stages import Work

if TYPE_CHECKING:
    from rerank_env.agents.semantic_ids import CoderSettings

ABOUT, IDS, CODER, REMARKS = "lists.json", "ids", "coder", "remarks"
LAMBDAMART, LINEAR = "lambdamart", "linear"
WATCH = 17
"""Tells the draw of the watched users from other draws of the same seed."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A log with its `targets`, and requests: `learn` from, `watch` while learning, `test` at the end.

    `validation` has all requests of that split. `asked` counts the targets of each split, listed or not.
    """

    log: Interactions
    targets: Targets
    learn: Requests
    watch: Requests
    test: Requests
    validation: Requests
    asked: Mapping[str, int]


def make_lists(work: Work) -> Mapping[str, Any]:
    """Stage: the candidate lists of every split, trained, cross-fitted and cached where they are not there yet."""
    name, options = _named(work.settings)
    stage, seed = options.get("first_stage", "sasrec"), options.get("seed", 0)
    log = amazon.read(name)
    if not options.get("variant"):
        from rerank_env.training.first_stage import building
        from rerank_env.training.first_stage.settings import FirstStageSettings

        first = FirstStageSettings(first_stage=stage, seed=seed)
        if not amazon.lists_path(name, stage, seed).is_file():
            building.train_parts(name, log, first, on_progress=work.tell)
        building.kept(name, log, first, on_progress=work.tell)
    _, made_by = lists.load(amazon.lists_path(name, stage, seed, options.get("variant", "")), log)
    targets = SPLITTERS[made_by["split"]](log)
    requests = {split: load(name, split=split, **options) for split in SPLITS}
    about = {
        "split": made_by["split"],
        "hashes": {split: requests_hash(requests[split]) for split in SPLITS},
        "asked": {split: len(targets.rows[split]) for split in SPLITS},
    }
    durable.replace(work.folder / ABOUT, (json.dumps(about, indent=1) + "\n").encode())
    return {
        **{f"{split} requests": len(requests[split]) for split in SPLITS},
        **{f"{split} listed": len(requests[split]) / about["asked"][split] for split in SPLITS},
    }


def prepared(folder: Path, settings: Mapping[str, Any]) -> Prepared:
    """The requests of a run, by what `make_lists` left in `folder`; `settings` has `data`, `options`, `lists`, `seed`.

    Raises `DataError` where the data set is no longer the one the run began with, `InputError` where nothing is left to
    learn from or to watch.
    """
    name, options = _named(settings)
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        split, hashes, asked = about["split"], about["hashes"], about["asked"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / ABOUT} cannot be read ({error}); restart that stage") from error
    log = amazon.read(name)
    requests = {part: load(name, split=part, **options) for part in SPLITS}
    for part, found in requests.items():
        if requests_hash(found) != hashes[part]:
            raise DataError(
                f"the {part} requests of {name} are not those the run began with; restart it with new lists"
            )
    chosen = settings["lists"]
    rng = np.random.default_rng([settings["seed"], WATCH])
    validation = requests["validation"]
    users = rng.permutation(np.unique(validation.users_B))
    place = {int(user): order for order, user in enumerate(users)}
    order_B = np.array([place[int(user)] for user in validation.users_B])
    rows_B = np.argsort(order_B, kind="stable")
    last = order_B[rows_B[min(chosen["watch"], len(rows_B)) - 1]] if len(rows_B) else -1
    watched_B = order_B <= last  # all lists of a user, or none
    sources = {
        "train": [requests["train"]],
        "validation": [validation.take(~watched_B)],
        "both": [requests["train"], validation.take(~watched_B)],
    }[chosen["learn_from"]]
    learn = joined(sources)
    if chosen["most"] and chosen["most"] < len(learn):
        learn = learn.take(np.sort(rng.permutation(len(learn))[: chosen["most"]]))
    if not len(learn) or not watched_B.any():
        raise InputError(
            f"there are {len(learn)} requests to learn from and {int(watched_B.sum())} to watch; give another data "
            "set, or fewer lists to watch"
        )
    targets = SPLITTERS[split](log)
    return Prepared(log, targets, learn, validation.take(watched_B), requests["test"], validation, asked)


def joined(parts: list[Requests]) -> Requests:
    """Requests one after the other, over one catalogue and of one width; each is its own origin.

    Raises `InputError` where they do not fit together.
    """
    first = parts[0]
    if len(parts) == 1:
        return replace(first, origins_B=None)
    for part in parts[1:]:
        if part.catalog is not first.catalog or part.candidates_BK.shape[1] != first.candidates_BK.shape[1]:
            raise InputError("the requests are of two catalogues or widths; load them with the same options")
    length = max(part.history_BH.shape[1] for part in parts)
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("users_B", "candidates_BK", "scores_BK", "relevance_BK", "sizes_B")
    }
    for name, fill in (("history_BH", -1), ("feedback_BH", 0)):
        padded = [
            np.pad(getattr(p, name), ((0, 0), (0, length - p.history_BH.shape[1])), constant_values=fill) for p in parts
        ]
        fields[name] = np.concatenate(padded)
    return replace(first, **fields, name=" + ".join(part.name for part in parts), origins_B=None, canonical_BK=None)


def make_ids(work: Work) -> Mapping[str, Any]:
    """Stage: semantic IDs of the whole catalogue, from texts and from the purchases that may be seen."""
    from rerank_env.agents.semantic_ids import build

    found, settings = prepared(work.inputs["data"], work.settings), coder_of(work.settings)
    made = build(
        found.log,
        found.targets.seen_N,
        settings,
        progress=lambda epoch: work.tell("epochs of the RQ-VAE", epoch.epoch, settings.vae.epochs),
    )
    semantic_ids.save(made.ids, work.folder / IDS)
    made.coder.save_pretrained(work.folder / CODER)
    return {"items": len(made.ids), "uniqueness": float(made.ids.uniqueness_L()[-1])}


def coder_of(settings: Mapping[str, Any]) -> CoderSettings:
    """How semantic IDs are made, by the settings `ids` and `seed`. Raises `InputError` for what cannot be."""
    from rerank_env.agents.semantic_ids import CoderSettings, RqVaeConfig

    given = without(settings["ids"], "epochs")
    return CoderSettings(**given, vae=RqVaeConfig(epochs=settings["ids"]["epochs"]), seed=settings["seed"])


def make_remarks(work: Work) -> Mapping[str, Any]:
    """Stage: what is remarked on in prompts, with levels from the requests that are learned from."""
    found = prepared(work.inputs["data"], work.settings)
    evidence = Evidence.fit(found.log, found.targets.seen_N)
    told = work.settings["remarks"]
    remarks = EvidenceRemarks.fit(evidence, found.learn, features=features_of(told), levels=told["levels"])
    remarks.save(work.folder / REMARKS)
    return {"words": list(remarks.names)}


def features_of(remarked: Mapping[str, Any]) -> list[str]:
    """The names of the features that are remarked on."""
    return [name.strip() for name in remarked["features"].split(",") if name.strip()]


def fit_rivals(work: Work) -> Mapping[str, Any]:
    """Stage: LambdaMART, several seeds, and the linear Plackett-Luce model, both on all lists of validation.

    Their users are those of train, and their targets are purchases that the first stage never saw (leave-one-out). On
    this project's data both rivals are better so than fitted on the cross-fitted lists of train, so it is the stronger
    form that a policy has to beat.
    """
    found = prepared(work.inputs["data"], work.settings)
    evidence = Evidence.fit(found.log, found.targets.seen_N)
    for number, seed in enumerate(work.settings["seeds"]):
        work.tell("LambdaMART", number, len(work.settings["seeds"]))
        trees = LambdaMart.fit(found.validation, evidence=evidence, seed=seed)
        trees.save_pretrained(work.folder / f"{LAMBDAMART}-seed-{seed}")
    linear = LinearPlackettLuce.fit(found.validation, evidence=evidence, seed=work.settings["seed"])
    linear.save_pretrained(work.folder / LINEAR)
    return {"trees": trees.trees, "penalty": linear.penalty}


def ids_of(folder: Path, found: Prepared) -> SemanticIds:
    """The IDs that `make_ids` left, checked against the catalogue."""
    return semantic_ids.load(folder / IDS, texts=found.log.texts)


def remarks_of(folder: Path) -> EvidenceRemarks:
    """What `make_remarks` left."""
    return EvidenceRemarks.load(folder / REMARKS)


def writers(
    wording: Mapping[str, Any], ids: SemanticIds, remarks: EvidenceRemarks
) -> tuple[PromptWriter, PromptWriter]:
    """Who asks for answers with reasons, and who asks for direct ones, in the same words.

    A template that has room for it is told what the remarks mean; one that shows IDs is given them.
    """
    template = template_of(wording["template"])
    if "priming" in (*template.system, *template.user):
        template = template.primed(remarks.legend)
    made: Callable[[str], PromptWriter] = lambda text_format: PromptWriter(  # noqa: E731
        text_format,
        prompt=template,
        semantic_ids=ids if "id" in template.shows else None,
        prompt_budget=wording["budget"] or None,
    )
    return made(wording["text_format"]), made(wording["direct_format"])


def _named(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The data set and its options."""
    return one_of("data set with a log of purchases", settings["data"], amazon.NAMES), read_options(settings["options"])
