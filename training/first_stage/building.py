"""Candidate lists for every split of a log: trained, cross-fitted and cached.

Validation and test lists come from a first stage fitted on all of train. Those of train come from one that never saw
the user asked: a model asked about what it was trained on puts the answer on top far too often, and a re-ranker that
learns from such lists learns to trust an order which is worse when it matters. `TargetPlaces` prints the share of
targets on top for all three splits side by side: it must agree. May import torch, numpy and the layers below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank_env.agents.retrieval import PopularityRetriever, Retriever, top
from rerank_env.data import SPLITS
from rerank_env.data.fetch import cache_dir
from rerank_env.data.interactions import Interactions
from rerank_env.data.lists import CandidateLists
from rerank_env.data.next_item import SPLITTERS, Targets
from rerank_env.rewards.arrays import BoolArray, Float32Array, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.first_stage.sasrec import Part, fit
from rerank_env.training.first_stage.settings import MAIN, FirstStageSettings
from rerank_env.training.processes import OnProgress, Run, run_all

CUTS = (1, 5, 10, 20, 50)
"""The places at which recall is printed."""


def models_dir() -> Path:
    """Where trained first stages are kept, each under the hash of what decides it."""
    return cache_dir() / "first-stage"


def parts(log: Interactions, settings: FirstStageSettings) -> dict[str, Part]:
    """What each SASRec of `settings` is trained on, by name."""
    seen_N = SPLITTERS[settings.split](log).seen_N
    return {
        name: Part(log, mask_N, settings.sasrec, settings.seed) for name, mask_N in settings.seen(log, seen_N).items()
    }


def train_parts(
    data: str,
    log: Interactions,
    settings: FirstStageSettings,
    *,
    only: Collection[str] | None = None,
    on_progress: OnProgress,
) -> None:
    """Train what `build` needs, several models at once, each in a process of the public command `rerank data fit`.

    `data` names the data set that `log` is; `only` names the parts to train (None: all). Models that are there are
    kept, interrupted ones go on. Raises `RunFailedError` where one fails.
    """
    if settings.first_stage != "sasrec":
        return
    command = [sys.executable, "-m", "rerank_env", "data", "fit", data, "--seed", str(settings.seed)]
    command += ["--folds", str(settings.folds), "--epochs", str(settings.sasrec.epochs), "--split", settings.split]
    command += [word for key, value in settings.sasrec.shape.items() for word in (f"--{key}", str(value))]
    wanted = {part.key: name for name, part in parts(log, settings).items() if only is None or name in only}
    runs = {key: Run([*command, "--part", name], settings.sasrec.epochs) for key, name in wanted.items()}
    run_all(runs, models_dir(), on_progress=lambda key, done, total: on_progress(wanted[key], done, total))


def build(
    log: Interactions, settings: FirstStageSettings, *, on_progress: OnProgress | None = None
) -> dict[str, CandidateLists]:
    """The lists of every split, the same for the same arguments; trains what is not in the cache, one after the other.

    `on_progress(part, epochs done, epochs)`. Raises `InputError` where the catalogue is too small for the lists, and
    what the split and the training raise.
    """
    targets = SPLITTERS[settings.split](log)
    seen = settings.seen(log, targets.seen_N)
    whom = _retrievers(log, settings, on_progress)
    held_out = held_out_lists(log, settings, on_progress=on_progress)
    folds_T = settings.folds_N(log)[targets.rows["train"]]
    train = [
        _lists(log, targets, targets.rows["train"][folds_T == fold], whom(name, seen[name]), settings)
        for fold, name in ((fold, f"fold-{fold}") for fold in range(settings.folds))
    ]
    rows_T = np.concatenate([lists.rows_T for lists in train])
    order_T = np.argsort(rows_T)
    return {
        SPLITS[0]: CandidateLists(
            rows_T[order_T],
            np.concatenate([lists.items_TK for lists in train])[order_T],
            np.concatenate([lists.scores_TK for lists in train])[order_T],
        )
    } | held_out


def held_out_lists(
    log: Interactions, settings: FirstStageSettings, *, on_progress: OnProgress | None = None
) -> dict[str, CandidateLists]:
    """The lists of validation and test alone, for which one model is enough; otherwise as `build`."""
    targets = SPLITTERS[settings.split](log)
    retriever = _retrievers(log, settings, on_progress)(MAIN, targets.seen_N)
    return {split: _lists(log, targets, targets.rows[split], retriever, settings) for split in SPLITS[1:]}


def _retrievers(
    log: Interactions, settings: FirstStageSettings, on_progress: OnProgress | None
) -> Callable[[str, BoolArray], Retriever]:
    """A function from a part's name and what it may see to its first stage."""
    if settings.first_stage == "popularity":
        return lambda _, seen_N: PopularityRetriever(log.counts_I(seen_N))
    if settings.first_stage == "bm25":
        from rerank_env.agents.retrieval import Bm25Retriever

        reader = Bm25Retriever(log.texts)
        return lambda _name, _seen_N: reader  # it learns from no user

    def trained(name: str, seen_N: BoolArray) -> Retriever:
        part = Part(log, seen_N, settings.sasrec, settings.seed)
        show = None if on_progress is None else lambda done, total: on_progress(name, done, total)
        return fit(part, models_dir() / part.key, on_epoch=show)

    return trained


def _lists(
    log: Interactions, targets: Targets, rows_T: IntArray, retriever: Retriever, settings: FirstStageSettings
) -> CandidateLists:
    rng = np.random.default_rng([settings.seed, len(rows_T)])
    items: list[IntArray] = []
    scores: list[Float32Array] = []
    for chunk_T in np.array_split(rows_T, max(1, len(rows_T) // 8192)):
        longest = int((chunk_T - targets.first_N[chunk_T]).max(initial=1))
        history_TH, _ = log.histories(targets.first_N[chunk_T], chunk_T, longest)
        found_TK, score_TK = top(retriever, history_TH, settings.depth, rng=rng)
        items.append(found_TK)
        scores.append(score_TK)
    return CandidateLists(rows_T, np.concatenate(items), np.concatenate(scores))


@dataclass(frozen=True)
class TargetPlaces:
    """Where the first stage puts the targets of one split: metrics over all of them.

    `recall` and `ndcg` by cut-off; `on_top` is the share at the first place among those in the top `slate_size`.
    """

    targets: int
    recall: Mapping[int, float]
    ndcg: Mapping[int, float]
    on_top: float

    @classmethod
    def of(cls, lists: CandidateLists, log: Interactions, *, slate_size: int = 10) -> TargetPlaces:
        """Measure `lists`; raises `InputError` where there is no target."""
        place_T = lists.target_places(log)
        if not len(place_T):
            raise InputError("the split has no targets; there is nothing to measure")
        gain_T = 1 / np.log2(place_T + 2.0)
        cuts = [cut for cut in CUTS if cut <= lists.items_TK.shape[1]]
        listed = int((place_T < slate_size).sum())
        return cls(
            targets=len(place_T),
            recall={cut: float((place_T < cut).mean()) for cut in cuts},
            ndcg={cut: float((gain_T * (place_T < cut)).mean()) for cut in cuts},
            on_top=float((place_T == 0).sum() / listed) if listed else 0.0,
        )
