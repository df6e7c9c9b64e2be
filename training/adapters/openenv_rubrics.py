"""A reward as a tree of OpenEnv rubrics, so that its parts can be seen and hooked; needs the `openenv` extra.

What maps exactly is mapped, the rest stays whole: a sum is a `WeightedSum`, a condition a `Gate` on a leaf that is 1
where it holds, `a.when(c).otherwise(b)` and `gate` a `Branch` behind such a gate, anything else a `Part`, one leaf. The
root asks first whether the answer is a ranking at all, and only then the tree, which rounds as the reward does: the
total is the reward's own to the last bit.

    rubric = RewardRubric("gr2", requests.slates)
    rubric(RerankAction(completion="[2, 1, 3]"), observation)
    for name, part in rubric.named_rubrics():
        print(name, part, part.last_score)  # None where the answer did not get that far
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rerank_env.rewards.algebra import Constant, Scaled, Sum
from rerank_env.rewards.conditions import Valid
from rerank_env.rewards.errors import MissingExtraError
from rerank_env.rewards.parsing import MAX_CHARS
from rerank_env.rewards.reward import Condition, Reward
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.shaping import Choice
from rerank_env.rewards.shaping import Gate as RewardGate
from rerank_env.rewards.slates import Slates
from rerank_env.training.adapters.records import REMEDIES

try:
    from openenv.core.rubrics import Gate, Rubric, WeightedSum
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'the OpenEnv adapter needs {error.name}, which is not installed; run: pip install "rerank-env[openenv]"'
    ) from error

if TYPE_CHECKING:
    from rerank_env.training.adapters.openenv import RerankAction, RerankObservation

HEAVIEST = 1e6
"""A sum with a larger weight stays whole: `WeightedSum` checks in floats that its weights add up to 1."""

_REMEDIES = {**REMEDIES, "step": "pass step to reset", "tokens": "give the action its length in tokens"}


@dataclass(frozen=True)
class Reading:
    """How an action is read and scored: the path that every part of a reward shares.

    `observation.request` says which slate the answer is to, and `ids` of that what it names the candidates by; None
    where that is their numbers.
    """

    scorer: Scorer
    slates: Slates
    ids: Callable[[int], Sequence[str]] | None = None

    def of(self, reward: Reward) -> Reading:
        """The same for one part of the reward."""
        return replace(self, scorer=replace(self.scorer, reward=reward))

    def scored(self, action: RerankAction, observation: RerankObservation) -> Scored:
        """What the answer earned, a batch of one. Raises `InputError` where the reward needs what was not told."""
        told = {"step": observation.step, "tokens": action.tokens}
        known = (need for need, value in told.items() if value is not None)
        self.scorer.check_needs(*self.slates.provides, *known, where="OpenEnv", remedies=_REMEDIES)
        return self.scorer(
            [action.completion],
            self.slates.take([observation.request]),
            ids=None if self.ids is None else [self.ids(observation.request)],
            step=observation.step,
            tokens_B=None if action.tokens is None else [action.tokens],
        )


class Part(Rubric):
    """A leaf: one part of the reward, whole."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.reading = reading

    def forward(self, action: RerankAction, observation: RerankObservation) -> float:
        """What the part gives the answer."""
        return float(self.reading.scored(action, observation).total_B[0])

    def __repr__(self) -> str:
        """The text of the part."""
        return f"<{self.reading.scorer.reward}>"


class Number(Rubric):
    """A leaf: the same number for every answer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, action: RerankAction, observation: RerankObservation) -> float:  # noqa: ARG002
        """The number."""
        return self.value

    def __repr__(self) -> str:
        """The number."""
        return f"<{self.value}>"


class Branch(Rubric):
    """`then` where the gate lets the answer through, else `otherwise`; the other one is not asked."""

    def __init__(self, text: str, gate: Gate, *, then: Rubric, otherwise: Rubric) -> None:
        super().__init__()
        self.text = text
        self.gate = gate
        self.then = then
        self.otherwise = otherwise

    def forward(self, action: RerankAction, observation: RerankObservation) -> float:
        """The score of one of both."""
        branch = self.then if self.gate(action, observation) == 1.0 else self.otherwise
        return float(branch(action, observation))

    def __repr__(self) -> str:
        """The text of the reward it stands for."""
        return f"<{self.text}>"


class RewardRubric(Rubric):
    """The reward of an answer to one of the requests behind `slates`: `valid` first, then the tree under `total`.

    `ids` gives the names of the candidates of a request, where answers name IDs.
    `last_score` of a part is None until it was asked; `reset` forgets. Raises as `Scorer` does, and `InputError` for a
    reward that compares the answers of a group, of which a rubric sees one.
    """

    def __init__(
        self,
        reward: Reward | str,
        slates: Slates,
        *,
        text_format: str = "list",
        max_chars: int = MAX_CHARS,
        ids: Callable[[int], Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        scorer = Scorer(reward, text_format, max_chars=max_chars)
        scorer.check_needs("step", "tokens", *slates.provides, where="OpenEnv", remedies=REMEDIES)
        self.reward = scorer.reward
        self.reading = Reading(scorer, slates, ids)
        self.valid = _gate(Valid(), self.reading)
        self.total = rubric_of(self.reward, self.reading)

    def forward(self, action: RerankAction, observation: RerankObservation) -> float:
        """The total; an answer that is no ranking, or that an isolated function failed on, gets the declared score."""
        if self.valid(action, observation) != 1.0 or self.reading.scored(action, observation).failures:
            return self.reward.invalid
        return float(self.total(action, observation))

    def reset(self) -> None:
        """Forget the last scores of all parts."""
        for _, rubric in self.named_rubrics():
            rubric.last_score = None


def rubric_of(reward: Reward, reading: Reading) -> Rubric:
    """The tree for a reward, right for answers that are rankings."""
    match reward:
        case Constant():
            return Number(reward.value)
        case Sum() | Scaled():
            return _weighted_sum(reward, reading)
        case RewardGate() if reward.condition.always:
            return rubric_of(reward.reward, reading)
        case RewardGate():
            then, otherwise = rubric_of(reward.reward, reading), Number(reward.fallback)
            return Branch(str(reward), _gate(reward.condition, reading), then=then, otherwise=otherwise)
        case Choice():
            then, otherwise = rubric_of(reward.reward, reading), rubric_of(reward.alternative, reading)
            return Branch(str(reward), _gate(reward.condition, reading), then=then, otherwise=otherwise)
    return Part(reading.of(reward))


def _weighted_sum(reward: Reward, reading: Reading) -> Rubric:
    terms = [(term.factor, term.reward) if isinstance(term, Scaled) else (1.0, term) for term in reward.terms()]
    weights = [weight for weight, _ in terms]
    if sum(map(abs, weights)) > HEAVIEST:
        return Part(reading.of(reward))
    # OpenEnv wants weights that add up to 1. The rest goes to a leaf that scores 0, which changes no bit of the sum.
    return WeightedSum([*(rubric_of(term, reading) for _, term in terms), Number(0.0)], [*weights, 1.0 - sum(weights)])


def _gate(condition: Condition, reading: Reading) -> Gate:
    return Gate(Part(reading.of(Constant(1.0).when(condition))), threshold=1.0)
