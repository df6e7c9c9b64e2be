"""The state machine behind both forms of the environment: n episodes advanced together, as arrays.

May import numpy, gymnasium's errors and the modules below the environment. `RerankEnv` is this with n = 1, squeezed;
`RerankVectorEnv` is this with n environments and same-step autoreset, so both compute the same numbers by construction.
Suffixes: `_B` environments, `_E` those of them whose episode has just ended, `_K` candidate places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from rerank_env.actions import read_picks, read_rankings, read_scores, read_texts
from rerank_env.prompts import Prompt
from rerank_env.rewards.arrays import PAD, BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import RerankError
from rerank_env.rewards.rankings import Verdict, is_identity
from rerank_env.rewards.scoring import ReadAnswers
from rerank_env.rewards.slates import Slates
from rerank_env.streams import Streams
from rerank_env.task import Task

Columns = dict[str, Any]
"""Named arrays with one leading axis of environments; a value may be `Columns` again, or a tuple of strings."""

_OK = int(Verdict.OK)  # looking up an enumeration member takes longer than most array operations here


class EpisodeError(RerankError, ResetNeeded):
    """A step was asked of an environment that has no episode running."""


@dataclass(frozen=True)
class Step:
    """What one step of all environments brought.

    `reward_B`; `ended_E` which environments' episodes ended, ascending; `info_E` the terminal columns of those.
    """

    reward_B: FloatArray
    ended_E: IntArray
    info_E: Columns


class Episodes:
    """n environments over one task: who is asked what, how far each has come, what has been paid.

    Call `reseed` before the first `begin`, `begin` before `step`, and `begin` again for the environments that ended.
    Every array handed out is fresh.
    """

    def __init__(self, task: Task, n: int) -> None:
        """No episode runs yet."""
        self.task = task
        self.n = n
        self.rows_B: IntArray = np.zeros(n, dtype=np.int64)
        self.running_B: BoolArray = np.zeros(n, dtype=np.bool_)
        self.picked_BK: IntArray = np.full((n, task.width), PAD, dtype=np.int64)
        self.paid_B: FloatArray = np.zeros(n)
        self._counts_B: IntArray = np.zeros(n, dtype=np.int64)
        self._place_BK: IntArray = np.zeros((n, task.width), dtype=np.int64)
        self._streams = Streams(n)
        self._all_B: IntArray = np.arange(n)
        self._written: dict[int, Prompt] = {}

    def reseed(self, which_E: Sequence[int], keys_E: Sequence[np.uint64]) -> None:
        """Give the environments `which_E` new streams, which the keys name."""
        self._streams.reseed(which_E, keys_E)

    def begin(self, which_E: IntArray | None = None, rows_E: IntArray | None = None) -> None:
        """Start the next episode in `which_E` (all where None), with the requests `rows_E` (drawn where None)."""
        which = self._all_B if which_E is None else which_E
        if rows_E is None:
            rows_E = self._streams.next_rows(which, len(self.task.requests))
        else:
            self._streams.skip(which)
        self.rows_B[which] = rows_E
        self.running_B[which] = True
        if self.task.action == "pick":
            self.picked_BK[which] = PAD
            self.paid_B[which] = 0.0
            self._counts_B[which] = 0
            places_K = np.arange(self.task.width)
            real_EK = places_K < self.task.requests.sizes_B[rows_E][:, None]
            # A candidate that is not picked sorts behind all that are, in the incoming order; padding comes last.
            self._place_BK[which] = np.where(real_EK, self.task.width, 2 * self.task.width) + places_K

    def step(self, actions: object) -> Step:
        """Take one action each; actions are read as `rerank_env.actions` says, and only their shape can be refused.

        Raises `EpisodeError` where an environment has no episode running.
        """
        if not self.running_B.all():
            raise EpisodeError(
                f"environment {int(np.argmin(self.running_B))} has no episode to step; call reset() before step() and "
                "after every episode's end"
            )
        if self.task.action == "pick":
            return self._step_pick(actions)
        slates = self.task.requests.slates.take(self.rows_B)
        read = self._read(actions, slates)
        score = self.task.scorer.score(read, slates)
        judgement = self._judgement(read, slates, score.parts, score.failed_B)
        self.running_B[:] = False
        return Step(score.total_B.copy(), self._all_B.copy(), self.info() | judgement)

    def observe(self, which_E: IntArray | None = None) -> Columns:
        """The observations of `which_E` (all where None), in the order of the observation space's keys."""
        requests = self.task.requests
        rows_E = self.rows_B if which_E is None else self.rows_B[which_E]
        columns: Columns = {}
        if self.task.action == "pick":
            columns["action_mask"] = self._mask(which_E)
        columns["candidates"] = requests.candidates_BK.take(rows_E, axis=0)
        columns["feedback"] = requests.feedback_BH.take(rows_E, axis=0)
        columns["history"] = requests.history_BH.take(rows_E, axis=0)
        if self.task.action == "pick":
            columns["picked"] = self.picked_BK.copy() if which_E is None else self.picked_BK[which_E]
        elif self.task.action == "text":
            columns["prompt"] = tuple(prompt.text for prompt in self._prompts(rows_E))
        columns["scores"] = requests.scores_BK.take(rows_E, axis=0)
        return columns

    def info(self, which_E: IntArray | None = None) -> Columns:
        """What is known of `which_E` (all where None) before their episodes end.

        `request`; the mask for "pick"; for "text" with a budget what was left out of the prompt, int64.
        """
        columns: Columns = {"request": self.rows_B.copy() if which_E is None else self.rows_B[which_E]}
        if self.task.action == "pick":
            columns["action_mask"] = self._mask(which_E)
        elif self.task.action == "text" and self.task.prompts.budget is not None:
            prompts = self._prompts(columns["request"])
            columns["prompt_dropped"] = np.array([prompt.dropped for prompt in prompts], dtype=np.int64)
            columns["prompt_shortened"] = np.array([prompt.shortened for prompt in prompts], dtype=np.int64)
        return columns

    def _prompts(self, rows_E: IntArray) -> list[Prompt]:
        """The prompts of these rows, each written once as long as it is shown: with a budget, writing takes a while."""
        rows = rows_E.tolist()
        new = [row for row in dict.fromkeys(rows) if row not in self._written]
        self._written.update(zip(new, self.task.prompts.write(self.task.requests, new), strict=True))
        prompts = [self._written[row] for row in rows]
        if len(self._written) > 2 * self.n:
            self._written = dict(zip(rows, prompts, strict=True))
        return prompts

    def _read(self, actions: object, slates: Slates) -> ReadAnswers:
        task, sizes_B = self.task, slates.sizes_B
        if task.action == "text":
            ids = task.prompts.answer_ids(task.requests, self.rows_B.tolist())
            return read_texts(actions, slates, task.scorer.citing(ids))
        if task.action == "ranking":
            return ReadAnswers(*read_rankings(actions, sizes_B, task.width))
        tiebreak_BK = self._streams.tiebreaks(task.width) if task.ties == "random" else None
        return ReadAnswers(*read_scores(actions, sizes_B, task.width, ties=task.ties, tiebreak_BK=tiebreak_BK))

    def _step_pick(self, actions: object) -> Step:
        """One pick each: the reward is what the pick added to the worth of the list completed in incoming order.

        Before the first pick nothing has been paid, so the first reward holds the incoming order's own worth and the
        rewards of an episode sum to the worth of its final ranking, or to the invalid score after an illegal pick.
        """
        sizes_B = self.task.requests.sizes_B.take(self.rows_B)
        open_BK = self._mask(None).view(np.bool_)
        picks_B, verdicts_B = read_picks(actions, open_BK, sizes_B)
        legal_E = np.flatnonzero(verdicts_B == _OK)
        picks_E, counts_E = picks_B[legal_E], self._counts_B[legal_E]
        place_BK = self._place_BK.copy()
        place_BK[legal_E, picks_E] = counts_E
        completed_BK = np.argsort(place_BK, axis=1, kind="stable")
        slates = self.task.requests.slates.take(self.rows_B)
        score = self.task.scorer.score(ReadAnswers(completed_BK, verdicts_B), slates)
        ended_E = np.flatnonzero((verdicts_B != _OK) | (self._counts_B + 1 == sizes_B))
        judgement: Columns = {}
        if len(ended_E):
            parts = {name: part_B[ended_E] for name, part_B in score.parts.items()}
            final = ReadAnswers(completed_BK[ended_E], verdicts_B[ended_E])
            judgement = self._judgement(final, slates.take(ended_E), parts, score.failed_B[ended_E])
        # From here on nothing fails: a reward or metric that raises leaves the episodes as they were.
        self._place_BK = place_BK
        self.picked_BK[legal_E, counts_E] = picks_E
        self._counts_B[legal_E] += 1
        self.running_B[ended_E] = False
        reward_B = score.total_B - self.paid_B
        self.paid_B = score.total_B.copy()
        return Step(reward_B, ended_E, self.info(ended_E) | judgement)

    def _judgement(
        self, read: ReadAnswers, slates: Slates, parts: Mapping[str, FloatArray], failed_E: BoolArray
    ) -> Columns:
        """What is said of final answers, row for row of `slates`."""
        rankings_EK, verdicts_E = read.rankings_BK, read.verdicts_B
        valid_E = verdicts_E == _OK
        sizes_E = slates.sizes_B
        shown_EK = valid_E[:, None] & (np.arange(self.task.width) < sizes_E[:, None])
        return {
            "verdict": verdicts_E.astype(np.int64),
            "valid": valid_E,
            "failed": failed_E,
            "identity": valid_E & is_identity(rankings_EK, sizes_E),
            "ranking": np.where(shown_EK, rankings_EK, PAD),
            "reward_parts": {name: part_E.copy() for name, part_E in parts.items()},
            "metrics": {
                name: metric(rankings_EK, slates, verdicts_B=verdicts_E, context=read.context)
                for name, metric in self.task.metrics.items()
            },
        }

    def _mask(self, which_E: IntArray | None) -> npt.NDArray[np.int8]:
        """Which candidates may be picked next, int8 [., K]; all zero once the episode has ended."""
        place_EK = self._place_BK if which_E is None else self._place_BK[which_E]
        running_E = self.running_B if which_E is None else self.running_B[which_E]
        width = self.task.width
        return ((place_EK >= width) & (place_EK < 2 * width) & running_E[:, None]).astype(np.int8)
