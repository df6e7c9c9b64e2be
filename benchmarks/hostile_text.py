"""Hostile completions through the parser and the rewards: none crashes, none is paid, and memory stays flat.

    python benchmarks/hostile_text.py                # a million; writes docs/results/hostile-text.json
    python benchmarks/hostile_text.py --n 20000 --dry-run

The completions are those of `hostile_answers.py`, in batches that go round all formats, by number and by semantic ID.
Whether one is a valid answer is for `strict_reader.py` to say, which shares no code with the parser. Three things are
counted: completions on which the two disagree (validity, ranking or reasoning); completions that are not valid but
scored above the declared invalid score of a reward; and how much resident memory grows between the second and the last
tenth of the run. A crash ends the run with nothing recorded. The slowest batch says whether any text takes the parser
more than linear time.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from hostile_answers import Asked, hostile_answers
from record import finish, options_of, spread
from strict_reader import strictly_read

from rerank_env.data import load
from rerank_env.prompts import build_prompts
from rerank_env.rewards import (
    Slates,
    Verdict,
    gain,
    gr2,
    gr2_hardened,
    gr2_industrial,
    gr2_industrial_hardened,
    naive,
    parse_batch,
)
from rerank_env.rewards.arrays import BoolArray
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.parsing import MAX_CHARS, ParsedBatch

REWARDS = (
    naive(),
    gr2(),
    gr2(exemption="literal"),
    gr2_industrial(),
    gr2_hardened(),
    gr2_industrial_hardened(),
    gain(),
)
SIZES = (2, 3, 5, 10, 20)
SEED = 0
BATCH = 1_000
PROMPTS = 64
FLAT_MIB = 8.0
"""More growth than that between the second and the last tenth of a million completions would be a leak."""


@dataclass
class Tally:
    """What became of the completions in one format."""

    completions: int = 0
    valid: int = 0
    disagreements: int = 0
    overpaid: int = 0
    microseconds: list[float] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)


def batches(n: int, rng: np.random.Generator) -> Iterator[Asked]:
    """What is asked, batch by batch: formats in turn, by number and by ID."""
    data = load("synthetic")
    prompts = {form: build_prompts(data, range(PROMPTS), text_format=form) for form in FORMATS}
    for start in range(0, n, BATCH):
        turn = start // BATCH
        form, with_ids = FORMATS[turn % len(FORMATS)], turn // len(FORMATS) % 2 == 1
        sizes = rng.choice(SIZES, size=min(BATCH, n - start)).tolist()
        names = [
            [f"<a_{row % 7}><b_{index}><c_{row}>" if with_ids else str(index + 1) for index in range(size)]
            for row, size in enumerate(sizes)
        ]
        yield Asked(form, names, with_ids, prompts[form])


def slates_of(asked: Asked, rng: np.random.Generator) -> Slates:
    """Graded gains, a third of them relevant."""
    return Slates.of([rng.choice((0, 0, 0, 0, 1, 3), size=len(names)).tolist() for names in asked.names])


def compare(texts: Sequence[str | bytes], asked: Asked, parsed: ParsedBatch, *, tally: Tally) -> BoolArray:
    """Count where the parser and the second reader differ; which completions are valid by the second reader [B]."""
    valid_B = np.zeros(len(texts), dtype=np.bool_)
    for row, (text, names) in enumerate(zip(texts, asked.names, strict=True)):
        numbered = {name: index for index, name in enumerate(names)}
        expected = strictly_read(text, numbered, asked.text_format, with_ids=asked.with_ids, max_chars=MAX_CHARS)
        valid_B[row] = expected is not None
        got = (parsed.rankings_BK[row, : len(names)].tolist(), parsed.reasonings[row])
        tally.disagreements += got != (expected or ([-1] * len(names), ""))
    tally.disagreements += int((valid_B != (parsed.verdicts_B == Verdict.OK)).sum())
    return valid_B


def run(n: int, seed: int) -> tuple[dict[str, Tally], list[float]]:
    """A tally for each format, and the resident memory in MiB after each batch."""
    rng = np.random.default_rng(seed)
    tallies: dict[str, Tally] = defaultdict(Tally)
    memory = []
    for asked in batches(n, rng):
        tally = tallies[asked.text_format]
        texts, slates = hostile_answers(asked, rng), slates_of(asked, rng)
        began = time.process_time()
        parsed = parse_batch(
            texts,
            slates.sizes_B,
            text_format=asked.text_format,
            width=slates.width,
            ids=asked.names if asked.with_ids else None,
        )
        tally.microseconds.append(1e6 * (time.process_time() - began) / len(texts))
        valid_B = compare(texts, asked, parsed, tally=tally)
        overpaid_B = np.zeros(len(texts), dtype=np.bool_)
        for reward in REWARDS:
            total_B = reward(parsed.rankings_BK, slates, verdicts_B=parsed.verdicts_B)
            overpaid_B |= ~valid_B & ~(total_B <= reward.invalid)
        tally.overpaid += int(overpaid_B.sum())
        tally.completions += len(texts)
        tally.valid += int(valid_B.sum())
        tally.verdicts.update(Verdict(code).name for code in parsed.verdicts_B.tolist())
        memory.append(resident_mib())
    return dict(tallies), memory


def resident_mib() -> float:
    """Resident memory of this process in MiB, as Linux counts it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) / 1024
    raise SystemExit("this system does not say how much memory a process holds; run the benchmark on Linux")


def growth_mib(memory: Sequence[float]) -> float:
    """Growth from the second tenth, when caches are filled, to the last; 0 where it shrank."""
    tenth = max(len(memory) // 10, 1)
    return max(median(memory[-tenth:]) - median(memory[tenth : 2 * tenth] or memory), 0.0)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--n", type=int, default=1_000_000, help="completions")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()

    tallies, memory = run(options.n, options.seed)
    growth = growth_mib(memory)
    rows = []
    for form, tally in sorted(tallies.items()):
        print(
            f"{form:14s} {tally.completions:,} completions, {tally.valid:,} valid, {tally.disagreements} disagreements,"
        )
        print(f"{'':14s} {tally.overpaid} overpaid; {dict(tally.verdicts.most_common())}")
        counts = {"completions": tally.completions, "valid": tally.valid}
        counts |= {"disagreements": tally.disagreements, "overpaid": tally.overpaid}
        metrics = {name: spread([count]) for name, count in counts.items()}
        rows.append({"name": form, "metrics": metrics | {"microseconds_to_parse": spread(tally.microseconds)}})
    rows.append({"name": "all", "metrics": {"resident_mib": spread(memory), "growth_mib": spread([growth])}})
    print(f"resident memory {min(memory):.0f} to {max(memory):.0f} MiB, growth {growth:.1f} MiB")
    met = growth <= FLAT_MIB and not any(tally.disagreements or tally.overpaid for tally in tallies.values())
    print("met" if met else "missed")
    finish(
        options,
        "hostile-text",
        command="python benchmarks/hostile_text.py",
        data="generated completions in every format, by number and by semantic ID; prompts of the synthetic data",
        n=options.n,
        seeds=[options.seed],
        rows=rows,
        goal="no crash, no disagreement with a second strict reader, no invalid completion above a reward's declared "
        f"invalid score, and resident memory that grows by {FLAT_MIB:.0f} MiB at most; times and memory: value is the "
        "median, low and high the range over batches",
        met=met,
    )


if __name__ == "__main__":
    main()
