"""LambdaMART over evidence features: gradient-boosted trees, the re-ranker that a practitioner would pick first.

Lambda gradients on NDCG as in Burges (2010), "From RankNet to LambdaRank to LambdaMART", by lightgbm (extra `ltr`,
loaded when a model is made). May import numpy, lightgbm inside functions, and the layers below. Suffixes: `_B`
requests, `_K` candidates, `_F` features, `_R` rows, one a real candidate.

There are two ways to fit. On lists of users that the first stage never learned from (its validation lists), where the
number of trees is chosen by cross-validation over users; or on cross-fitted training lists, with the validation lists
for early stopping.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from rerank_env.agents.evidence import saving
from rerank_env.agents.evidence.features import Evidence
from rerank_env.agents.evidence.lists import Lists
from rerank_env.data.requests import Requests
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError
from rerank_env.rewards.rankings import from_scores

KIND, MODEL = "lambdamart", "model.txt"
METRIC = "ndcg"
MOST = 2**31 - 1
"""The largest whole number that lightgbm reads."""

MOST_LEAVES = 2**17
"""The largest trees that it grows."""


@dataclass(frozen=True)
class LambdaMartSettings:
    """Chosen for a few thousand lists of about ten candidates; many small steps with small, well-filled trees.

    `learning_rate` of a tree, of `leaves` leaves with at least `rows_in_leaf` candidates and the L2 penalty
    `leaf_penalty`; each tree sees a share `features_a_tree` of the features and `lists_a_tree` of the lists.
    `most_trees` is the limit, `patience` how many trees early stopping waits for a better NDCG at `cutoff`, which is
    also how deep a list is looked into. `folds` of users choose the number of trees where there are no validation
    lists. Raises `InputError` for what cannot be.
    """

    learning_rate: float = 0.05
    leaves: int = 7
    rows_in_leaf: int = 100
    leaf_penalty: float = 10.0
    features_a_tree: float = 0.5
    lists_a_tree: float = 0.7
    most_trees: int = 600
    patience: int = 60
    cutoff: int = 10
    folds: int = 5

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, least in {
            "leaves": 2,
            "rows_in_leaf": 1,
            "most_trees": 1,
            "patience": 1,
            "cutoff": 1,
            "folds": 2,
        }.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
            most = MOST_LEAVES if name == "leaves" else MOST
            if getattr(self, name) > most:
                raise InputError(f"{name} is {getattr(self, name)}; give a whole number of at most {most}")
        for name in ("learning_rate", "features_a_tree", "lists_a_tree", "leaf_penalty"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        for name in ("learning_rate", "features_a_tree", "lists_a_tree"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"{name} is {getattr(self, name)}; give a number above 0 and at most 1")
        if self.leaf_penalty < 0.0:
            raise InputError(f"leaf_penalty is {self.leaf_penalty}; give a finite number of at least 0")

    def parameters(self, *, seed: int) -> dict[str, Any]:
        """The same in lightgbm's words: one thread and fixed orders, so that the same lists give the same trees."""
        return {
            "objective": "lambdarank",
            "metric": METRIC,
            "eval_at": [self.cutoff],
            "lambdarank_truncation_level": self.cutoff,
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.rows_in_leaf,
            "lambda_l2": self.leaf_penalty,
            "feature_fraction": self.features_a_tree,
            "bagging_fraction": self.lists_a_tree,
            "bagging_freq": 1,
            "bagging_by_query": True,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        }


