"""The Diffusion-GR2 recipe, size tiny, on Amazon Beauty: the paper's table, with intervals, seeds and faults.

Run: RERANK_DATA=... python benchmarks/diffusion_gr2.py       (Ctrl-C at any time, it goes on)

The table is that of `rerank recipe diffusion-gr2 --data amazon-beauty --size tiny`, which this runs or goes on with in
`--work` and reads; stages of GR2 are taken over from the run in `--gr2`. All rows rank the test requests whose target
the first stage (SASRec, K = 10) listed, each read once, and the same with the candidates shuffled: the incoming order,
random and oracle; the autoregressive teacher, which is GR2 after reinforcement; the same weights decoded in blocks
(naive conversion); conversion fine-tuning, distillation and reinforcement on top. Each is decoded by the rule saved
with it. An answer that is no ranking scores 0; where there are any, a second row has the incoming order in their place.

What is wrong with answers before any repair is counted by `rerank_env.rewards.faults`; forwards are the model's passes
that an answer takes when it is written alone, those that read its prompt left out. "gap in recall@1": the part of the
way from the incoming order to the teacher that is recovered, the ratio of two differences of means that are resampled
together; left out where the interval of that way does not lie above zero. Intervals resample users (paired percentile
bootstrap, 2,000 resamples); the row of reinforcement is the mean over seeds.

Goal: after fine-tuning at least 99 % of the answers are rankings before any repair, and after reinforcement at least
94 % of the gap in recall@1 is recovered (the share in the paper, arXiv 2607.01170), over three seeds or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_rows import Numbers, evaluated, point, row_of, say_rows, told
from record import finish, options_of

from rerank_env.training.recipes import RunFolder, recipe_of
from rerank_env.training.recipes.diffusion_settings import OPD, RL
from rerank_env.training.recipes.diffusion_table import METRIC, TUNED, names_of

DATA = "amazon-beauty"
REINFORCED = names_of(OPD)[RL]
LEAST_VALID, LEAST_GAP, LEAST_SEEDS = 0.99, 0.94, 3
GAP = f"gap in {METRIC}"


def diffusion_row(name: str, row: Mapping[str, Any], *, rival: str | None) -> dict[str, Any]:
    """A row of the recipe's table in the form of a record, with what block diffusion has besides."""
    made = row_of(name, row, rival=rival)
    metrics: dict[str, Numbers] = made["metrics"]
    metrics |= {rate: point(value) for rate, value in row.get("faults", {}).items()}
    counts = {"forwards an answer": "forwards", "tokens a forward": "tokens_per_forward"}
    metrics |= {metric: point(row[key]) for metric, key in counts.items() if row.get(key) is not None}
    gap = row.get("gap")
    if gap is not None and gap["value"] is not None:
        metrics[GAP] = told(gap)
    return made


def is_met(rows: Mapping[str, Mapping[str, Numbers]]) -> bool:
    """Whether both goals are reached; a gap that is not defined is not recovered."""
    reinforced = rows[REINFORCED]
    return (
        rows[TUNED]["valid"]["value"] >= LEAST_VALID
        and GAP in reinforced
        and reinforced[GAP]["value"] >= LEAST_GAP
        and reinforced["seeds"]["value"] >= LEAST_SEEDS
    )


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs"), help="where the recipe keeps its stages")
    parser.add_argument("--gr2", type=Path, help="a GR2 run to take stages from (default: the one in --work)")
    options = parser.parse_args()
    changes = [] if options.gr2 is None else [f"gr2={options.gr2}"]
    recipe = recipe_of("diffusion-gr2", data=DATA, size="tiny", changes=changes)
    folder = RunFolder(options.work / f"diffusion-gr2-{DATA}-tiny")
    table = evaluated(recipe, folder)
    rows = [diffusion_row(name, row, rival=table["rival"]) for name, row in table["rows"].items()]
    say_rows(rows)
    finish(
        options,
        "diffusion-gr2-beauty",
        command="RERANK_DATA=... python benchmarks/diffusion_gr2.py",
        data=f"{DATA}, lists of ten by SASRec, {table['n_requests']} test requests of {table['asked']} targets",
        n=table["n_requests"],
        seeds=folder.described()["settings"]["seeds"],
        rows=rows,
        goal=f"{TUNED}: valid before repair >= {LEAST_VALID}; {REINFORCED}: at least {LEAST_GAP:.0%} of the "
        f"{GAP} recovered, over {LEAST_SEEDS} seeds or more",
        met=is_met({row["name"]: row["metrics"] for row in rows}),
    )


if __name__ == "__main__":
    main()
