"""Shared beginnings read once: requests a second against `model.generate` of transformers, and what a constraint adds.

    python benchmarks/prefix_decoding.py            # writes docs/results/prefix-decoding.json
    python benchmarks/prefix_decoding.py --dry-run  # prints only

Needs the `language` extra. Both decode greedily the same prompts with the same random weights, float32 on one CPU
thread, to the same number of new tokens, and must write the same ones, or the benchmark fails; ours also gives the
log-probability of each. All requests of a case are one batch for both. Three cases: eight samples of one prompt; a list
that is offered to many users, so that instructions and candidates are shared and histories are not; and prompts that
share nothing, which shows what our loop itself costs or wins. A ratio is of requests a second, ours over theirs, in the
same repeat. Two sizes of model: what is saved is reading, whose part of the time grows with the model.

A constraint (`constrained=True`, only legal rankings can be written) is timed by the clock around its own calls, the
making of its tables for the batch among them, over the tokens that were written; beside it what a token takes, reading
included, when the same prompts are answered freely to the same length.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from record import finish, options_of, spread

os.environ["HF_HUB_OFFLINE"] = "1"

from remarked import SLATE_SIZE, TINY, model_for, requests_of, tokenizer_for
from stopwatch import Stopwatch

from rerank_env.agents.language.constraints import AnswerConstraint
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.generation import generate
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data import Requests
from rerank_env.prompts import PromptWriter

NEW_TOKENS = 48
SAMPLES = 8
LONGEST = {"list": 48, "tagged-list": 96}
"""Tokens of a constrained answer at most, by text format."""

READABLE = PromptWriter("tagged-list", prompt="3-index-steps")


@dataclass(frozen=True)
class Size:
    """A model with random weights, and how many requests are answered together."""

    width: int
    layers: int
    heads: int
    rows: int

    @property
    def name(self) -> str:
        """What stands in the record."""
        return f"width {self.width}, {self.layers} layers"


SIZES = (Size(TINY.model.width, TINY.model.layers, TINY.model.heads, rows=32), Size(576, 12, 9, rows=8))


@dataclass(frozen=True)
class Case:
    """Prompts in tokens, and how many samples of each."""

    name: str
    prompts: list[list[int]]
    samples: int = 1


def cases(policy: LanguagePolicy, requests: Requests, rows: int) -> list[Case]:
    """What is decoded, for so many rows at once."""

    def ids(writer: PromptWriter, some: Requests) -> list[list[int]]:
        return policy.prompt_ids(writer.write(some))

    users = requests.take(np.arange(rows))
    offered = requests.take(np.zeros(rows, dtype=np.int64))
    offered = replace(offered, history_BH=users.history_BH, feedback_BH=users.feedback_BH)
    return [
        Case("samples of one prompt", ids(READABLE, requests.take([0])), SAMPLES),
        Case("one list for many users", ids(READABLE, offered)),
        Case("nothing shared", ids(PromptWriter("tagged-list", prompt="compact"), users)),
    ]


def ours(policy: LanguagePolicy, case: Case, tokens: int) -> list[list[int]]:
    """So many new tokens behind every prompt, whatever they are."""
    decoding = Decoding(max_tokens=tokens, batch_size=len(case.prompts) * case.samples)
    return generate(policy.model, policy.pad_id, [], case.prompts, decoding=decoding, n=case.samples).ids


def theirs(policy: LanguagePolicy, case: Case, tokens: int) -> list[list[int]]:
    """The same by `model.generate`."""
    from transformers import GenerationConfig

    rows = [prompt for prompt in case.prompts for _ in range(case.samples)]
    width = max(map(len, rows))
    ids = torch.tensor([[policy.pad_id] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    told = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=policy.pad_id, eos_token_id=None)
    out: torch.Tensor = policy.model.generate(input_ids=ids, attention_mask=mask, generation_config=told)
    found: list[list[int]] = out[:, width:].tolist()
    return found


def seconds_of(decode: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    """How long it takes, and what is written."""
    start = time.perf_counter()
    written = decode()
    return time.perf_counter() - start, written


def compared(policy: LanguagePolicy, case: Case, repeats: int) -> dict[str, Any]:
    """Requests a second of both, and their ratio, over repeats."""
    ours(policy, case, 2), theirs(policy, case, 2)
    speeds: dict[str, list[float]] = {"requests_per_second": [], "transformers_requests_per_second": []}
    for _ in range(repeats):
        mine, written = seconds_of(partial(ours, policy, case, NEW_TOKENS))
        rival, expected = seconds_of(partial(theirs, policy, case, NEW_TOKENS))
        if written != expected:
            raise SystemExit(f"{case.name}: the two did not write the same tokens, so their speeds say nothing")
        for name, seconds in zip(speeds, (mine, rival), strict=True):
            speeds[name].append(len(case.prompts) / seconds)
    mine_s, theirs_s = speeds.values()
    speeds["ratio"] = [one / other for one, other in zip(mine_s, theirs_s, strict=True)]
    speeds["prompt_tokens"] = [float(np.mean([len(prompt) for prompt in case.prompts]))]
    return {name: spread(values) for name, values in speeds.items()}


def constrained(policy: LanguagePolicy, requests: Requests, text_format: str, repeats: int) -> dict[str, Any]:
    """What the constraint takes a token, over repeats, beside a token that is written freely."""
    prompts = policy.prompt_ids(PromptWriter(text_format, prompt="compact").write(requests))
    sizes, longest = requests.sizes_B.tolist(), LONGEST[text_format]
    decoding = Decoding(max_tokens=longest, batch_size=len(prompts))
    told: dict[str, Any] = {"max_tokens": longest, "eos_ids": policy.eos_ids}

    def answered() -> tuple[float, list[list[int]]]:
        stopwatch = Stopwatch()
        with stopwatch.of("constraint"):
            constraint: Any = AnswerConstraint(policy.tokenizer, text_format, sizes, **told)
        for name in ("start", "after", "masked"):
            setattr(constraint, name, stopwatch.around(getattr(constraint, name), "constraint"))
        made = generate(policy.model, policy.pad_id, policy.eos_ids, prompts, decoding=decoding, constraint=constraint)
        assert all(made.finished), "every constrained answer comes to its end"
        return stopwatch.seconds["constraint"], made.ids

    answered()  # the tokenizer's spelling is found once
    found: dict[str, list[float]] = {"constraint_microseconds_per_token": [], "free_microseconds_per_token": []}
    for _ in range(repeats):
        seconds, written = answered()
        found["constraint_microseconds_per_token"].append(1e6 * seconds / sum(map(len, written)))
        length = max(map(len, written))
        seconds, _ = seconds_of(partial(ours, policy, Case(text_format, prompts), length))
        found["free_microseconds_per_token"].append(1e6 * seconds / (length * len(prompts)))
    extra, free = found.values()
    found["overhead_percent"] = [100 * one / other for one, other in zip(extra, free, strict=True)]
    return {name: spread(values) for name, values in found.items()}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of the small model; the large one has three fifths")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the models, the small one first")
    parser.add_argument("--rows", type=int, default=None, help="requests answered together, for a quick look")
    options = parser.parse_args()

    torch.set_num_threads(1)
    requests = requests_of(256, seed=0)
    compact = [PromptWriter(text_format, prompt="compact") for text_format in LONGEST if text_format != "list"]
    tokenizer = tokenizer_for(requests, READABLE, *compact)
    rows: list[dict[str, Any]] = []
    for size in SIZES[: options.sizes]:
        model = model_for(tokenizer, width=size.width, layers=size.layers, heads=size.heads)
        model.generation_config.eos_token_id = None  # everything is written to the same length
        policy = LanguagePolicy(model, tokenizer, READABLE)
        count = options.rows or size.rows
        repeats = options.repeats if size is SIZES[0] else max(1, options.repeats * 3 // 5)
        for case in cases(policy, requests, count):
            samples = f"{case.samples} " if case.samples > 1 else ""
            rows.append({"name": f"{samples}{case.name}, {size.name}", "metrics": compared(policy, case, repeats)})
            show(rows[-1])
        some = requests.take(np.arange(count))
        for text_format in LONGEST:
            metrics = constrained(policy, some, text_format, repeats)
            rows.append({"name": f"constrained {text_format}, {size.name}", "metrics": metrics})
            show(rows[-1])
    shared = [
        row["metrics"]["ratio"]["low"] for row in rows if "ratio" in row["metrics"] and "nothing" not in row["name"]
    ]
    finish(
        options,
        "prefix-decoding",
        command="python benchmarks/prefix_decoding.py",
        data=f"synthetic, {SLATE_SIZE} candidates, random weights, {NEW_TOKENS} new tokens, one thread; "
        + "; ".join(f"{size.name}: {size.rows} requests together" for size in SIZES),
        n=sum(size.rows for size in SIZES),
        seeds=[0],
        rows=rows,
        goal="where prompts share their beginning, more requests a second than model.generate in every repeat, with "
        "the same tokens; ranges are over repeats",
        met=min(shared) > 1.0,
    )


def show(row: dict[str, Any]) -> None:
    """Print one row."""
    print(row["name"])
    for name, numbers in row["metrics"].items():
        print(f"  {name}: {numbers['value']:.4g} [{numbers['low']:.4g}, {numbers['high']:.4g}]", flush=True)


if __name__ == "__main__":
    main()
