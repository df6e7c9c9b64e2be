"""Answers that can only be rankings, from the scores of slots and candidates: named alternatives, on only when named.

May import torch, numpy, scipy, `rerank_env.rewards`, `rerank_env.agents.plackett_luce` and the module `rules`.
Suffixes: `_S` slots of the answer, best place first, `_K` candidates, `_G` rankings.

The scores are the logits of the tokens that name the candidates, at the hidden places of an answer. Slots that are
decoded by themselves name a candidate twice, and leave others out, however good the model is
(`tests/block_diffusion/test_validity_tables.py` counts how often). Three decoders that cannot:

    constrained(rule)   probabilities over the candidates that are not used yet; a decoding rule says which slots are
                        committed, the best pair of slot and candidate first                               (ours)
    assignment(r)       the best matching of open slots and unused candidates, of which each of r rounds commits its
                        share, the most probable pairs first; where r is 1, the mode of the law proportional to
                        exp sum_i S[i, ranking_i]                            (Kuhn 1955, solved by scipy; rounds ours)
    plackett-luce       from the first slot to the last, each over what is left: an exact law over rankings (see
                        `rerank_env.agents.plackett_luce`)

Each is valid for any scores but NaN, infinite ones and ties included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from rerank_env.agents import plackett_luce
from rerank_env.agents.block_diffusion.rules import Look, Rule, Static, commits, rule_of
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError, UnknownNameError

_MOST = torch.finfo(torch.float32).max
"""What infinite scores are taken for: their differences and sums are finite in float64."""


@dataclass(frozen=True, eq=False)
class Board:
    """What a decoder sees in a round: scores [S, K], which slots are open and which candidates unused, bool, and the
    number of the round, from 0.

    Raises `InputError` for other shapes, for scores that are not numbers, and for more open slots than candidates.
    """

    logits_SK: Tensor
    open_S: Tensor
    unused_K: Tensor
    round: int = 0

    def __post_init__(self) -> None:
        """Check the shapes."""
        shape = tuple(self.logits_SK.shape)
        if len(shape) != 2 or shape != (*self.open_S.shape, *self.unused_K.shape):
            raise InputError(
                f"scores have shape {shape}, with {len(self.open_S)} slots and {len(self.unused_K)} candidates; give a "
                "score for every slot and candidate"
            )
        if self.logits_SK.isnan().any():
            raise InputError(
                "the scores of an answer are not numbers, so nothing can be ranked by them; the model has diverged: go "
                "back to an earlier checkpoint or lower the learning rate"
            )
        if self.open_S.sum() > self.unused_K.sum():
            raise InputError(
                f"{int(self.open_S.sum())} slots are open but {int(self.unused_K.sum())} candidates are left; ask for "
                "at most as many places as there are candidates"
            )


class Pair(NamedTuple):
    """A slot, the candidate it is given, the log-probability of that, and whether no rule vouched for it."""

    slot: int
    candidate: int
    score: float
    forced: bool


class AnswerDecoder(Protocol):
    """A way to fill the slots of an answer. Its `str` parses back, see `answer_decoder_of`."""

    def pairs(self, board: Board, *, temperature: float = 0.0, generator: torch.Generator | None = None) -> list[Pair]:
        """What a round commits: at least one pair where a slot is open, every slot and candidate once.

        `temperature` 0 draws nothing, and the scores are then those of the model's own law, temperature 1.
        """

    def log_prob(
        self, logits_SK: Tensor, candidates_S: Tensor, unused_K: Tensor, *, temperature: float = 0.0
    ) -> Tensor:
        """The log-probabilities [S], with gradients, of what one round committed: the scores of its pairs.

        `logits_SK` has the rows of the slots that it committed, in order, `unused_K` what was unused before it.
        """


def open_law(logits_SK: Tensor, unused_K: Tensor, *, temperature: float = 0.0) -> Tensor:
    """Log-probabilities float64 [S, K] over unused candidates, -inf for the others; `temperature` 0 stands for 1."""
    scores_SK = logits_SK.double().nan_to_num(nan=torch.nan, posinf=_MOST, neginf=-_MOST) / (temperature or 1.0)
    return scores_SK.masked_fill(~unused_K, -torch.inf).log_softmax(-1)


def max_column_sum(logits_SK: Tensor) -> float:
    """The largest sum over slots of the probability of one candidate: 1 where slots agree on who stands where.

    A sum above 1 means that slots decoded by themselves will name a candidate twice; two that do so at a threshold t in
    one round need 2t. A measure of health, ours.
    """
    everyone_K = torch.ones(logits_SK.shape[1], dtype=torch.bool, device=logits_SK.device)
    return float(open_law(logits_SK, everyone_K).exp().sum(0).max())


@dataclass(frozen=True)
class Constrained:
    """Any decoding rule on probabilities over unused candidates; of slots that want the same one, all but one wait."""

    rule: Rule
    name: ClassVar[str] = "constrained"

    def __str__(self) -> str:
        return f"{self.name}({self.rule})"

    def pairs(self, board: Board, *, temperature: float = 0.0, generator: torch.Generator | None = None) -> list[Pair]:
        """See `AnswerDecoder`. A candidate is drawn for every open slot; of those that are to be committed, the most
        probable first, each is unless its candidate was taken by one before it. Raises `InputError` where there is
        nothing to draw from.
        """
        slots = board.open_S.nonzero().squeeze(1)
        law_NK = open_law(board.logits_SK[slots], board.unused_K, temperature=temperature)
        if temperature:
            drawn_N = torch.multinomial(law_NK.exp().cpu(), 1, generator=_given(generator)).squeeze(1).to(slots.device)
        else:
            drawn_N = law_NK.argmax(-1)
        score_N = law_NK.gather(1, drawn_N[:, None]).squeeze(1)
        open_S = board.open_S[None]
        look = Look(
            open_S,
            torch.zeros(open_S.shape, dtype=score_N.dtype, device=slots.device).masked_scatter(open_S, score_N),
            law_NK,
            torch.tensor([board.round], device=slots.device),
            torch.tensor([len(board.open_S)], device=slots.device),
        )
        now_RS, forced_RS = commits(self.rule, look)
        made: list[Pair] = []
        for number in score_N.argsort(descending=True, stable=True).tolist():
            slot, candidate = int(slots[number]), int(drawn_N[number])
            if now_RS[0, slot] and all(candidate != pair.candidate for pair in made):
                made.append(Pair(slot, candidate, float(score_N[number]), bool(forced_RS[0, slot])))
        return made

    def log_prob(
        self, logits_SK: Tensor, candidates_S: Tensor, unused_K: Tensor, *, temperature: float = 0.0
    ) -> Tensor:
        """See `AnswerDecoder`."""
        law_SK = open_law(logits_SK, unused_K, temperature=temperature)
        return law_SK.gather(1, candidates_S[:, None]).squeeze(1)


@dataclass(frozen=True)
class Assignment:
    """The most probable matching of open slots and unused candidates, committed in `rounds`, the surest pairs first."""

    rounds: int = 1
    name: ClassVar[str] = "assignment"

    def __post_init__(self) -> None:
        """Check the field."""
        object.__setattr__(self, "rounds", whole("the rounds of an assignment", self.rounds, least=1))

    def __str__(self) -> str:
        return f"{self.name}({self.rounds})"

    def pairs(self, board: Board, *, temperature: float = 0.0, generator: torch.Generator | None = None) -> list[Pair]:
        """See `AnswerDecoder`. Draws nothing: raises `InputError` for a temperature or a generator."""
        if temperature or generator is not None:
            raise InputError(f"an assignment draws nothing, but temperature is {temperature}; give 0 and no generator")
        slots, left = board.open_S.nonzero().squeeze(1), board.unused_K.nonzero().squeeze(1)
        law_NK = open_law(board.logits_SK[slots], board.unused_K)
        rows, columns = linear_sum_assignment(-law_NK[:, left].detach().cpu().numpy())
        matched = [
            Pair(int(slots[row]), int(left[column]), float(law_NK[row, left[column]]), False)
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        ]
        share, more = divmod(len(board.open_S), self.rounds)
        matched.sort(key=lambda pair: -pair.score)
        return matched[: max(1, share + (board.round < more))]

    def log_prob(
        self, logits_SK: Tensor, candidates_S: Tensor, unused_K: Tensor, *, temperature: float = 0.0
    ) -> Tensor:
        """The log-probability of each by itself, as in `Constrained`; no law of matchings, which has no simple form."""
        return Constrained(Static(self.rounds)).log_prob(logits_SK, candidates_S, unused_K, temperature=temperature)


@dataclass(frozen=True)
class PlackettLuce:
    """The generalised Plackett-Luce law: all slots in one round, the best candidate that is left or a draw."""

    name: ClassVar[str] = "plackett-luce"

    def __str__(self) -> str:
        return self.name

    def pairs(self, board: Board, *, temperature: float = 0.0, generator: torch.Generator | None = None) -> list[Pair]:
        """See `AnswerDecoder`. Raises `InputError` where there is nothing to draw from."""
        slots, left = board.open_S.nonzero().squeeze(1), board.unused_K.nonzero().squeeze(1)
        square_1KK, size_1 = _square(board.logits_SK[slots], board.unused_K, temperature)
        if temperature:
            order_K = plackett_luce.sample(square_1KK, size_1, 1, generator=_given(generator))[0, 0]
        else:
            order_K = plackett_luce.greedy(square_1KK, size_1)[0]
        candidates_N = left[order_K[: len(slots)]]
        score_N = self.log_prob(board.logits_SK[slots], candidates_N, board.unused_K, temperature=temperature)
        return [
            Pair(*told, False) for told in zip(slots.tolist(), candidates_N.tolist(), score_N.tolist(), strict=True)
        ]

    def log_prob(
        self, logits_SK: Tensor, candidates_S: Tensor, unused_K: Tensor, *, temperature: float = 0.0
    ) -> Tensor:
        """See `AnswerDecoder`; the sum is the exact log-probability of the ranking."""
        return plackett_luce_log_prob(logits_SK, candidates_S[None], unused_K=unused_K, temperature=temperature)[0]


def plackett_luce_log_prob(
    logits_SK: Tensor, candidates_GS: Tensor, *, unused_K: Tensor | None = None, temperature: float = 0.0
) -> Tensor:
    """The log-probability float64 [G, S] of each place of rankings of S of the unused candidates, with gradients.

    All candidates are unused where `unused_K` is not given. Fewer slots than candidates are the first places of whole
    rankings. Raises `RankingError` where a candidate is named twice, or was used. Source: 2410.02942.
    """
    if unused_K is None:
        unused_K = torch.ones(logits_SK.shape[1], dtype=torch.bool, device=logits_SK.device)
    square_1KK, size_1 = _square(logits_SK, unused_K, temperature)
    column_K = torch.where(unused_K, unused_K.cumsum(0) - 1, -1)  # candidates are renumbered among the unused ones
    first_GS = column_K[candidates_GS]
    size, slots = int(size_1), logits_SK.shape[0]
    taken_GK = torch.zeros((len(first_GS), size), dtype=torch.bool, device=logits_SK.device)
    taken_GK = taken_GK.scatter(1, first_GS.clamp(min=0), True)
    rest_GK = taken_GK.to(torch.int8).argsort(dim=-1, stable=True)[:, : size - slots]  # in any order: rows of zeros
    return plackett_luce.log_prob(square_1KK, torch.cat([first_GS, rest_GK], dim=1)[None], size_1)[0, :, :slots]


def _square(logits_SK: Tensor, unused_K: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The scores of the unused candidates with rows of zeros for places behind the last slot, and how many they are."""
    law_SK = open_law(logits_SK, unused_K, temperature=temperature)[:, unused_K]
    slots, size = law_SK.shape
    return torch.nn.functional.pad(law_SK, (0, 0, 0, size - slots))[None], torch.tensor([size], device=law_SK.device)


