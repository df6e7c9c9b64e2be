"""Candidate lists for every split of a log: trained, cross-fitted and cached.

Validation and test lists come from a first stage fitted on all of train. Those of train come from one that never saw
the user asked: a model asked about what it was trained on puts the answer on top far too often, and a re-ranker that
learns from such lists learns to trust an order which is worse when it matters. `TargetPlaces` prints the share of
targets on top for all three splits side by side: it must agree. May import torch, numpy and the layers below.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rerank_env.agents.retrieval import PopularityRetriever, Retriever, top
from rerank_env.data import SPLITS, amazon, lists
from rerank_env.data.fetch import cache_dir
from rerank_env.data.interactions import Interactions
from rerank_env.data.lists import CandidateLists
from rerank_env.data.next_item import SPLITTERS, Targets
from rerank_env.rewards.arrays import BoolArray, Float32Array, IntArray
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.training.first_stage.sasrec import Part, fit
from rerank_env.training.first_stage.settings import MAIN, FirstStageSettings
from rerank_env.training.processes import OnProgress, Run, run_all

AT_A_TIME = 2048
"""Targets whose histories are laid out at once."""

DEVIATIONS = 3.0
"""Standard errors by which shares may differ without a warning."""

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
    told = json.dumps(settings.to_dict())
    command = [sys.executable, "-m", "rerank_env", "data", "fit", data, "--settings", told]
    wanted = {part.key: name for name, part in parts(log, settings).items() if only is None or name in only}
    runs = {key: Run([*command, "--part", name], settings.sasrec.epochs) for key, name in wanted.items()}
    run_all(runs, models_dir(), on_progress=lambda key, done, total: on_progress(wanted[key], done, total))


def build(
    log: Interactions, settings: FirstStageSettings, *, on_progress: OnProgress | None = None
) -> dict[str, CandidateLists]:
    """The lists of every split, the same for the same arguments; trains what is not in the cache, one after the other.

    `on_progress(part, done, total)` counts the epochs of each part and the targets that have their lists, as "lists of
    train" and so on. Raises `InputError` where the catalogue is too small for the lists, and
    what the split and the training raise.
    """
    targets = SPLITTERS[settings.split](log)
    seen = settings.seen(log, targets.seen_N)
    whom = _retrievers(log, settings, on_progress)
    held_out = held_out_lists(log, settings, on_progress=on_progress)
    folds_T = settings.folds_N(log)[targets.rows[SPLITS[0]]]
    train = []
    for fold in range(settings.folds):
        name, rows_T = f"fold-{fold}", targets.rows[SPLITS[0]][folds_T == fold]
        retriever = whom(name, seen[name])
        train.append(lists_by(retriever, log, targets, rows_T, settings, on_progress=_of("train", name, on_progress)))
    rows_T = np.concatenate([part.rows_T for part in train])
    order_T = np.argsort(rows_T)
    return {
        SPLITS[0]: CandidateLists(
            rows_T[order_T],
            np.concatenate([part.items_TK for part in train])[order_T],
            np.concatenate([part.scores_TK for part in train])[order_T],
        )
    } | held_out


def kept(
    data: str, log: Interactions, settings: FirstStageSettings, *, on_progress: OnProgress | None = None
) -> dict[str, CandidateLists]:
    """What `build` makes for the data set `data`, from where `rerank_env.load` reads it; made and put there if need be.

    Lists that other settings or another log made are made anew. Raises what `build` and `lists.save` raise.
    """
    path = amazon.lists_path(data, settings.first_stage, settings.seed, settings.variant)
    with contextlib.suppress(DataError):  # missing, torn, or of another log
        found, made_by = lists.load(path, log)
        if made_by == settings.to_dict():
            return found
    made = build(log, settings, on_progress=on_progress)
    lists.save(path, made, log, settings.to_dict())
    return made


def held_out_lists(
    log: Interactions, settings: FirstStageSettings, *, on_progress: OnProgress | None = None
) -> dict[str, CandidateLists]:
    """The lists of validation and test alone, for which one model is enough; otherwise as `build`."""
    targets = SPLITTERS[settings.split](log)
    retriever = _retrievers(log, settings, on_progress)(MAIN, targets.seen_N)
    return {
        split: lists_by(
            retriever, log, targets, targets.rows[split], settings, on_progress=_of(split, MAIN, on_progress)
        )
        for split in SPLITS[1:]
    }


def _of(split: str, part: str, on_progress: OnProgress | None) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(f"lists of {split} by {part}", done, total)


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


def lists_by(
    retriever: Retriever,
    log: Interactions,
    targets: Targets,
    rows_T: IntArray,
    settings: FirstStageSettings,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> CandidateLists:
    """What `retriever` proposes for the targets at `rows_T`, after all that their users did before, `depth` long.

    `on_progress(done, total)` counts targets. Raises `InputError` where the catalogue is too small for the lists.
    """
    rng = np.random.default_rng([settings.seed, len(rows_T)])
    items: list[IntArray] = [np.empty((0, settings.depth), dtype=np.int64)]
    scores: list[Float32Array] = [np.empty((0, settings.depth), dtype=np.float32)]
    for start in range(0, len(rows_T), AT_A_TIME):
        chunk_T = rows_T[start : start + AT_A_TIME]
        longest = int((chunk_T - targets.first_N[chunk_T]).max())
        history_TH, _ = log.histories(targets.first_N[chunk_T], chunk_T, longest)
        found_TK, score_TK = top(retriever, history_TH, settings.depth, rng=rng)
        items.append(found_TK)
        scores.append(score_TK)
        if on_progress is not None:
            on_progress(start + len(chunk_T), len(rows_T))
    return CandidateLists(rows_T, np.concatenate(items), np.concatenate(scores))


@dataclass(frozen=True)
class TargetPlaces:
    """Where the first stage puts the targets of one split: metrics over all of them.

    `recall` and `ndcg` by cut-off; `on_top` is the share at the first place among the `listed`, which are in the top
    `slate_size`.
    """

    targets: int
    recall: Mapping[int, float]
    ndcg: Mapping[int, float]
    on_top: float
    listed: int

    @property
    def error(self) -> float:
        """The standard error of `on_top`."""
        return float(np.sqrt(self.on_top * (1 - self.on_top) / self.listed)) if self.listed else 0.0

    @classmethod
    def of(cls, measured: CandidateLists, log: Interactions, *, slate_size: int = 10) -> TargetPlaces:
        """Measure lists; raises `InputError` where there is no target."""
        place_T = measured.target_places(log)
        if not len(place_T):
            raise InputError("the split has no targets; there is nothing to measure")
        gain_T = 1 / np.log2(place_T + 2.0)
        cuts = [cut for cut in CUTS if cut <= measured.items_TK.shape[1]]
        on_list = int((place_T < slate_size).sum())
        return cls(
            targets=len(place_T),
            recall={cut: float((place_T < cut).mean()) for cut in cuts},
            ndcg={cut: float((gain_T * (place_T < cut)).mean()) for cut in cuts},
            on_top=float((place_T == 0).sum() / on_list) if on_list else 0.0,
            listed=on_list,
        )


def disagreements(places: Mapping[str, TargetPlaces]) -> list[str]:
    """Where the share of targets on top differs between train and another split beyond `DEVIATIONS` standard errors."""
    found = []
    train = places[SPLITS[0]]
    for split in SPLITS[1:]:
        other = places[split]
        error = float(np.hypot(train.error, other.error))
        if abs(train.on_top - other.on_top) > DEVIATIONS * error:
            found.append(
                f"targets are on top of {train.on_top:.1%} of the lists of train and {other.on_top:.1%} of those of "
                f"{split}, by chance alike within {DEVIATIONS * error:.1%}: a policy that learns from these lists "
                f"learns to trust their order too {'much' if train.on_top > other.on_top else 'little'}"
            )
    return found
