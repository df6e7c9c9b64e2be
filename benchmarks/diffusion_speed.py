"""How fast block diffusion writes against the autoregressive teacher that it was made from, and how well.

    RERANK_DATA=... python benchmarks/diffusion_speed.py TEACHER STUDENT [STUDENT ...]
    ... --quick                # a look at everything in a minute or two, records nothing
    ... --asked prompts.json   # keeps prompts and targets there, for a machine that has no data

TEACHER and STUDENTs are folders of policies, as `rerank recipe diffusion-gr2` leaves them; several students are seeds
of one run, which take turns in timings and whose answers' scores are averaged. Both write greedily, by our two samplers
(torch, the same model code, caches and sharing of prompts), in the same precision, on one thread or one GPU. Quality is
of all test requests of `--data`, in large batches, for every decoder setting: R@1 with an answer that is no ranking
counted as 0, its paired difference to the teacher's, users resampled, and what is wrong with answers before any repair
(`rerank_env.rewards.faults`). The setting saved with the students is the one claims are about, and was chosen before.

Batch 1: requests are given one at a time, each to the teacher and to every setting in turn, so that what else the
machine does meets all of them. A request's time is all of it, its prompt read; "decoding tokens/s" leaves that reading
out. Ratios are made per round of requests, and rounds resampled (mean, 95 %). Batches: median and range of rounds; the
saturating batch is the smallest with 95 % of the most tokens a second. Times are recorded only as multiples of the
teacher's at batch 1, as a machine's own are of no use to others.
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from record import finish, options_of

os.environ["HF_HUB_OFFLINE"] = "1"

from speed_quality import METRIC, TEACHER, Asking, asking_of, draw, qualities
from speed_timing import Machine, alone, swept, timings, together

from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.language.placing import device_named, dtype_named
from rerank_env.agents.language.policy import LanguagePolicy

THRESHOLDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
STATIC = (1, 2, 4, 8)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LEAST_RATIO = 3.5


def loaded(options: Namespace) -> Machine:
    """The policies, as they are to be compared."""
    told: dict[str, Any] = {"dtype": options.dtype, "device": options.device}
    teacher = LanguagePolicy.from_pretrained(options.teacher, **told)
    students = [BlockDiffusionPolicy.from_pretrained(folder, **told) for folder in options.students]
    forms = {(one.decoding, one.blocks) for one in students}
    if len(forms) > 1:
        raise SystemExit("the students are not decoded alike; give seeds of one run")
    decoding = students[0].decoding
    if not decoding.is_greedy or decoding.answer or not teacher.decoding.is_greedy or teacher.decoding.constrained:
        raise SystemExit("only greedy decoding without constraints is compared here; give policies that are saved so")
    return Machine(teacher, students)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("teacher", type=Path, help="the folder of the autoregressive policy")
    parser.add_argument("students", type=Path, nargs="+", help="the folders of the converted policy, a seed each")
    parser.add_argument("--data", default="amazon-beauty", help="whose test requests are answered")
    parser.add_argument("--asked", type=Path, help="where their prompts and targets are kept, made where it is not")
    parser.add_argument("--rounds", type=int, default=10, help="rounds at batch 1")
    parser.add_argument("--per-round", type=int, default=20, help="requests of each")
    parser.add_argument("--repeats", type=int, default=3, help="of each batch size")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="the sizes of batches")
    parser.add_argument("--quality-batch", type=int, default=256, help="requests answered together for quality")
    parser.add_argument("--most", type=int, help="answer so many test requests only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quick", action="store_true", help="a look at everything; records nothing")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.per_round, options.repeats, options.dry_run = 3, 2, 1, True
        options.batches, options.most = (1, 4, 16), 48
    torch.set_num_threads(1)
    options.dtype, options.device = dtype_named(options.dtype), device_named(options.device)
    machine = loaded(options)
    asking = asking_of(options.asked, [machine.teacher, *machine.students], data=options.data).first(options.most)
    compare(options, machine, asking)


def compare(options: Namespace, machine: Machine, asking: Asking) -> None:
    """Measure, print, draw and record."""
    student = machine.students[0]
    chosen = str(student.decoding.rule)
    rules = [*(f"threshold({least})" for least in THRESHOLDS), *(f"static({rounds})" for rounds in STATIC)]
    settings = [TEACHER, *dict.fromkeys([*rules, chosen])]
    answers = {
        setting: [
            machine.texts(setting, asking.prompts, student=seed, batch=options.quality_batch)
            for seed in range(1 if setting == TEACHER else len(machine.students))
        ]
        for setting in settings
    }
    quality = qualities(asking, answers)
    needed = options.rounds * options.per_round
    some = [asking.prompts[at % len(asking.prompts)] for at in range(needed)]
    with machine.clocked():
        told = alone(
            machine, settings, [some[at : at + options.per_round] for at in range(0, needed, options.per_round)]
        )
        sweep = together(machine, chosen, asking.prompts, options.batches, options.repeats)
    metrics = {setting: timings(told, setting) | quality[setting] for setting in settings}
    rows = [{"name": setting, "metrics": own} for setting, own in metrics.items()] + swept(sweep, chosen)
    for row in rows:
        print(row["name"], {name: round(number["value"], 4) for name, number in row["metrics"].items()}, flush=True)
    wrote = [one for part in told for one in part[TEACHER]]
    rate = sum(one.tokens for one in wrote) / sum(one.seconds for one in wrote)
    print(f"the teacher, alone, wrote {rate:.0f} tokens a second here")
    difference = metrics[chosen][f"{METRIC} - teacher"]
    met = metrics[chosen]["tokens/s"]["value"] >= LEAST_RATIO and difference["high"] >= 0
    where = student.model.device.type
    name = "diffusion-speed" if where == "cpu" else f"diffusion-speed-{where}"
    if not options.dry_run:
        draw(options.directory / f"{name}.svg", metrics, chosen)
    dtype = str(student.model.dtype).removeprefix("torch.")
    finish(
        options,
        name,
        command="RERANK_DATA=... python benchmarks/diffusion_speed.py TEACHER STUDENT ...",
        data=f"{options.data}, lists of ten by SASRec, {len(asking.prompts)} test requests, {needed} at batch 1; "
        f"blocks of {student.blocks.size}, end={student.decoding.end}; {dtype}, {where}, one thread; claims are about "
        f"{chosen}",
        n=len(asking.prompts),
        seeds=list(range(len(machine.students))),
        rows=rows,
        goal=f"{chosen}: >= {LEAST_RATIO} times the teacher's tokens/s at batch 1, and the interval of the paired "
        f"difference in {METRIC} not below zero",
        met=met,
    )


if __name__ == "__main__":
    main()
