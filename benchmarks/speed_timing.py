"""Who writes how fast, alone and in batches; for benchmarks/diffusion_speed.py.

May import torch, numpy and the layers below `rerank_env.training`. Suffixes: `_Q` rounds, `_R` resamples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from recipe_rows import Numbers, point
from record import spread
from speed_quality import TEACHER
from stopwatch import Stopwatch

from rerank_env.agents.block_diffusion import sampling
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.block_diffusion.rules import rule_of
from rerank_env.agents.language import generation
from rerank_env.agents.language.policy import LanguagePolicy

SATURATED = 0.95
"""The share of the most tokens a second from which on a batch is said to saturate."""

LEAST_SWEPT = 16
"""Requests that a size of batch is timed on at least."""

RESAMPLES = 2000
READING = "reading prompts"


@dataclass(frozen=True)
class Wrote:
    """What was written to some prompts: tokens, passes of the model behind the prompts, and the time that it took."""

    completions: list[list[int]]
    forwards: int
    seconds: float
    reading: float

    @property
    def tokens(self) -> int:
        """Tokens of all completions, ends of text included."""
        return sum(map(len, self.completions))


class Machine:
    """The teacher and the students, with a clock around what they write."""

    def __init__(self, teacher: LanguagePolicy, students: Sequence[BlockDiffusionPolicy]) -> None:
        self.teacher, self.students, self.stopwatch = teacher, list(students), Stopwatch()

    def _finished(self) -> None:
        if self.teacher.model.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Inside, the reading of prompts has a clock of its own."""

        def apart(function: Any) -> Any:
            def whole(*given: Any, **named: Any) -> Any:
                made = function(*given, **named)
                self._finished()
                return made

            return self.stopwatch.around(whole, READING)

        parts: list[tuple[Any, str, Any]] = [
            (module, name, getattr(module, name))
            for module in (generation, sampling)
            for name in ("in_batches", "read_batch")
        ]
        for module, name, function in parts:
            setattr(module, name, apart(function))
        try:
            yield
        finally:
            for module, name, function in parts:
                setattr(module, name, function)

    def write(self, setting: str, prompts: Sequence[list[int]], *, student: int = 0) -> Wrote:
        """All prompts in one batch, by the teacher, or by a decoding rule of the student with that number."""
        read, start = self.stopwatch.seconds[READING], time.perf_counter()
        if setting == TEACHER:
            one, greedy = self.teacher, replace(self.teacher.decoding, batch_size=len(prompts))
            completions = generation.generate(one.model, one.pad_id, one.eos_ids, prompts, decoding=greedy).ids
            forwards = max(map(len, completions)) - 1  # the first token needs none behind the prompt
        else:
            own = self.students[student % len(self.students)]
            made = sampling.sample(
                own.model, own.pad_id, own.eos_ids, own.mask_id, prompts, blocks=own.blocks, rule=rule_of(setting),
                max_tokens=own.decoding.max_tokens, end=own.decoding.end, max_rounds=own.decoding.max_rounds,
                batch_size=len(prompts),
            )  # fmt: skip
            completions, forwards = [row.tokens for row in made.trajectories], made.forwards
        self._finished()
        seconds = time.perf_counter() - start
        return Wrote(completions, forwards, seconds, self.stopwatch.seconds[READING] - read)

    def texts(self, setting: str, prompts: Sequence[list[int]], *, student: int, batch: int) -> list[str]:
        """The answers to all prompts, so many at a time."""
        chunks = [prompts[at : at + batch] for at in range(0, len(prompts), batch)]
        made = [tokens for some in chunks for tokens in self.write(setting, some, student=student).completions]
        return (self.teacher if setting == TEACHER else self.students[student]).texts(made)


def over_rounds(values: Sequence[float]) -> Numbers:
    """The mean over rounds with its 95 % interval, rounds resampled."""
    values_Q = np.asarray(values, dtype=np.float64)
    drawn_RQ = np.random.default_rng(0).integers(len(values_Q), size=(RESAMPLES, len(values_Q)))
    low, high = np.quantile(values_Q[drawn_RQ].mean(axis=1), [0.025, 0.975])
    mean = float(values_Q.mean())
    return {"value": mean, "low": min(mean, float(low)), "high": max(mean, float(high))}


