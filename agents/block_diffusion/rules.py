"""Decoding rules: which of the hidden places of a block are committed in a round, given what was drawn for each.

May import torch and `rerank_env.rewards`. Suffixes: `_R` rows, `_S` places of a block, `_N` open places of all rows in
row-major order, `_V` vocabulary.

A rule puts open places in an order, best first, and vouches for a number of the best. With c_(n) the n-th largest
probability of a drawn token and h_(n) the n-th smallest entropy of a law:

    static(r)     round k of r: floor(size / r) places, one more while k < size mod r, by c      (LLaDA, 2502.09992)
    threshold(t)  all with c >= t                                                         (Fast-dLLM, 2505.22618)
    factor(f)     the largest n with c_(n) >= 1 - f / (n + 1)                             (Fast-dLLM, 2505.22618)
    entropy(b)    the largest n with h_(1) + ... + h_(n) <= b                             (EB-sampler, 2505.24857)

Where a rule vouches for none, the best place is committed all the same, and marked as forced: every round commits at
least one token of a row that has hidden ones, so a block takes at most as many rounds as it has places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True, eq=False)
class Look:
    """What a rule may look at in a round.

    `open_RS` bool: hidden places that may be committed. `log_p_RS`: the log-probability of the token that was drawn for
    each, anything where a place is not open. `law_NV`: the log-probabilities that it was drawn by, a row for each open
    place; it may lie on another device. `round_R`: the number of the round in the row's block, from 0, and `size_R`:
    the places of that block, both int64.
    """

    open_RS: Tensor
    log_p_RS: Tensor
    law_NV: Tensor
    round_R: Tensor
    size_R: Tensor

    def entropy_RS(self) -> Tensor:
        """The entropy of the law at each open place in nats, 0 where a place is not open."""
        entropy_N = torch.special.entr(self.law_NV.exp()).sum(-1)
        return torch.zeros_like(self.log_p_RS).masked_scatter(self.open_RS, entropy_N.to(self.log_p_RS))


class Rule(Protocol):
    """A decoding rule: an order of places, and how many of the best it vouches for. Its `str` parses back."""

    def score_RS(self, look: Look) -> Tensor:
        """What places are put in order by, the largest first; read at open places only."""

    def count_R(self, look: Look, score_RS: Tensor, /) -> Tensor:
        """How many places of each row, int64; `score_RS` is in descending order, with -inf behind the open ones."""


class Commits(NamedTuple):
    """Which places are committed, bool [R, S], and which of these the rule did not vouch for."""

    now_RS: Tensor
    forced_RS: Tensor


def commits(rule: Rule, look: Look, *, first: bool = False) -> Commits:
    """What is committed in a round: what the rule vouches for, at least one a row with open places, none elsewhere.

    Of equal scores the place further left comes first. With `first` the first place of a block is never left for a
    later round: where the rule does not vouch for it, it is committed alone, forced, and a static rule, which vouches
    for a number of places and not for any of them, has it among that number. So it is where tokens are shifted (ours):
    its law is read from the clean token before the block and never learns what is committed behind it. It gains
    nothing by waiting, and a name that was committed behind it in the meantime it might name again.
    """
    score_RS = rule.score_RS(look).masked_fill(~look.open_RS, -torch.inf)
    if first and isinstance(rule, Static):
        score_RS[:, 0].masked_fill_(look.open_RS[:, 0], 0.0)  # the highest there is
    sorted_RS, order_RS = score_RS.sort(dim=-1, descending=True, stable=True)
    count_R1 = rule.count_R(look, sorted_RS)[:, None]
    rank_S = torch.arange(score_RS.shape[1], device=score_RS.device)
    best_RS = torch.empty_like(look.open_RS).scatter_(1, order_RS, rank_S < count_R1.clamp(min=1))
    now_RS = best_RS & look.open_RS
    forced_RS = now_RS & (count_R1 == 0)
    if first:
        waits_R1 = look.open_RS[:, :1] & ~now_RS[:, :1]
        alone_RS = torch.zeros_like(now_RS)
        alone_RS[:, :1] = waits_R1
        now_RS, forced_RS = (torch.where(waits_R1, alone_RS, made_RS) for made_RS in (now_RS, forced_RS))
    return Commits(now_RS, forced_RS)


@dataclass(frozen=True)
class Static:
    """A fixed number of `rounds` a block, the most confident places first; fewer for a block of fewer places."""

    rounds: int
    name: ClassVar[str] = "static"

    def __post_init__(self) -> None:
        """Check the field."""
        object.__setattr__(self, "rounds", whole("the rounds of a static rule", self.rounds, least=1))

    def __str__(self) -> str:
        return f"{self.name}({self.rounds})"

    def score_RS(self, look: Look) -> Tensor:
        """The confidence."""
        return look.log_p_RS

    def count_R(self, look: Look, _score_RS: Tensor, /) -> Tensor:
        """An even share of the block, the remainder to the first rounds."""
        return look.size_R // self.rounds + (look.round_R < look.size_R % self.rounds)


@dataclass(frozen=True)
class Threshold:
    """Every place whose token has at least the probability `least`, above 0 and at most 1."""

    least: float
    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        """Check the field."""
        least = finite("the least probability of a threshold rule", self.least)
        if not 0 < least <= 1:
            raise InputError(f"the least probability of a threshold rule is {least}; give one above 0 and at most 1")
        object.__setattr__(self, "least", least)

    def __str__(self) -> str:
        return f"{self.name}({self.least})"

    def score_RS(self, look: Look) -> Tensor:
        """The confidence."""
        return look.log_p_RS

    def count_R(self, _look: Look, score_RS: Tensor, /) -> Tensor:
        """How many are sure enough."""
        return (score_RS.exp() >= self.least).sum(-1)


@dataclass(frozen=True)
class Factor:
    """As many of the most confident places as can be sure together: n with c_(n) >= 1 - `factor` / (n + 1)."""

    factor: float
    name: ClassVar[str] = "factor"

    def __post_init__(self) -> None:
        """Check the field."""
        factor = finite("the factor of a factor rule", self.factor)
        if factor <= 0:
            raise InputError(f"the factor of a factor rule is {factor}; give a positive number, such as 1.0")
        object.__setattr__(self, "factor", factor)

    def __str__(self) -> str:
        return f"{self.name}({self.factor})"

    def score_RS(self, look: Look) -> Tensor:
        """The confidence."""
        return look.log_p_RS

    def count_R(self, _look: Look, score_RS: Tensor, /) -> Tensor:
        """The largest n that holds; as c_(n) falls and the bound rises with n, all smaller ones hold too."""
        n_S = torch.arange(1, score_RS.shape[1] + 1, device=score_RS.device)
        return (score_RS.exp() >= 1 - self.factor / (n_S + 1)).sum(-1)


@dataclass(frozen=True)
class Entropy:
    """The places of lowest entropy, as many as have at most `bound` nats between them."""

    bound: float
    name: ClassVar[str] = "entropy"

    def __post_init__(self) -> None:
        """Check the field."""
        bound = finite("the bound of an entropy rule", self.bound)
        if bound < 0:
            raise InputError(f"the bound of an entropy rule is {bound}; give nats, 0 or more, such as 0.35")
        object.__setattr__(self, "bound", bound)

    def __str__(self) -> str:
        return f"{self.name}({self.bound})"

    def score_RS(self, look: Look) -> Tensor:
        """The entropy, the lowest first."""
        return -look.entropy_RS()

    def count_R(self, _look: Look, score_RS: Tensor, /) -> Tensor:
        """How many of the lowest fit under the bound."""
        return ((-score_RS).cumsum(-1) <= self.bound).sum(-1)


RULES: dict[str, type[Static | Threshold | Factor | Entropy]] = {
    rule.name: rule for rule in (Static, Threshold, Factor, Entropy)
}
"""The rules by the names that their text forms begin with."""

_FORM = re.compile(r"\s*(\w+)\s*\(\s*([^()\s]+)\s*\)\s*")


def rule_of(text: str) -> Rule:
    """The rule that a text such as "threshold(0.9)" stands for; what `str` of a rule gives comes back as that rule.

    Raises `UnknownNameError` for a rule that does not exist, which suggests the nearest, and `InputError` for a text of
    another form and for a number that the rule cannot have.

    >>> rule_of("static(4)"), str(rule_of("entropy(0.35)"))
    (Static(rounds=4), 'entropy(0.35)')
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"the decoding rule is {text!r}; give a name and a number, such as 'threshold(0.9)'")
    kind = RULES[one_of("decoding rule", found[1], RULES)]
    try:
        number = int(found[2]) if kind is Static else float(found[2])
    except ValueError:
        needed = "a whole number" if kind is Static else "a number"
        raise InputError(f"the decoding rule {text!r} has {found[2]!r} in brackets; give {needed} there") from None
    return kind(number)  # type: ignore[arg-type]  # the kinds differ in what number they take, and check it
