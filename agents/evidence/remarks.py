"""Evidence as words in a prompt: for each candidate, how much of a few features it has, as a short word and a level.

    remarks = EvidenceRemarks.fit(evidence, train)
    remarks.on(test).remarks_BK[0, 0]  # "stage 9 next 3 near 9 text 7 lift 5"

A language model reads small whole numbers better than decimals, and a tokenizer makes one token of each word. Levels
are shares of what the training requests show: of a feature's values there, sorted, the lowest tenth is level 1 and the
highest level 10, where there are ten. Equal values have the same level, that of the middle of their run, so levels may
be skipped. A feature that is exactly 0 for more than a tenth of the training candidates says so with level 0, "nothing
known", and has its levels from the values that are left. A value that training did not show has the level of the
nearest one that it did, the higher of two that are equally near. Values are compared by their first `BITS` bits, so
that the order in which a mean was summed decides nothing.

What `rerank_env.agents.evidence.features` promises holds here too: the asking user's own purchases are left out, the
order of the candidates does not matter, relevance and item numbers do not enter. May import numpy, `rerank_env.data`,
`rerank_env.rewards` and the modules of this package. Suffixes: `_B` requests, `_K` candidates, `_F` features. Source:
ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rerank_env.agents.evidence import saving
from rerank_env.agents.evidence.features import Evidence
from rerank_env.agents.evidence.levels import Scale, rounded
from rerank_env.agents.evidence.words import DEFAULT, Remark, remarks_of
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, FloatArray, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

KIND = "evidence-remarks"


@dataclass(frozen=True, eq=False)
class EvidenceRemarks:
    """Evidence, what a few of its features are called, and their scales, of at most `levels` levels; `fit` makes it."""

    evidence: Evidence
    remarks: tuple[Remark, ...]
    scales: tuple[Scale, ...]
    levels: int

    @classmethod
    def fit(
        cls, evidence: Evidence, requests: Requests, *, features: Sequence[str | Remark] = DEFAULT, levels: int = 10
    ) -> EvidenceRemarks:
        """The scales of `features`, from the candidates of `requests`, which are for training.

        `features` are names of `WORDS`, or a `Remark` each for any feature of the evidence; the remarks have them in
        that order. Raises `UnknownNameError` for a feature that the evidence does not have, `InputError` for one
        without a word, for a word that comes twice, no features, no requests, fewer than 2 levels, a feature that is
        the same for all candidates and so says nothing, one that is not finite, and another catalogue than the
        evidence's.
        """
        remarks = remarks_of(features, evidence)
        most = whole("levels", levels, least=2)
        if not len(requests):
            raise InputError("there are no requests to find the levels of evidence on; give those for training")
        values_NF = _values(evidence, remarks, requests)[requests.candidates_BK != PAD]
        same_F = (rounded(values_NF) == rounded(values_NF[:1])).all(axis=0)
        if same_F.any():
            flat = ", ".join(remark.feature for remark, same in zip(remarks, same_F, strict=True) if same)
            raise InputError(f"features that are the same for every candidate say nothing; leave out {flat}")
        scales = tuple([Scale.fit(values_NF[:, f], most) for f in range(len(remarks))])
        return cls(evidence, tuple(remarks), scales, most)

    @property
    def names(self) -> tuple[str, ...]:
        """The words, [F]."""
        return tuple(remark.word for remark in self.remarks)

    @property
    def legend(self) -> str:
        """What the remarks mean, in a few lines: how to read a level, and what each word stands for."""
        lines = [
            f"Remarks are words with levels from 1 to {self.levels}: the higher, the more, compared with what is usual",
            *(
                f"- {remark.word}: {remark.meaning}" + "; 0 if none" * scale.zero_is_nothing
                for remark, scale in zip(self.remarks, self.scales, strict=True)
            ),
        ]
        return "\n".join(lines)

    def levels_of(self, requests: Requests) -> IntArray:
        """The level of each feature of each candidate, int64 [B, K, F]; 0 where padded.

        Raises `InputError` for another catalogue than the evidence's, and for features that are not finite.
        """
        values_BKF = _values(self.evidence, self.remarks, requests)
        levels_BKF = np.zeros(values_BKF.shape, dtype=np.int64)
        for f, scale in enumerate(self.scales):
            levels_BKF[:, :, f] = scale.levels(values_BKF[:, :, f])
        levels_BKF[requests.candidates_BK == PAD] = 0
        return levels_BKF

    def on(self, requests: Requests) -> Requests:
        """The same requests with these remarks on their candidates, in place of any that were there.

        Shuffled later, a remark stays with its candidate. Raises as `levels_of` does.
        """
        said = [[f"{word} {level}" for level in range(self.levels + 1)] for word in self.names]
        remarks_BK = np.full(requests.candidates_BK.shape, "", dtype=object)
        levels_BKF = self.levels_of(requests).tolist()
        for row, size in enumerate(requests.sizes_B.tolist()):
            for place, levels in enumerate(levels_BKF[row][:size]):
                remarks_BK[row, place] = " ".join([words[level] for words, level in zip(said, levels, strict=True)])
        return replace(requests, remarks_BK=remarks_BK)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write everything into a folder of its own, made where needed.

        Raises `CheckpointError` for a folder that has the `config.json` of something else, such as a language model's,
        which is left as it was, and where the disk refuses.
        """
        path = Path(directory) / saving.CONFIG
        if path.exists() and _kind_of(path) != KIND:
            raise CheckpointError(f"{path} is not that of remarks; save them in a folder of their own")
        config = {
            "levels": self.levels,
            "remarks": [asdict(remark) for remark in self.remarks],
            "scales": [asdict(scale) for scale in self.scales],
        }
        saving.write(directory, KIND, config, self.evidence)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> EvidenceRemarks:
        """What `save` wrote, which makes the same remarks. Raises `CheckpointError` for a folder with anything else."""
        config, evidence, _ = saving.read(directory, KIND)
        try:
            levels = whole("levels", config["levels"], least=2)
            remarks = tuple(remarks_of([Remark(**record) for record in config["remarks"]], evidence))
            scales = tuple([_scale_of(record, levels) for record in config["scales"]])
            if len(scales) != len(remarks):
                raise ValueError(f"there are {len(remarks)} remarks and {len(scales)} scales")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the remarks in {os.fspath(directory)} cannot be read ({error}); save them again"
            ) from error
        return cls(evidence, remarks, scales, levels)