def alone(
    machine: Machine, settings: Sequence[str], rounds: Sequence[Sequence[list[int]]]
) -> list[dict[str, list[Wrote]]]:
    """Batch 1: for every round what each setting wrote to each of its requests. Whose turn is first goes around."""
    machine.write(settings[0], rounds[0][:1]), machine.write(settings[1], rounds[0][:1])
    found: list[dict[str, list[Wrote]]] = []
    for number, prompts in enumerate(rounds):
        told: dict[str, list[Wrote]] = {setting: [] for setting in settings}
        for turn, prompt in enumerate(prompts):
            first = turn % len(settings)
            for setting in (*settings[first:], *settings[:first]):
                told[setting].append(machine.write(setting, [prompt], student=number))
        found.append(told)
    return found


def timings(rounds: Sequence[dict[str, list[Wrote]]], setting: str) -> dict[str, Numbers]:
    """How fast a setting is at batch 1, as multiples of the teacher's."""

    def per_second(wrote: Sequence[Wrote], *, behind: bool) -> float:
        return sum(one.tokens for one in wrote) / sum(one.seconds - behind * one.reading for one in wrote)

    def latency(wrote: Sequence[Wrote], share: float) -> float:
        return float(np.quantile([one.seconds for one in wrote], share))

    pairs = [(told[setting], told[TEACHER]) for told in rounds]
    wrote = [one for told in rounds for one in told[setting]]
    answers, tokens, forwards = len(wrote), sum(one.tokens for one in wrote), sum(one.forwards for one in wrote)
    return {
        "tokens/s": over_rounds([per_second(a, behind=False) / per_second(b, behind=False) for a, b in pairs]),
        "decoding tokens/s": over_rounds([per_second(a, behind=True) / per_second(b, behind=True) for a, b in pairs]),
        "median latency": over_rounds([latency(a, 0.5) / latency(b, 0.5) for a, b in pairs]),
        "p90 latency": over_rounds([latency(a, 0.9) / latency(b, 0.9) for a, b in pairs]),
        "tokens an answer": point(tokens / answers),
        "forwards an answer": point(forwards / answers),
        "tokens a forward": point(tokens / forwards),
    }


Swept = dict[int, list[dict[str, tuple[float, float]]]]
"""For every size of batch and every repeat, tokens and requests a second of the teacher and of a setting."""


def together(
    machine: Machine, setting: str, prompts: Sequence[list[int]], batches: Sequence[int], repeats: int
) -> Swept:
    """Batches of growing size, each repeat of other requests, the same for both."""
    found: Swept = {}
    for size in batches:
        count = max(size, LEAST_SWEPT // size * size)
        found[size] = []
        for repeat in range(repeats):
            some = [prompts[(repeat * count + at) % len(prompts)] for at in range(count)]
            rates: dict[str, tuple[float, float]] = {}
            for who in (TEACHER, setting):
                wrote = [machine.write(who, some[at : at + size], student=repeat) for at in range(0, count, size)]
                seconds = sum(one.seconds for one in wrote)
                rates[who] = sum(one.tokens for one in wrote) / seconds, count / seconds
            found[size].append(rates)
    return found


def swept(found: Swept, setting: str) -> list[dict[str, Any]]:
    """The rows of a sweep over batches, as multiples of the teacher's rates at the first size, and what it comes to."""
    units = np.median([rates[TEACHER] for rates in found[min(found)]], axis=0)
    rows: list[dict[str, Any]] = []
    for size, repeats in found.items():
        metrics: dict[str, Numbers] = {}
        for which, rate in enumerate(("tokens/s", "requests/s")):
            metrics[f"ratio of {rate}"] = spread([rates[setting][which] / rates[TEACHER][which] for rates in repeats])
            for who, name in ((TEACHER, "autoregressive"), (setting, "block diffusion")):
                metrics[f"{name} {rate}"] = spread([float(rates[who][which] / units[which]) for rates in repeats])
        rows.append({"name": f"batch {size}", "metrics": metrics})
    sizes, summary = list(found), {}
    most: list[float] = []
    for name in ("block diffusion", "autoregressive"):
        rates = [row["metrics"][f"{name} tokens/s"]["value"] for row in rows]
        most.append(max(rates))
        enough = next(size for size, rate in zip(sizes, rates, strict=True) if rate >= SATURATED * max(rates))
        summary[f"saturating batch, {name}"] = point(enough)
    ratios = [row["metrics"]["ratio of tokens/s"]["value"] for row in rows]
    ahead = [size for number, size in enumerate(sizes) if min(ratios[: number + 1]) > 1]
    summary["ratio of the most tokens/s"] = point(most[0] / most[1])
    summary["last batch with an advantage"] = point(max(ahead, default=0))
    return [*rows, {"name": "over batches", "metrics": summary}]