@dataclass(frozen=True, eq=False)
class LambdaMart:
    """A policy: candidates by the sum of the trees. `fit` makes it; `text` is the model as lightgbm writes it.

    `importances` is the share of the gain in the objective that each feature's splits brought, largest first.
    """

    evidence: Evidence
    settings: LambdaMartSettings
    text: str
    _booster: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Read the model; raises `MissingExtraError` without lightgbm and `InputError` for other features' trees."""
        lightgbm = _lightgbm()
        object.__setattr__(self, "_booster", lightgbm.Booster(model_str=self.text))
        names = tuple(self._booster.feature_name())
        if names != self.evidence.names:
            unlike = sorted(set(names) ^ set(self.evidence.names))
            raise InputError(
                f"the trees were grown on other features than the evidence has (not in both: {', '.join(unlike)}); "
                "give the evidence that the model was fitted with, or fit it again"
            )

    @classmethod
    def fit(
        cls,
        train: Requests,
        validation: Requests | None = None,
        *,
        evidence: Evidence,
        settings: LambdaMartSettings | None = None,
        seed: int = 0,
    ) -> LambdaMart:
        """Grow the trees on `train`, as many as `validation` asks for or, without it, cross-validation by user.

        With `validation`, growing stops when NDCG there is not better for `patience` trees, and the best number is
        kept. Without, each of `folds` parts of the users is held out once; the number of trees that is best on average
        is grown on all of `train`. Lists whose gains are all equal are left out. The same arguments give the same
        model. Raises `MissingExtraError` without lightgbm, `InputError` for lists that nothing can be learned from and
        for a seed below 0.
        """
        seed = whole("seed", seed, least=0)
        lightgbm, settings = _lightgbm(), settings or LambdaMartSettings()
        lists = Lists.of(train, evidence)
        held = None if validation is None else Lists.of(validation, evidence)
        gains = [part.relevance_BK[part.real_BK] for part in (lists, held) if part is not None]
        growing = _Growing(lightgbm, settings, evidence.names, np.unique(np.concatenate(gains)), seed)
        if held is not None:
            _, booster = growing.grow(lists, held)
            return cls(evidence, settings, booster.model_to_string(num_iteration=booster.best_iteration))
        rng = np.random.default_rng(seed)
        curves = [growing.grow(others, part, stop=False)[0] for others, part in lists.folds(settings.folds, rng=rng)]
        trees = int(np.mean(curves, axis=0).argmax()) + 1
        return cls(evidence, settings, growing.grow(lists, trees=trees)[1].model_to_string())

    @property
    def trees(self) -> int:
        """How many trees there are."""
        return int(self._booster.num_trees())

    @property
    def importances(self) -> dict[str, float]:
        """Name and share of each feature, adding up to 1; all 0 where no tree has a split."""
        gain_F = self._booster.feature_importance(importance_type="gain")
        share_F = gain_F / max(gain_F.sum(), np.finfo(float).tiny)
        return {self.evidence.names[f]: float(share_F[f]) for f in np.argsort(-share_F, kind="stable")}

    def scores(self, requests: Requests) -> FloatArray:
        """What the trees give each candidate, float64 [B, K], 0 where padded."""
        real_BK = requests.slates.mask_BK
        scores_BK = np.zeros(real_BK.shape)
        if real_BK.any():
            rows_RF = self.evidence.features(requests)[real_BK]
            scores_BK[real_BK] = self._booster.predict(rows_RF, num_threads=1)
        return scores_BK

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """By score, [B, K]; candidates that the trees cannot tell apart keep the incoming order."""
        del rng  # nothing is random here
        return from_scores(self.scores(requests), requests.sizes_B, ties="incoming")[0]

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json`, `model.txt` and `evidence.npz`. `CheckpointError` where the disk refuses."""
        saving.write(directory, KIND, asdict(self.settings), self.evidence, {MODEL: self.text.encode()})

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> LambdaMart:
        """The policy that `save_pretrained` left: it answers as before. Raises `CheckpointError`."""
        config, evidence, files = saving.read(directory, KIND)
        try:
            return cls(evidence, LambdaMartSettings(**config), files[MODEL].decode())
        except MissingExtraError:
            raise
        except (KeyError, TypeError, ValueError, _lightgbm().basic.LightGBMError) as error:
            raise CheckpointError(f"the model in {directory} cannot be read ({error}); save it again") from error


@dataclass(frozen=True, eq=False)
class _Growing:
    """What all runs of one fit have in common; `levels` are the gains that occur, ascending."""

    lightgbm: ModuleType
    settings: LambdaMartSettings
    names: tuple[str, ...]
    levels: FloatArray
    seed: int

    def grow(
        self, lists: Lists, held: Lists | None = None, *, stop: bool = True, trees: int | None = None
    ) -> tuple[list[float], Any]:
        """NDCG on `held` after each tree (empty without), and the model."""
        curves: Mapping[str, Any] = {}
        data = self._data(lists)
        sets = [] if held is None else [self._data(held, like=data)]
        callbacks = [self.lightgbm.record_evaluation(curves)] if sets else []
        if sets and stop:
            callbacks.append(self.lightgbm.early_stopping(self.settings.patience, verbose=False))
        booster = self.lightgbm.train(
            {**self.settings.parameters(seed=self.seed), "label_gain": self.levels.tolist()},
            data,
            num_boost_round=trees or self.settings.most_trees,
            valid_sets=sets,
            valid_names=["held"] if sets else None,
            callbacks=callbacks,
        )
        return (curves["held"][f"{METRIC}@{self.settings.cutoff}"] if sets else []), booster

    def _data(self, lists: Lists, *, like: Any = None) -> Any:
        return self.lightgbm.Dataset(
            lists.features_BKF[lists.real_BK],
            label=np.searchsorted(self.levels, lists.relevance_BK[lists.real_BK]),
            group=lists.real_BK.sum(axis=1),
            feature_name=list(self.names),
            reference=like,
        )


def _lightgbm() -> ModuleType:
    try:
        import lightgbm
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'LambdaMart needs {error.name}, which is not installed; run: pip install "rerank-env[ltr]"'
        ) from error
    module: ModuleType = lightgbm
    return module
