"""One batch of requests asked until each is settled: accepted, out of tries, or without a target.

May import numpy and the modules below. Nothing here touches the disk, and what comes out depends on the seed and the
rows only, so that batches, processes and machines may be arranged in any way. A proposal is accepted where the
candidate that it names first is the target and it gives reasons; one that is to be imitated, where it is a ranking and
gives reasons, right or wrong (Kim and Rush 2016, 1606.07947: what a student that decodes in parallel learns best from
is one mode of its teacher; Gu et al. 2018, 1711.02281). Its list is the teacher's own where that is a ranking;
otherwise the target comes first and the others in an order drawn at random, never in the order they came in, which a
student would learn to copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, Prompt, PromptWriter
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import PAD, BoolArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import answer_text, has_reasoning
from rerank_env.rewards.parsing import parse
from rerank_env.rewards.rankings import Verdict, identity_rankings, invert
from rerank_env.training.language.traces import drawing
from rerank_env.training.language.traces.drawing import Purpose
from rerank_env.training.language.traces.leaks import check_no_leak
from rerank_env.training.language.traces.prompting import best, blinded, shown, some
from rerank_env.training.language.traces.proposals import Proposal, Teacher, answers_of, untagged
from rerank_env.training.language.traces.store import NO_TARGET, OWN, RANDOM, Trace

IMITATION = "imitation"
MODES = (IMITATION, "rejection", "targeted")

SAMPLED = 16
"""How many prompts tell the prompts of one writer from another's."""

Keep = Callable[[int, int, Proposal], None]
"""Told row, try and proposal as they come."""

Known = Mapping[tuple[int, int], Proposal]
"""Proposals that were paid before, by row and try."""


def _nothing(_row: int, _tries: int, _proposal: Proposal) -> None:
    """Keep nothing."""


