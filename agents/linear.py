"""A linear Plackett-Luce model over evidence features: the simplest re-ranker that is worth the name.

May import numpy, scipy and the layers below. Suffixes: `_B` requests, `_K` candidates, `_F` features. With s the
weighted sum of a candidate's features, the candidate at the top is j with probability

    p_j = exp(s_j) / sum over the list of exp(s)

which is the first place of the law of Plackett (1975) and Luce (1959), and the conditional logit of McFadden (1974).
With one relevant candidate its likelihood is all that the list says. Several share it by their gains, as in the top-one
law of ListNet (Cao et al. 2007) with gains in the place of their exponentials. The penalised likelihood is concave, so
L-BFGS finds its only maximum.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from rerank_env.agents.evidence import saving
from rerank_env.agents.evidence.features import Evidence
from rerank_env.agents.evidence.lists import Lists
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.rewards.rankings import from_scores

KIND = "linear_plackett_luce"
STEPS = 1000
"""More than L-BFGS has needed; where they run out, the fit is refused rather than kept half done."""


@dataclass(frozen=True)
class LinearSettings:
    """`penalties` on half the squared length of the weights, tried in turn, and the `folds` of users that choose.

    Raises `InputError` for a penalty that is not above 0, none at all, or fewer than two folds.
    """

    penalties: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    folds: int = 5

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.penalties, (tuple, list)):
            raise InputError(f"penalties are {self.penalties!r}; give a tuple of numbers")
        object.__setattr__(self, "penalties", tuple(finite("penalty", penalty) for penalty in self.penalties))
        if not self.penalties or min(self.penalties) <= 0:
            raise InputError(f"penalties are {self.penalties}; give at least one number, each above 0")
        object.__setattr__(self, "folds", whole("folds", self.folds, least=2))


@dataclass(frozen=True, eq=False)
class LinearPlackettLuce:
    """A policy: candidates by the weighted sum of their features. `fit` makes it.

    `weights_F` [F] are for features as they come; `penalty` is the one that was chosen. A feature that is the same for
    all candidates of a list cannot move one past another, so its weight is 0 where that is so in every list.
    """

    evidence: Evidence
    weights_F: FloatArray
    penalty: float

    def __post_init__(self) -> None:
        """Check the weights; raises `InputError`."""
        if self.weights_F.shape != (len(self.evidence.names),) or not np.isfinite(self.weights_F).all():
            raise InputError(
                f"weights have shape {self.weights_F.shape} for {len(self.evidence.names)} features; give one finite "
                "weight a feature"
            )

    @classmethod
    def fit(
        cls,
        train: Requests,
        validation: Requests | None = None,
        *,
        evidence: Evidence,
        settings: LinearSettings | None = None,
        seed: int = 0,
    ) -> LinearPlackettLuce:
        """The weights that are likeliest on `train`, under the penalty that is best on `validation` or held-out users.

        Without `validation` each of `folds` parts of the users is held out once, and the weights are fitted on all of
        `train` in the end. Lists whose gains are all equal are left out. Raises `InputError` for lists that nothing
        can be learned from, numbers so large that the fit does not end, or a seed below 0.
        """
        settings = settings or LinearSettings()
        lists = Lists.of(train, evidence)
        rng = np.random.default_rng(whole("seed", seed, least=0))
        if len(settings.penalties) == 1:
            splits = []
        elif validation is not None:
            splits = [(lists, Lists.of(validation, evidence))]
        else:
            splits = list(lists.folds(settings.folds, rng=rng))
        likely = [
            np.mean([held_likelihood(likeliest(fitted, penalty), held) for fitted, held in splits] or [0.0])
            for penalty in settings.penalties
        ]
        penalty = settings.penalties[int(np.argmax(likely))]
        return cls(evidence, likeliest(lists, penalty), penalty)

    @property
    def weights(self) -> dict[str, float]:
        """Name and weight of each feature."""
        return dict(zip(self.evidence.names, self.weights_F.tolist(), strict=True))

    def scores(self, requests: Requests) -> FloatArray:
        """The weighted sum of each candidate's features, float64 [B, K], 0 where padded."""
        return _summed(self.evidence.features(requests), self.weights_F)

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By score, which is the mode of the law, [B, K]; equal scores keep the incoming order."""
        del rng  # nothing is random here
        return from_scores(self.scores(requests), requests.sizes_B, ties="incoming")[0]

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `evidence.npz`. `CheckpointError` where the disk refuses."""
        saving.write(directory, KIND, {"penalty": self.penalty, "weights": self.weights}, self.evidence)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> LinearPlackettLuce:
        """The policy that `save_pretrained` left: it answers as before. Raises `CheckpointError`."""
        config, evidence, _ = saving.read(directory, KIND)
        try:
            weights = [finite(f"the weight of {name}", config["weights"][name]) for name in evidence.names]
            return cls(evidence, np.array(weights), finite("penalty", config["penalty"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the model in {directory} cannot be read ({error}); save it again") from error


def likeliest(lists: Lists, penalty: float) -> FloatArray:
    """The likeliest weights under a penalty, [F], for features as they come.

    They minimise

        - mean over lists of sum_j q_j ln p_j  +  penalty / 2 * sum_f (w_f d_f)^2

    with q the gains divided by their sum and d_f the standard deviation of feature f about the mean of its list.
    Raises `InputError` where L-BFGS does not end.
    """
    real_BK1 = lists.real_BK[:, :, None]
    values_BKF = np.where(real_BK1, lists.features_BKF.astype(np.float64), 0.0)
    values_BKF -= values_BKF.sum(axis=1, keepdims=True) / real_BK1.sum(axis=1, keepdims=True)
    deviation_F = np.sqrt((np.square(values_BKF) * real_BK1).sum(axis=(0, 1)) / lists.real_BK.sum())
    varies_F = deviation_F > 1e-9 * np.maximum(np.abs(lists.features_BKF).max(axis=(0, 1)), 1.0)
    scale_F = np.where(varies_F, 1.0 / np.where(varies_F, deviation_F, 1.0), 0.0)
    values_BKF = np.where(real_BK1, values_BKF * scale_F, 0.0)
    shares_BK = _shares(lists)

    def loss(weights_F: FloatArray) -> tuple[float, FloatArray]:
        logs_BK = _log_top(_summed(values_BKF, weights_F), lists)
        excess_BK = np.where(lists.real_BK, np.exp(logs_BK), 0.0) - shares_BK
        gradient_F = np.tensordot(excess_BK, values_BKF, axes=2) / len(lists) + penalty * weights_F
        value = -np.where(lists.real_BK, shares_BK * logs_BK, 0.0).sum() / len(lists)
        return value + penalty / 2 * float(weights_F @ weights_F), gradient_F

    found = minimize(loss, np.zeros(len(scale_F)), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    if not found.success:
        raise InputError(f"the likelihood was not maximised ({found.message}); give features of moderate size")
    return np.asarray(found.x * scale_F, dtype=np.float64)


def held_likelihood(weights_F: FloatArray, lists: Lists) -> float:
    """The mean over lists of sum_j q_j ln p_j, as in `likeliest`; 0 or less."""
    logs_BK = _log_top(_summed(lists.features_BKF.astype(np.float64), weights_F), lists)
    return float(np.where(lists.real_BK, _shares(lists) * logs_BK, 0.0).sum() / len(lists))


def _summed(features_BKF: np.ndarray, weights_F: FloatArray) -> FloatArray:
    """Features times weights, summed row by row, so that no batch moves the last bit."""
    return np.asarray(np.einsum("bkf,f->bk", features_BKF, weights_F, dtype=np.float64), dtype=np.float64)


def _shares(lists: Lists) -> FloatArray:
    """The gains divided by their sum in the list, [B, K]."""
    gains_BK = np.where(lists.real_BK, lists.relevance_BK, 0.0)
    return np.asarray(gains_BK / gains_BK.sum(axis=1, keepdims=True))


def _log_top(scores_BK: FloatArray, lists: Lists) -> FloatArray:
    """ln p of every candidate, [B, K]; 0 where padded."""
    logs_BK = log_softmax(np.where(lists.real_BK, scores_BK, -np.inf), axis=1)
    return np.where(lists.real_BK, logs_BK, 0.0)