def _given(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        raise InputError("an answer is to be sampled but nothing was given to draw from; pass a generator")
    return generator


def ranked(
    decoder: AnswerDecoder,
    logits_SK: Tensor,
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[Pair]:
    """All slots filled from scores that stay as they are, round after round; the pairs in order of their slots.

    Raises `InputError` as `Board` and the decoder do.
    """
    slots, size = logits_SK.shape
    device = logits_SK.device
    open_S = torch.ones(slots, dtype=torch.bool, device=device)
    unused_K = torch.ones(size, dtype=torch.bool, device=device)
    made: list[Pair] = []
    number = 0
    while len(made) < slots:
        board = Board(logits_SK, open_S, unused_K, number)
        for pair in decoder.pairs(board, temperature=temperature, generator=generator):
            made.append(pair)
            open_S[pair.slot], unused_K[pair.candidate] = False, False
        number += 1
    return sorted(made)


ANSWER_DECODERS = (Constrained.name, Assignment.name, PlackettLuce.name)
"""The names that the text forms of answer decoders begin with."""

_FORM = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*")


def answer_decoder_of(text: str) -> AnswerDecoder:
    """The decoder that a text such as "constrained(threshold(0.9))", "assignment(1)" or "plackett-luce" stands for.

    Raises `UnknownNameError` for one that does not exist, and `InputError` for a text of another form.

    >>> answer_decoder_of("assignment(2)"), str(answer_decoder_of("constrained(static(4))"))
    (Assignment(rounds=2), 'constrained(static(4))')
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in ANSWER_DECODERS:
        raise UnknownNameError.of("answer decoder", text, ANSWER_DECODERS)
    name, inside = found[1], found[2]
    if name == Constrained.name and inside is not None:
        return Constrained(rule_of(inside))
    if name == Assignment.name and inside is not None and inside.strip().isdecimal():
        return Assignment(int(inside))
    if name == PlackettLuce.name and inside is None:
        return PlackettLuce()
    raise InputError(
        f"the answer decoder is {text!r}; give 'constrained(RULE)' with a decoding rule, 'assignment(ROUNDS)' with a "
        "whole number, or 'plackett-luce'"
    )