@dataclass(frozen=True, eq=False)
class Asking:
    """How traces are asked for; `prepare` is applied to requests first, such as `EvidenceRemarks.on`.

    Raises `UnknownNameError` for another mode, `InputError` for fewer tries than 1 and for a writer whose answers have
    no room for reasons.
    """

    teacher: Teacher
    writer: PromptWriter
    mode: str = "targeted"
    tries: int = 8
    seed: int = 0
    shuffle: bool = True
    prepare: Callable[[Requests], Requests] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("mode", self.mode, MODES)
        whole("tries", self.tries, least=1)
        whole("seed", self.seed, least=0)
        if not has_reasoning(self.writer.text_format):
            raise InputError(
                f"answers in the format {self.writer.text_format!r} have no room for reasons; use a writer with a "
                "tagged format or json"
            )

    def settle(
        self, requests: Requests, rows_B: IntArray, *, known: Known | None = None, keep: Keep = _nothing
    ) -> list[Trace]:
        """A row of the traces for each of the rows, in order; `known` proposals are not asked for again.

        Raises what the teacher raises, when all that it said before has been told to `keep`, and as `check_no_leak` and
        `PromptWriter.write` do.
        """
        batch = requests.take(rows_B)
        best_BK = best(batch)
        lists_B: BoolArray = np.asarray(best_BK.any(axis=1)) | (self.mode == IMITATION)
        order_BK = self._order(batch, rows_B)
        asked = self._asked(batch, order_BK)
        if self.mode != "targeted":
            check_no_leak(
                lambda moved: self._prompts(moved, order_BK), batch, prompts=asked.prompts, remarked=asked.shown
            )
        asked = blinded(asked)
        place_BK = invert(order_BK, batch.sizes_B)
        target_B = self._targets(best_BK, rows_B)
        target_places_B = np.take_along_axis(place_BK, np.maximum(target_B, 0)[:, None], axis=1)[:, 0]
        best_places_BK: BoolArray = np.take_along_axis(best_BK, np.maximum(order_BK, 0), axis=1)
        drafts = [_Draft(target=int(target)) for target in target_B]
        for tries in range(self.tries):
            open_B = np.array(
                [row for row, draft in enumerate(drafts) if lists_B[row] and not draft.completion], dtype=np.int64
            )
            if not len(open_B):
                break
            for row, said in self._round(asked, rows_B, open_B, target_places_B, tries, known or {}, keep):
                right = said.pick != PAD and bool(best_places_BK[row, said.pick])
                if self.mode == IMITATION:
                    right = said.verdict is Verdict.OK
                drafts[row] = self._judged(drafts[row], said, right, asked, row, int(rows_B[row]))
        canonical_BK = batch.canonical_BK
        traces = []
        for row, draft in enumerate(drafts):
            order = order_BK[row, : int(batch.sizes_B[row])].tolist()
            named = bool(draft.ranking) and self.mode != IMITATION  # what is imitated may name first what it will
            target = order[draft.ranking[0]] if named else draft.target
            came = PAD if target == PAD else target if canonical_BK is None else int(canonical_BK[row, target])
            traces.append(draft.trace(int(rows_B[row]), target, came + 1, tuple(order), self.teacher.name, self.mode))
        return traces

    def sample(self, requests: Requests) -> str:
        """A short hash of the first prompts, which names, budgets and remarks go into besides the template."""
        first = requests.take(np.arange(min(SAMPLED, len(requests))))
        order_BK = identity_rankings(first.sizes_B, first.candidates_BK.shape[1])
        texts = [prompt.messages for prompt in self._asked(first, order_BK).prompts]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def prepared(self, requests: Requests) -> Requests:
        """The requests as they are put in words."""
        return requests if self.prepare is None else self.prepare(requests)

    def _order(self, batch: Requests, rows_B: IntArray) -> IntArray:
        width = batch.candidates_BK.shape[1]
        if not self.shuffle:
            return identity_rankings(batch.sizes_B, width)
        return drawing.orders(drawing.keys(self.seed, Purpose.ORDER, rows_B), batch.sizes_B, width)

    def _asked(self, batch: Requests, order_BK: IntArray) -> Asked:
        return shown(self.prepared(batch), order_BK, self.writer)

    def _prompts(self, batch: Requests, order_BK: IntArray) -> tuple[Prompt, ...]:
        return self._asked(batch, order_BK).prompts

    def _targets(self, best_BK: BoolArray, rows_B: IntArray) -> IntArray:
        """One of the best candidates of each request, drawn where there are several; -1 where there is none."""
        drawn_BK = drawing.uniform(drawing.keys(self.seed, Purpose.TARGET, rows_B), best_BK.shape[1])
        return np.where(best_BK.any(axis=1), np.where(best_BK, drawn_BK, -1.0).argmax(axis=1), PAD)

    def _round(
        self, asked: Asked, rows_B: IntArray, open_B: IntArray, places_B: IntArray, tries: int, known: Known, keep: Keep
    ) -> list[tuple[int, Proposal]]:
        """What the teacher says to the open rows this time, by row of the batch."""
        said = {row: known[key] for row in open_B.tolist() if (key := (int(rows_B[row]), tries)) in known}
        wanted_B = np.array([row for row in open_B.tolist() if row not in said], dtype=np.int64)
        if len(wanted_B):
            targets_B = places_B[wanted_B] if self.mode == "targeted" else None
            seeds_B = drawing.seeds(self.seed, rows_B[wanted_B], tries)
            part = asked if len(wanted_B) == len(rows_B) else some(asked, wanted_B)
            for index, proposal in answers_of(self.teacher, part, targets_B=targets_B, seeds_B=seeds_B):
                row = int(wanted_B[index])
                keep(int(rows_B[row]), tries, proposal)
                said[row] = proposal
        return sorted(said.items())

    def _judged(self, draft: _Draft, said: Proposal, right: bool, asked: Asked, row: int, request: int) -> _Draft:
        """The draft after one more proposal."""
        paid = replace(
            draft,
            tries=draft.tries + 1,
            verdict=said.verdict.name,
            tokens_in=draft.tokens_in + said.tokens_in,
            tokens_out=draft.tokens_out + said.tokens_out,
        )
        reasoning = untagged(said.reasoning)
        if not right or not reasoning:
            return paid
        size = int(asked.shown.sizes_B[row])
        ranking, tail = said.ranking, OWN
        if said.verdict is not Verdict.OK:
            ranking, tail = self._with_random_tail(said.pick, size, request), RANDOM
        ids = None if asked.answer_ids is None else asked.answer_ids[row]
        text_format = self.writer.text_format
        completion = answer_text(ranking, text_format=text_format, ids=ids, reasoning=reasoning)
        parsed = parse(completion, size, text_format=text_format, ids=ids)
        if parsed.verdict is not Verdict.OK:  # too long to be read as an answer
            return replace(paid, verdict=parsed.verdict.name)
        return replace(paid, completion=completion, reasoning=reasoning, ranking=ranking, tail=tail)

    def _with_random_tail(self, pick: int, size: int, request: int) -> tuple[int, ...]:
        key_B = drawing.keys(self.seed, Purpose.TAIL, np.array([request]))
        drawn = drawing.orders(key_B, np.array([size]), size)[0].tolist()
        return (pick, *[place for place in drawn if place != pick])


@dataclass(frozen=True)
class _Draft:
    """A row on the way: settled with a completion, or when tries run out."""

    target: int
    tries: int = 0
    verdict: str = NO_TARGET
    tokens_in: int = 0
    tokens_out: int = 0
    completion: str = ""
    reasoning: str = ""
    ranking: tuple[int, ...] = ()
    tail: str = ""

    def trace(self, request: int, target: int, incoming: int, order: tuple[int, ...], teacher: str, mode: str) -> Trace:
        return Trace(
            request=request, target=target, incoming=incoming, order=order,
            completion=self.completion, reasoning=self.reasoning, ranking=self.ranking, tail=self.tail,
            accepted=bool(self.completion), verdict=self.verdict, tries=self.tries,
            tokens_in=self.tokens_in, tokens_out=self.tokens_out, teacher=teacher, mode=mode,
        )  # fmt: skip
