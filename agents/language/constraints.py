"""Decoding that can only answer with a legal ranking: a mask over the next token, for any tokenizer and text format.

May import torch, transformers, and the layers below. Suffixes: `_R` rows, `_V` vocabulary. A token is allowed where the
signs that it adds lead from the state of the answer to another from which the end can be reached within the tokens that
are left, even if every sign takes one. So reasons are free until just that much is left, then the tag, the ranking and
the end are all that can be written; `automaton` says what is legal. Every ranking can be reached, in every spelling of
the tokenizer's tokens. What is drawn then follows the model's law restricted to the allowed tokens of each step and
renormalised; this is not the law of whole answers given that they are legal, which no step by step mask can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rerank_env.agents.language.automaton import END, Automaton, Free, State, shown_names
from rerank_env.agents.language.spelling import Node, Spelling
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.rewards.formats import FORMATS, agreed

try:
    from transformers import LogitsProcessor
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'language policies need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error


class Written(NamedTuple):
    """How far an answer to a request is: its `rules`, the state in them (None: it is over), the tokens so far."""

    rules: Rules
    state: State | None
    tokens: int


class Moves(NamedTuple):
    """The tokens that lead on from a state, in rising order, the room needed behind each, and the most of it.

    `mask_V` has the same tokens for free text, where they are many; None elsewhere.
    """

    numbers_M: Tensor
    rooms_M: Tensor
    most: int
    mask_V: Tensor | None


class AnswerConstraint:
    """What may be written to each of a few requests.

    `sizes`: the number of candidates of each; `ids`: what their answers cite, None for numbers. `max_tokens` and
    `eos_ids` are those of the decoding. Raises `InputError` where the tokenizer cannot spell an answer, or where an
    answer without reasons may not fit into `max_tokens`; `UnknownNameError` for an unknown format.
    """

    def __init__(
        self,
        tokenizer: Any,
        text_format: str,
        sizes: Sequence[int],
        *,
        max_tokens: int,
        eos_ids: Sequence[int],
        ids: Sequence[Sequence[str]] | None = None,
    ) -> None:
        one_of("text format", text_format, FORMATS)
        spelling = Spelling.of(tokenizer)
        known: dict[tuple[str, ...], Rules] = {}
        self._rules = []
        for row, size in enumerate(sizes):
            cited = None if ids is None else ids[row]
            agreed(text_format, size, cited)
            names = shown_names(size, cited, text_format)
            if names not in known:
                known[names] = Rules(spelling, text_format, names, max_tokens, tuple(eos_ids))
            self._rules.append(known[names])

    def start(self, prompt: int) -> Written:
        """Before the first token of an answer to that request."""
        rules = self._rules[prompt]
        return Written(rules, rules.automaton.start, 0)

    def after(self, written: Written, token: int) -> Written:
        """Behind one more token. Raises `InputError` for a token that was not allowed."""
        rules, state, tokens = written
        if state is None:
            return written
        return Written(rules, rules.after(state, token, is_first=not tokens), tokens + 1)

    def allowed(self, written: Written) -> Tensor:
        """The tokens that may come next, int64 in rising order; none where the answer is over."""
        rules, state, tokens = written
        if state is None:
            return torch.empty(0, dtype=torch.int64)
        return rules.allowed(state, tokens)

    def masked(self, states: Sequence[Written], scores_RV: Tensor) -> Tensor:
        """The scores with -inf for what may not come next; rows whose answer is over stay as they are."""
        forbidden_RV = torch.ones(scores_RV.shape, dtype=torch.bool)
        for row, written in enumerate(states):
            if written.state is None:
                forbidden_RV[row] = False
            elif (most := written.rules.nearly_all(written.state, written.tokens)) is not None:
                forbidden_RV[row, : len(most)] = ~most
            else:
                forbidden_RV[row, self.allowed(written)] = False
        return scores_RV.masked_fill(forbidden_RV.to(scores_RV.device), -torch.inf)

    def processor(self, prompt_length: int, prompts: Sequence[int] | None = None, copies: int = 1) -> AnswerProcessor:
        """The same for `model.generate`, whose rows are `copies` of each of `prompts` (all where None)."""
        rows = range(len(self._rules)) if prompts is None else prompts
        return AnswerProcessor(self, prompt_length, [prompt for prompt in rows for _ in range(copies)])


class AnswerProcessor(LogitsProcessor):
    """An `AnswerConstraint` as transformers takes it: row `i` of a batch is an answer to `prompts[i]`.

    Tokens from `prompt_length` on are the answer.
    """

    def __init__(self, constraint: AnswerConstraint, prompt_length: int, prompts: Sequence[int]) -> None:
        self._constraint = constraint
        self._prompt_length = prompt_length
        self._prompts = list(prompts)
        self._known: dict[tuple[int, ...], Written] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores [R, V] with -inf for what may not come next."""
        known: dict[tuple[int, ...], Written] = {}
        states = []
        for prompt, row in zip(self._prompts, input_ids[:, self._prompt_length :].tolist(), strict=True):
            key = (prompt, *row)
            if key not in known:
                state = self._known.get(key[:-1]) if row else None
                if state is not None:
                    known[key] = self._constraint.after(state, row[-1])
                else:
                    known[key] = self._constraint.start(prompt)
                    for token in row:
                        known[key] = self._constraint.after(known[key], token)
            states.append(known[key])
        self._known = known
        return self._constraint.masked(states, scores)


