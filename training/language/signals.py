"""The reward of a run, and what else is known of each answer of the batch it was last called with.

May import numpy and `rerank_env`. It pays what `TrlReward` pays for the same ranking of the requests as they came,
however they were shuffled before they were shown: an answer is read in the numbering that was shown, put into the one
that it was shuffled from, and scored on that. What the incoming order is worth, and who copies it, is then about the
earlier stage and not about a shuffle. A rule for answers that are too long comes before; the raw metric, which decides
which groups are dead, is kept. Suffix: `_N` answers of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray
from rerank_env.rewards.context import HINTS, check_met
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.rankings import Verdict, completed, invert, is_identity
from rerank_env.rewards.slates import Slates
from rerank_env.training.adapters.records import REMEDIES, groups_of, ids_of, signals, slates_of
from rerank_env.training.adapters.trl import TrlReward
from rerank_env.training.language.lengths import LengthRule

_RULE = LengthRule("invalid", 512)

_REMEDIES = {**REMEDIES, "step": "pass trainer_state, as TRL does"}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What became of N answers, in the order they were given.

    `reward_N` is what was paid, penalties for length included; `raw_N` the raw metric; `valid_N`, `identity_N` and
    `near_identity_N` as in `records.signals`; `echo_N` whether it is the order that was shown; `finished_N` whether the
    answer ended by itself; `counted_N` whether it is compared with its group and learned from; `tokens_N` its length.
    """

    reward_N: FloatArray
    raw_N: FloatArray
    valid_N: BoolArray
    identity_N: BoolArray
    near_identity_N: BoolArray
    echo_N: BoolArray
    finished_N: BoolArray
    counted_N: BoolArray
    tokens_N: FloatArray


@dataclass(frozen=True)
class WatchedReward(TrlReward):
    """`TrlReward` with a raw `metric`, a rule for `lengths`, and a memory of one call.

    `eos_ids`: an answer whose last token is none of these was cut off. `decode`, such as `LanguagePolicy.texts`, makes
    the texts that are read from the tokens; None reads the completions, in which TRL skips special tokens. An answer
    that is left out of its group, or whose reward abstains, is not counted and is paid its reward all the same. Raises
    `InputError` for a metric that needs more than a ranking.
    """

    _: KW_ONLY
    metric: Reward | str = "ndcg@10"
    lengths: LengthRule = _RULE
    eos_ids: frozenset[int] = frozenset()
    decode: Callable[[Sequence[Sequence[int]]], list[str]] | None = None
    _last: list[Outcomes] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        needs = self.quality.needs
        check_met(needs, frozenset(), f"as a raw metric, {self.quality}", dict.fromkeys(HINTS, "name a plain metric"))

    @cached_property
    def quality(self) -> Reward:
        """What the raw metric measures."""
        return parse_reward(self.metric)

    @property
    def last(self) -> Outcomes:
        """What is known of the answers of the last call."""
        return self._last[-1]

    def __call__(
        self,
        *,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """One number a completion, as `TrlReward` would say; `completion_ids` are needed here.

        Raises as `TrlReward` does, and `InputError` without `completion_ids`.
        """
        count = len(completions)
        if completion_ids is None:
            raise InputError("completion_ids are missing, by which is told how answers ended; pass them, as TRL does")
        if len(completion_ids) != count:
            raise InputError(f"completion_ids has {len(completion_ids)} entries for {count} completions; give one each")
        slates = slates_of(columns, count, text_format=self.text_format, needs=self.scorer.needs)
        known = () if trainer_state is None else ("step",)
        self.scorer.check_needs("groups", "tokens", *slates.provides, *known, where="TRL", remedies=_REMEDIES)
        tokens_N = np.array([len(ids) for ids in completion_ids], dtype=np.int64)
        finished_N = np.array([bool(ids) and ids[-1] in self.eos_ids for ids in completion_ids], dtype=np.bool_)
        read = self.scorer.read(
            completions if self.decode is None else self.decode(completion_ids),
            slates,
            ids=ids_of(columns, count),
            step=None if trainer_state is None else trainer_state.global_step,
            groups_B=groups_of(columns, count) if "groups" in self.scorer.needs else None,
            tokens_B=tokens_N,
        )
        refused_N = self.lengths.invalid(finished_N)
        shown_BK = np.where(refused_N[:, None], PAD, read.rankings_BK)
        read = replace(
            read,
            rankings_BK=unshuffled_rankings(shown_BK, slates),
            verdicts_B=np.where(refused_N, int(Verdict.OVERLONG), read.verdicts_B).astype(read.verdicts_B.dtype),
        )
        slates = unshuffled(slates)
        scored = self.scorer.score(read, slates)
        told = signals(scored, slates)
        counted_N = self.lengths.counted(finished_N)
        if self.on_failure == "abstain":
            counted_N &= ~scored.failed_B
        paid_N = scored.total_B + self.lengths.penalties(tokens_N, finished_N)
        self._last[:] = [
            Outcomes(
                reward_N=paid_N,
                raw_N=self.quality(scored.rankings_BK, slates, verdicts_B=scored.verdicts_B),
                valid_N=scored.valid_B,
                identity_N=told["identity"] > 0,
                near_identity_N=told["near_identity"] > 0,
                echo_N=scored.valid_B & is_identity(shown_BK, slates.sizes_B),
                finished_N=finished_N,
                counted_N=counted_N,
                tokens_N=tokens_N.astype(np.float64),
            )
        ]
        if log_metric is not None:
            for name, values_N in told.items():
                log_metric(f"{self.__name__}/{name}", float(values_N.mean()))
        paid: list[float | None] = paid_N.tolist()
        return paid


def unshuffled(slates: Slates) -> Slates:
    """The same requests with their candidates in the order they were shuffled from; themselves where they were not."""
    if slates.canonical_BK is None:
        return slates
    return slates.reordered(invert(slates.canonical_BK, slates.sizes_B))


def unshuffled_rankings(rankings_BK: IntArray, slates: Slates) -> IntArray:
    """Rankings of `slates` as rankings of `unshuffled(slates)`; -1 stays -1."""
    if slates.canonical_BK is None:
        return rankings_BK
    numbers_BK = completed(slates.canonical_BK, slates.sizes_B)
    named_BK = np.take_along_axis(numbers_BK, np.maximum(rankings_BK, 0), axis=1)
    return np.where(rankings_BK == PAD, PAD, named_BK)
