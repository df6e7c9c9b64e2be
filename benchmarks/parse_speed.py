"""Completions parsed a second on one core, in every format, beside what people write by hand.

    python benchmarks/parse_speed.py            # writes docs/results/parse-speed.json
    python benchmarks/parse_speed.py --dry-run  # prints only

The same ten-item answers in every format, and one format by semantic IDs too; answers in tags have some 300 characters
of reasoning before them, JSON answers an explanation of the same length. The rivals read numbers only:

- checks: `json.loads` of the list or object and the checks that make it a permutation; for arrows and tags, a regular
  expression first. As strict as such code usually is, which is less than ours.
- scan: all numbers in the text, less the unknown and the repeated, plus the missing, as LLM re-rankers are commonly
  read. It repairs, so it does less than a parser has to: it never says that an answer is wrong.

A repeat goes from one reader to the next several times, so that a slow spell of the machine hits all of them. Rates are
by processor time, because all of them are one thread that waits for nothing. Before anything is timed, every reader
must return the right rankings.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
from record import finish, options_of, spread

from rerank_env.rewards import parse_batch
from rerank_env.rewards.formats import FORMATS, answer_text, has_reasoning
from rerank_env.rewards.rankings import random_rankings

GOAL_RATE = 100_000.0
GOAL_READER = "list: ours"
SEED = 0
SIZE = 10
SLICES = 4
"""How often a repeat goes from one reader to the next."""

REASONING = "The user watches slow dramas and the odd thriller; the second and the seventh fit, the rest is noise. " * 3
IDS = [f"<a_{7 * index}><b_{40 + index}><c_{200 - index}>" for index in range(SIZE)]

Rankings = npt.NDArray[np.int64]
Reader = Callable[[], Rankings]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BRACKETED = re.compile(r"\[(\d+)\]")
_NUMBER = re.compile(r"\d+")


def ours(texts: Sequence[str], text_format: str, ids: Sequence[str] | None = None) -> Rankings:
    sizes_B = np.full(len(texts), SIZE)
    rows = None if ids is None else [ids] * len(texts)
    return parse_batch(texts, sizes_B, text_format=text_format, ids=rows).rankings_BK


def checks(texts: Sequence[str], text_format: str) -> Rankings:
    rankings = np.full((len(texts), SIZE), -1, dtype=np.int64)
    expected = list(range(1, SIZE + 1))
    for row, text in enumerate(texts):
        if text_format.startswith("tagged-"):
            found = _ANSWER.search(text)
            if found is None:
                continue
            text = found[1]
        try:
            if text_format.endswith("arrows"):
                numbers = [int(number) for number in _BRACKETED.findall(text)]
            else:
                numbers = json.loads(text)
                if text_format.endswith("json"):
                    numbers = numbers["ranking"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(numbers, list) and all(type(number) is int for number in numbers) and sorted(numbers) == expected:
            rankings[row] = numbers
            rankings[row] -= 1
    return rankings


def scan(texts: Sequence[str], _: str) -> Rankings:
    rankings = np.empty((len(texts), SIZE), dtype=np.int64)
    for row, text in enumerate(texts):
        numbers = dict.fromkeys(int(number) - 1 for number in _NUMBER.findall(text))
        known = [number for number in numbers if 0 <= number < SIZE]
        rankings[row] = known + [number for number in range(SIZE) if number not in numbers]
    return rankings


def readers(rankings_BK: Rankings) -> dict[str, Reader]:
    """All readers, each with the texts it reads."""

    def bound(read: Callable[..., Rankings], *arguments: object) -> Reader:
        return lambda: read(*arguments)

    def written(text_format: str, ids: Sequence[str] | None = None) -> list[str]:
        reasoning = REASONING if has_reasoning(text_format) else ""
        if text_format == "tagged-json":  # with both a block before and an explanation inside
            inside = written("json")
            return [f"<think>{REASONING}</think>\n<answer>{text}</answer>" for text in inside]
        return [
            answer_text(ranking, text_format=text_format, ids=ids, reasoning=reasoning)
            for ranking in rankings_BK.tolist()
        ]

    found: dict[str, Reader] = {}
    for text_format in FORMATS:
        texts = written(text_format)
        for read in (ours, checks, scan):
            found[f"{text_format}: {read.__name__}"] = bound(read, texts, text_format)
    found["tagged-list by ID: ours"] = bound(ours, written("tagged-list", IDS), "tagged-list", IDS)
    return found


def rates(found: dict[str, Reader], *, count: int, repeats: int, seconds: float) -> dict[str, list[float]]:
    """Completions a second of processor time, one number a repeat, for every reader."""
    measured: dict[str, list[float]] = {name: [] for name in found}
    for repeat in range(repeats):
        spent, done = dict.fromkeys(found, 0.0), dict.fromkeys(found, 0)
        for _ in range(SLICES):
            for name, read in found.items():
                began = time.process_time()
                while not done[name] or time.process_time() - began < seconds / SLICES:
                    read()
                    done[name] += count
                spent[name] += time.process_time() - began
        for name in found:
            measured[name].append(done[name] / spent[name])
        print(f"repeat {repeat + 1}: {GOAL_READER} {measured[GOAL_READER][-1]:,.0f} completions a second")
    return measured


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--completions", type=int, default=2_000, help="in a batch")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each reader and repeat")
    options = parser.parse_args()

    rankings_BK = random_rankings(np.full(options.completions, SIZE), SIZE, np.random.default_rng(SEED))
    found = readers(rankings_BK)
    for name, read in found.items():
        if (read() != rankings_BK).any():
            raise SystemExit(f"{name!r} does not read the answers back; run the tests before the benchmark")
    measured = rates(found, count=options.completions, repeats=options.repeats, seconds=options.seconds)
    rows = []
    for name, values in measured.items():
        metrics = {"completions_per_second": spread(values)}
        text_format, reader = name.split(": ")
        for rival in ("checks", "scan") if reader == "ours" and f"{text_format}: checks" in measured else ():
            pairs = zip(values, measured[f"{text_format}: {rival}"], strict=True)
            metrics[f"ratio_to_{rival}"] = spread([one / other for one, other in pairs])
        rows.append({"name": name, "metrics": metrics})
        print(
            f"{name:28s} {median(values):9,.0f}", *(f"{key} {m['value']:.2f}" for key, m in list(metrics.items())[1:])
        )
    met = min(measured[GOAL_READER]) >= GOAL_RATE
    print(f"goal {GOAL_RATE:,.0f} completions a second for lists in every repeat: {'met' if met else 'missed'}")
    finish(
        options,
        "parse-speed",
        command="python benchmarks/parse_speed.py",
        data=f"random rankings of {SIZE} candidates, written in every format",
        n=options.completions,
        seeds=[SEED],
        rows=rows,
        goal=f"in every repeat, at least {GOAL_RATE:,.0f} completions a second of one core for lists of {SIZE}; "
        "value is the median, low and high the range over repeats",
        met=met,
    )


if __name__ == "__main__":
    main()