def _kind_of(path: Path) -> object:
    """What kind of thing a configuration says it is of, None where it says nothing."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record.get("kind") if isinstance(record, dict) else None


def _values(evidence: Evidence, remarks: Sequence[Remark], requests: Requests) -> FloatArray:
    """The features that are remarked on, float64 [B, K, F]."""
    columns = [evidence.names.index(remark.feature) for remark in remarks]
    values_BKF = evidence.features(requests)[:, :, columns].astype(np.float64)
    for row, _, f in np.argwhere(~np.isfinite(values_BKF))[:1]:
        raise InputError(
            f"the feature {remarks[f].feature!r} of request {row} is not finite; scores may be too large for float32"
        )
    return values_BKF


def _scale_of(record: Any, levels: int) -> Scale:
    """The scale that was saved as `record`; `ValueError` and the like for what is none."""
    lowest = whole("the lowest level", record["lowest"], least=1)
    edges = tuple([float(edge) for edge in record["edges"]])
    if lowest + len(edges) > levels or not np.isfinite(edges).all() or list(edges) != sorted(edges):
        raise ValueError(f"the edges {edges} are not those of {levels} levels")
    if type(record["zero_is_nothing"]) is not bool:
        raise ValueError("whether zero is nothing is neither true nor false")
    return Scale(lowest, edges, record["zero_is_nothing"])
