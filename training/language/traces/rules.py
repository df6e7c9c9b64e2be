"""A teacher that needs no model: it weighs what is known of the candidates, and says which of it speaks for its pick.

May import numpy, scipy and the layers below. Suffixes: `_B` requests, `_K` candidates, `_F` kinds of evidence. Source:
ours. The score of a candidate is the sum over the kinds of evidence of the weight of its level, plus temperature times
Gumbel noise, so that its rankings follow the law of Plackett and Luce (`rerank_env.agents.plackett_luce`) and asking
again may give another pick. What the reasons cite is in the request: for each kind the best two candidates of which
anything is known, equal ones as they are listed, then the pick and the kinds in which nobody has more.

    near [3] [7], text [4] [3], next [3], stage [1] [3]. [3] leads in near, next.

A pick that leads in nothing is said to: the teacher does not invent. A target is put first whatever the evidence, and
then the reasons are found after the fact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import answer_text, has_reasoning
from rerank_env.rewards.rankings import Verdict, from_scores
from rerank_env.training.language.traces import drawing
from rerank_env.training.language.traces.drawing import Purpose
from rerank_env.training.language.traces.proposals import Proposal

CITED = 2
"""How many candidates the reasons name for each kind of evidence."""

HASH_CHARS = 16


class Remarks(Protocol):
    """What is known of candidates in levels, as `rerank_env.agents.evidence.remarks.EvidenceRemarks` knows it."""

    @property
    def names(self) -> Sequence[str]:
        """A short word for each kind of evidence, [F]."""
        ...

    def levels_of(self, requests: Requests) -> IntArray:
        """How much of each kind there is, int64 [B, K, F]: 0 nothing known, then 1 (little) and up; 0 where padded."""
        ...


class RuleTeacher:
    """Ranks by weighted evidence with noise and reasons from it; see the module.

    `weights`: [F], the worth of one level of each kind, all 0.3 where None; or [F, levels + 1], the worth of each level
    of each kind, as `fit` finds it; a level beyond the last counts as the last. `temperature` 0 is no noise, ties then
    broken by the seeds. Raises `InputError` for weights that do not fit the kinds or are not finite, and for a
    temperature below 0.
    """

    name = "rule"

    def __init__(self, remarks: Remarks, *, weights: npt.ArrayLike | None = None, temperature: float = 1.0) -> None:
        self.remarks = remarks
        kinds = len(remarks.names)
        given = np.full(kinds, 0.3) if weights is None else np.asarray(weights, dtype=np.float64)
        if given.ndim not in (1, 2) or len(given) != kinds or not given.size or not np.isfinite(given).all():
            raise InputError(
                f"weights have shape {given.shape} for {kinds} kinds of evidence; give one finite number a kind, or "
                "one a level of each"
            )
        self.weights = given
        self.temperature = finite("temperature", temperature)
        if self.temperature < 0:
            raise InputError(f"temperature is {self.temperature}; give 0 or more")

    @classmethod
    def fit(
        cls, remarks: Remarks, requests: Requests, *, penalty: float = 1e-2, temperature: float = 1.0
    ) -> RuleTeacher:
        """The worth of every level that makes the relevant candidates of `requests` likeliest at the top.

        Conditional logit (McFadden 1974) on the levels as classes, by L-BFGS, with `penalty` on half the squared length
        of the weights, so that a level nobody has is worth 0. Several relevant candidates share a list by their gains;
        lists whose gains are all equal say nothing. Raises `InputError` where no list says anything.
        """
        gains_BK = requests.relevance_BK / np.maximum(requests.relevance_BK.sum(axis=1, keepdims=True), 1e-300)
        real_BK = np.arange(gains_BK.shape[1]) < requests.sizes_B[:, None]
        low_B = np.where(real_BK, gains_BK, np.inf).min(axis=1)
        telling_B = gains_BK.max(axis=1, initial=0.0) > low_B
        if not telling_B.any():
            raise InputError("no request has a candidate that is better than another; give requests with relevance")
        levels_BKF = np.asarray(remarks.levels_of(requests))[telling_B]
        gains_BK, real_BK = gains_BK[telling_B], real_BK[telling_B]
        kinds, width = levels_BKF.shape[2], int(levels_BKF.max(initial=0)) + 1
        cells_BKF = levels_BKF + np.arange(kinds) * width

        def loss(weights: FloatArray) -> tuple[float, FloatArray]:
            scores_BK = np.where(real_BK, weights[cells_BKF].sum(axis=2), -np.inf)
            log_BK = np.where(real_BK, log_softmax(scores_BK, axis=1), 0.0)
            slope_BK = np.where(real_BK, np.exp(log_BK), 0.0) - gains_BK
            slope = np.bincount(cells_BKF.ravel(), np.repeat(slope_BK.ravel(), kinds), minlength=len(weights))
            value = -(gains_BK * log_BK).sum() / len(gains_BK) + penalty / 2 * (weights @ weights)
            return float(value), slope / len(gains_BK) + penalty * weights

        found = minimize(loss, np.zeros(kinds * width), jac=True, method="L-BFGS-B")
        return cls(remarks, weights=found.x.reshape(kinds, width), temperature=temperature)

    @property
    def fingerprint(self) -> str:
        """What tells this teacher's traces from those of other weights or kinds of evidence."""
        shape = f"{self.weights.shape}|{self.temperature!r}|{'|'.join(self.remarks.names)}"
        return hashlib.sha256(shape.encode() + np.ascontiguousarray(self.weights).tobytes()).hexdigest()[:HASH_CHARS]

    def scores(self, levels_BKF: IntArray) -> FloatArray:
        """What levels are worth without noise, float64 [B, K]."""
        if self.weights.ndim == 1:
            return np.asarray(levels_BKF @ self.weights, dtype=np.float64)
        capped = np.minimum(levels_BKF, self.weights.shape[1] - 1)
        return np.asarray(self.weights[np.arange(self.weights.shape[0]), capped].sum(axis=2), dtype=np.float64)

    def propose(self, asked: Asked, *, targets_B: IntArray | None, seeds_B: IntArray) -> list[Proposal]:
        """One proposal a request; see `Teacher`.

        Raises `InputError` where answers have no room for reasons.
        """
        if not has_reasoning(asked.text_format):
            raise InputError(
                f"an answer in the format {asked.text_format!r} has no room for reasons; use a tagged format or json"
            )
        sizes_B, width = asked.shown.sizes_B, asked.order_BK.shape[1]
        levels_BKF = np.asarray(self.remarks.levels_of(asked.shown))
        keys_B = drawing.keys(0, Purpose.NOISE, seeds_B)
        scores_BK = self.scores(levels_BKF)
        if self.temperature:
            scores_BK = scores_BK + self.temperature * drawing.gumbel(keys_B, width)
        if targets_B is not None:
            scores_BK[np.arange(len(scores_BK)), targets_B] = np.nextafter(scores_BK.max(axis=1, initial=0.0), np.inf)
        tiebreak_BK = (drawing.uniform(keys_B, width) * 2.0**53).astype(np.uint64)
        rankings_BK, _ = from_scores(scores_BK, sizes_B, ties="random", tiebreak_BK=tiebreak_BK)
        reasonings = self._reasonings(asked, levels_BKF, rankings_BK)
        proposals = []
        for row, (ranking, size) in enumerate(zip(rankings_BK.tolist(), sizes_B.tolist(), strict=True)):
            text = answer_text(
                ranking[:size],
                text_format=asked.text_format,
                ids=None if asked.answer_ids is None else asked.answer_ids[row],
                reasoning=reasonings[row],
            )
            proposals.append(Proposal(text, tuple(ranking[:size]), Verdict.OK, reasonings[row]))
        return proposals

    def _reasonings(self, asked: Asked, levels_BKF: IntArray, rankings_BK: IntArray) -> list[str]:
        """The reasons for each ranking, which name candidates as the answers do."""
        names, real_BK = list(self.remarks.names), np.arange(rankings_BK.shape[1]) < asked.shown.sizes_B[:, None]
        # By level, higher first; equal ones as they are listed: the reasons then follow from the prompt, noise and all.
        shown_BKF = np.where(real_BK[:, :, None], levels_BKF, -1)
        best_BCF = np.argsort(-shown_BKF, axis=1, kind="stable")[:, :CITED]
        known_BCF = np.take_along_axis(shown_BKF, best_BCF, axis=1) > 0
        picks_B = rankings_BK[:, 0]
        top_BF = shown_BKF.max(axis=1)
        leads_BF = (shown_BKF[np.arange(len(picks_B)), picks_B] == top_BF) & (top_BF > 0)
        columns = zip(best_BCF.tolist(), known_BCF.tolist(), picks_B.tolist(), leads_BF.tolist(), strict=True)
        return [
            _reasons(names, best, known, pick, leads, None if asked.answer_ids is None else asked.answer_ids[row])
            for row, (best, known, pick, leads) in enumerate(columns)
        ]


def _reasons(
    names: Sequence[str],
    best_CF: Sequence[Sequence[int]],
    known_CF: Sequence[Sequence[bool]],
    pick: int,
    leads_F: Sequence[bool],
    ids: Sequence[str] | None,
) -> str:
    """The reasons in words: for each kind the candidates of which something is known, then the pick."""
    cited = []
    for kind, name in enumerate(names):
        found = [best[kind] for best, known in zip(best_CF, known_CF, strict=True) if known[kind]]
        if found:
            cited.append(" ".join([name, *(_cite(place, ids) for place in found)]))
    led = [name for name, leads in zip(names, leads_F, strict=True) if leads]
    leads = f"{_cite(pick, ids)} leads in {', '.join(led) if led else 'nothing'}."
    return f"{', '.join(cited)}. {leads}" if cited else f"Nothing is known. {leads}"


def _cite(place: int, ids: Sequence[str] | None) -> str:
    return f"[{place + 1}]" if ids is None else ids[place]
