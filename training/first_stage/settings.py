"""What makes candidate lists: which first stage, on what, with which seed. May import the layers below."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rerank_env.data.amazon import STAGES
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import SPLITTERS
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.training.first_stage.sasrec import SasRecSettings

MAIN = "main"
"""The model that sees all of train, and proposes for validation and test."""


@dataclass(frozen=True, kw_only=True)
class FirstStageSettings:
    """`first_stage` is one of `STAGES`, `split` one of `SPLITTERS`; lists are `depth` long.

    The users of train are parted into `folds` at random; the lists of a fold come from a model that never saw its
    users. `sasrec` says how a SASRec is trained; `seed` decides folds, weights and the order of equal scores.
    """

    first_stage: str = "sasrec"
    split: str = "leave_one_out"
    folds: int = 4
    depth: int = 50
    seed: int = 0
    sasrec: SasRecSettings = field(default_factory=SasRecSettings)

    def __post_init__(self) -> None:
        """Check every field; raises `InputError` or `UnknownNameError` naming it."""
        one_of("first stage", self.first_stage, STAGES)
        one_of("split protocol", self.split, SPLITTERS)
        for name, least in (("folds", 2), ("depth", 2), ("seed", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which `of_dict` reads."""
        return asdict(self)

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> FirstStageSettings:
        """What `to_dict` gave. Raises `InputError` for fields that there are not."""
        try:
            return cls(**{**fields, "sasrec": SasRecSettings(**fields.get("sasrec", {}))})
        except TypeError as error:
            raise InputError(f"{fields!r} are no settings of a first stage ({error}); give those of to_dict") from error

    @property
    def variant(self) -> str:
        """Nothing for the defaults of whatever first stage and seed; eight letters of a hash for other settings."""
        if self == FirstStageSettings(first_stage=self.first_stage, seed=self.seed):
            return ""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:8]

    def folds_N(self, log: Interactions) -> IntArray:
        """The fold of each interaction's user, int64 [N]; folds differ in size by one user at most.

        Raises `InputError` where there are fewer users than folds.
        """
        users, number_N = np.unique(log.users_N, return_inverse=True)
        if len(users) < self.folds:
            raise InputError(f"folds is {self.folds} but the log has {len(users)} users; choose a smaller number")
        dealt_U = np.random.default_rng([self.seed, len(users)]).permutation(np.arange(len(users)) % self.folds)
        found_N: IntArray = dealt_U[number_N]
        return found_N

    def seen(self, log: Interactions, seen_N: BoolArray) -> dict[str, BoolArray]:
        """What each model is fitted on: `main` on all of `seen_N`, `fold-J` on what is not of the users of fold J."""
        folds_N = self.folds_N(log)
        return {MAIN: seen_N} | {f"fold-{fold}": seen_N & (folds_N != fold) for fold in range(self.folds)}