class Rules:
    """What may be written to requests whose candidates have the same names; what was found out is remembered."""

    def __init__(
        self, spelling: Spelling, text_format: str, names: Sequence[str], max_tokens: int, eos_ids: tuple[int, ...]
    ) -> None:
        self.automaton = Automaton(spelling, text_format, names)
        self._spelling = spelling
        self._max_tokens = max_tokens
        self._eos_ids = eos_ids
        self._barred = spelling.hidden | set(eos_ids)
        spelling.check(self.automaton.alphabet(), self.automaton.openings())
        needed = self.automaton.room(self.automaton.start)
        if needed > max_tokens:
            raise InputError(
                f"a constrained answer for {len(names)} candidates may take {needed} tokens but max_tokens is "
                f"{max_tokens}; raise it, or decode without a constraint"
            )
        self._moves: dict[tuple[State, bool], Moves] = {}

    def after(self, state: State, token: int, *, is_first: bool) -> State | None:
        """The state behind a token, None where it ends the answer."""
        if state == END and token in self._eos_ids:
            return None
        found = None if token in self._barred else self._stepped(state, token, is_first)
        if found is None:
            raise InputError(f"token {token} may not come where it came; write what the constraint allows")
        return found

    def allowed(self, state: State, tokens: int) -> Tensor:
        """The tokens that may come behind so many others."""
        moves = self._moves_from(state, is_first=not tokens)
        left = self._max_tokens - tokens - 1
        return moves.numbers_M if moves.most <= left else moves.numbers_M[moves.rooms_M <= left]

    def nearly_all(self, state: State, tokens: int) -> Tensor | None:
        """The same as a mask [size of the vocabulary] where it is kept ready, as it is for free text with room left."""
        moves = self._moves_from(state, is_first=not tokens)
        return moves.mask_V if moves.most <= self._max_tokens - tokens - 1 else None

    def _moves_from(self, state: State, *, is_first: bool) -> Moves:
        key = (state, is_first)
        if key not in self._moves:
            rooms: dict[int, int] = {}
            if isinstance(state, Free):
                rooms = self._in_text(state, is_first)
            elif state == END:
                rooms = dict.fromkeys(self._eos_ids, 0)
            else:
                self._spelled(self._spelling.first if is_first else self._spelling.inside, state, rooms)
                unseen = self._spelling.unseen if is_first else ()
                rooms.update({token: self.automaton.room(state) for token in unseen if token not in self._barred})
            numbers_M = torch.tensor(sorted(rooms), dtype=torch.int64)
            mask_V = None
            if isinstance(state, Free):
                mask_V = torch.zeros(self._spelling.size, dtype=torch.bool)
                mask_V[numbers_M] = True
            rooms_M = torch.tensor([rooms[number] for number in numbers_M.tolist()], dtype=torch.int64)
            self._moves[key] = Moves(numbers_M, rooms_M, max(rooms.values()), mask_V)
        return self._moves[key]

    def _spelled(self, node: Node, state: State, rooms: dict[int, int]) -> None:
        """Put every token below `node` that leads on from `state` into `rooms`, with the room needed behind it."""
        nexts = self.automaton.nexts(state)
        for sign in list(node) if nexts is None else nexts:
            child = node.get(sign)
            follows = None if child is None else self.automaton.after(state, sign)
            if child is None or follows is None:
                continue
            rooms.update({token: self.automaton.room(follows) for token in child.tokens if token not in self._barred})
            self._spelled(child, follows, rooms)

    def _in_text(self, state: Free, is_first: bool) -> dict[int, int]:
        """What may come in free text, where each token is looked at once a state."""
        rooms = {}
        for token in range(self._spelling.size):
            if token not in self._barred and (follows := self._stepped(state, token, is_first)) is not None:
                rooms[token] = self.automaton.room(follows)
        return rooms

    def _stepped(self, state: State, token: int, is_first: bool) -> State | None:
        if is_first and token in self._spelling.unseen:
            return state
        text = (self._spelling.first_texts if is_first else self._spelling.texts)[token]
        if not text:
            return None
        if token in self._spelling.added:
            return self.automaton.after(state, token)
        is_prose = isinstance(state, Free) and state.begun and not self.automaton.goes_on(state, text[0])
        if isinstance(state, Free) and is_prose and token in self._spelling.plain:
            return Free(state.in_string)
        current: State | None = state
        for sign in text:
            current = None if current is None else self.automaton.after(current, sign)
        return current
