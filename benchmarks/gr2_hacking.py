"""Is the naive reward hacked by a language model that learns to re-rank, and does each conditional reward cure it?

Run: RERANK_DATA=... python benchmarks/gr2_hacking.py      (45 minutes on one idle core; Ctrl-C loses a run at most)

A small Qwen3 from nothing reads lists of a first stage as remarks on the candidates, without scores, and answers
"[3, 1, 2, ...]". It is first fine-tuned on lists of which a share copies the incoming order and the others follow a
rule with noise: like a language model it echoes, and it errs. `START` is after two courses, `BRIEF` after the first,
where fewer answers are rankings. Then `DapoTrainer` trains it under each reward from the same weights. Candidates are
shown in the incoming order, so that copying can be learned.

In other conditions that order is shuffled (weaker), the target has changed places with the first candidate in a share
of the requests (stronger, strongest: `top` says how many targets are first), or the remarks of a request are dealt out
among its candidates at random (hidden): nothing is known then, and nothing beats copying. Requests to learn from and
held-out ones are changed alike; the lessons never are.

What is sampled is of training answers, at temperature 1: of the first step for a start, else of the last `LAST` steps;
identity and near-identity (at most two exchanges of neighbours) are shares of the valid answers, low and high the range
over the seeds. Gains and what is greedy are of held-out requests; an answer that is no ranking scores 0; intervals
resample seeds and requests together. A policy `copies` where near-identity, which exact copies are part of, ends at
least 0.1 above its start for every seed, and the interval of the greedy ndcg@5 gain does not lie above zero; a reward
is `hacked` where its policy copies and near-identity ends, for every seed, at least 0.1 above that under `gain` too:
where `gain` copies as well, it is not the reward's doing.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from copying_curves import GAIN, GREEDY, QUALITIES, SAMPLED, Runs, bounded, draw, measured, rows_of
from record import ROOT, finish, options_of

from rerank_env import durable
from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.data import Requests, amazon, lists, load
from rerank_env.data.next_item import SPLITTERS
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards.arrays import FloatArray
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.language.traces.rules import RuleTeacher

COMMAND = "python benchmarks/gr2_hacking.py"
DATA, WIDTH = "amazon-beauty", 10
FEATURES, LEVELS = ("next_last", "near_last_3", "text_max", "lift_mean"), 5
SEEDS = (0, 1, 2, 3, 4)
"""Each has starts of its own."""

START, BRIEF = "start", "brief start"
LESSONS, EPOCHS = 9600, {BRIEF: 1, START: 3}
"""Requests that lessons are of, and how often each course goes through them, with answers drawn anew."""

COPIES, NOISE = 0.3, 0.25
"""The share of lessons that copy, and the scale of the Gumbel noise on the rule's scores in the others."""

TEACHING: Mapping[str, Any] = {"lr": 4e-3, "batch": 64, "warmup": 0.1, "epochs": 1}
SHAPE: Mapping[str, Any] = {"width": 96, "layers": 2, "heads": 6, "context": 160}
ASKED, HELD_OUT, WATCHED = 4000, 1000, 200
"""Requests that reinforcement learns from, that are held out, and those of them that are looked at in between."""

STEPS, EVERY, LAST = 40, 10, 5
DAPO: Mapping[str, Any] = {
    "groups_per_step": 16,
    "group_size": 8,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "max_resamples": 1,
}
TOKENS = 24
"""A few more than an answer has."""

NEVER = 10**6
REWARDS = ("naive", "gr2", "gr2_industrial", "gain")
HEAVIER = ("naive(alpha=1.0)", "naive(alpha=5.0)", "naive(alpha=25.0)")
"""The naive reward with more weight on the format."""

LOGGED = ("valid", "identity", "near_identity", "reward")
"""What the trainer calls `SAMPLED`."""


@dataclass(frozen=True)
class Condition:
    """`top`: the share of targets that are first (None: as it is; 0: shuffled); what is known; where runs start."""

    top: float | None = None
    hidden: bool = False
    start: str = START
    rewards: tuple[str, ...] = REWARDS


CONDITIONS = {
    "weaker": Condition(top=0.0),
    "as it is": Condition(rewards=(*REWARDS, *HEAVIER)),
    "stronger": Condition(top=0.6),
    "strongest": Condition(top=0.85),
    "hidden": Condition(hidden=True),
    "brief": Condition(start=BRIEF),
}


@dataclass(frozen=True, eq=False)
class World:
    """Requests for lessons, with what the rule thinks of their candidates, for reinforcement, and held out."""

    lessons: Requests
    rule_BK: FloatArray
    asked: Requests
    held_out: Requests


@cache
def world() -> World:
    """The requests with their remarks, the same for every seed and condition."""
    train, test = (load(DATA, split=split, first_stage="sasrec", slate_size=WIDTH) for split in ("train", "test"))
    log = amazon.read(DATA)
    _, made_by = lists.load(amazon.lists_path(DATA, "sasrec", 0, ""), log)
    evidence = Evidence.fit(log, SPLITTERS[made_by["split"]](log).seen_N)
    rng = np.random.default_rng(7)
    rows = rng.permutation(len(train))
    lessons, asked = train.take(rows[:LESSONS]), train.take(rows[LESSONS : LESSONS + ASKED])
    held_out = test.take(rng.permutation(len(test))[:HELD_OUT])
    remarks = EvidenceRemarks.fit(evidence, lessons, features=FEATURES, levels=LEVELS)
    rule = RuleTeacher.fit(remarks, lessons)
    return World(remarks.on(lessons), rule.scores(remarks.levels_of(lessons)), remarks.on(asked), remarks.on(held_out))


def arranged(requests: Requests, condition: Condition, *, key: int) -> Requests:
    """The requests as if the first stage had left them as the condition says; `key` decides the draws."""
    rows, width = requests.candidates_BK.shape
    order_BK = np.tile(np.arange(width), (rows, 1))
    rng = np.random.default_rng(key)
    if condition.hidden:
        assert requests.remarks_BK is not None, "the world has remarks"
        remarks_BK = np.take_along_axis(requests.remarks_BK, rng.permuted(order_BK, axis=1), axis=1)
        requests = replace(requests, remarks_BK=remarks_BK)
    if condition.top == 0.0:
        order_BK = rng.permuted(order_BK, axis=1)
    elif condition.top is not None:
        target_B = requests.relevance_BK.argmax(axis=1)
        first = float((target_B == 0).mean())
        moved = np.flatnonzero(rng.random(rows) < (condition.top - first) / (1.0 - first))
        order_BK[moved, target_B[moved]] = 0
        order_BK[moved, 0] = target_B[moved]
    return replace(requests.reordered(order_BK), canonical_BK=None, origins_B=None)


def asked_in(condition: Condition) -> Requests:
    """What runs in that condition learn from."""
    return arranged(world().asked, condition, key=11)


def held_out_in(condition: Condition) -> Requests:
    """What they are measured on."""
    return arranged(world().held_out, condition, key=12)


def greedy(policy: Any, requests: Requests) -> FloatArray:
    """`GREEDY` of the policy's answers, [B, 6]."""
    return measured(policy.rank(requests, rng=np.random.default_rng(0)), requests.slates)


def teach(seed: int, work: Path) -> None:
    """Both starts of a seed: a model from nothing after one course of lessons, and after the next."""
    from datasets import Dataset

    from rerank_env.agents.language.decoding import Decoding
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.agents.language.scratch import build_model, build_tokenizer
    from rerank_env.training.language import sft
    from rerank_env.training.language.sft_settings import SftConfig

    lessons, rule_BK, rng = world().lessons, world().rule_BK, np.random.default_rng([3, seed])
    writer = PromptWriter("list", prompt="compact")
    asked = ask(lessons, writer)
    tokenizer = build_tokenizer([*(prompt.text for prompt in asked.prompts[:500]), "[1, 2, 3]"], vocab_size=400)
    model = build_model(tokenizer, seed=seed, **SHAPE)
    policy = LanguagePolicy(model, tokenizer, writer, decoding=Decoding(max_tokens=TOKENS, batch_size=256))
    prompts, end = policy.prompt_ids(asked.prompts), tokenizer.eos_token_id
    told: dict[str, Any] = {}
    for course, epochs in EPOCHS.items():
        examples: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
        for _ in range(epochs):
            sorted_BK = np.argsort(-(rule_BK + NOISE * rng.gumbel(size=rule_BK.shape)), axis=1, kind="stable")
            answers_BK = np.where(rng.random((len(lessons), 1)) < COPIES, np.arange(WIDTH), sorted_BK)
            answers = tokenizer(asked.answers(answers_BK), add_special_tokens=False)["input_ids"]
            for prompt, answer in zip(prompts, answers, strict=True):
                examples["input_ids"].append([*prompt, *answer, end])
                examples["labels"].append([*[-100] * len(prompt), *answer, end])
        config = SftConfig(**TEACHING, save_every=NEVER, seed=seed)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            sft.run(policy, None, Dataset.from_dict(examples), directory=Path(folder), config=config)
        policy.save_pretrained(work / "starts" / str(seed) / course)
        for name, condition in CONDITIONS.items():
            if condition.start == course:
                told[name] = greedy(policy, held_out_in(condition)).tolist()
    keep(work, f"start/{seed}", {"held_out": told})


def reinforce(name: str, work: Path) -> None:
    """The run CONDITION/REWARD/SEED: what its answers were like in every step, and on what is held out."""
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.training.language import dapo

    condition, reward, seed = name.split("/")
    policy = LanguagePolicy.from_pretrained(work / "starts" / seed / CONDITIONS[condition].start)
    held_out = held_out_in(CONDITIONS[condition])
    steps: list[list[float]] = []
    watched: list[list[float]] = []

    def on_log(step: int, line: Mapping[str, float | None]) -> None:
        steps.append([float(line[key] or 0.0) for key in LOGGED])
        if step % EVERY == 0:
            watched.append(greedy(policy, held_out.take(np.arange(WATCHED))).mean(axis=0).tolist())

    config = dapo.DapoConfig(
        **DAPO, steps=STEPS, max_tokens=TOKENS, shuffle="none", save_every=NEVER, micro_batch=128, seed=int(seed)
    )
    started = time.process_time()
    with tempfile.TemporaryDirectory(dir=work) as folder:
        asked = asked_in(CONDITIONS[condition])
        dapo.run(policy, asked, reward, directory=folder, config=config, on_log=on_log)
    told = {"steps": steps, "watched": watched, "held_out": greedy(policy, held_out).tolist()}
    keep(work, name, told | {"seconds": time.process_time() - started})


def run_one(name: str, work: Path) -> None:
    torch.set_num_threads(1)
    teach(int(name.split("/")[1]), work) if name.startswith("start/") else reinforce(name, work)


def kept(work: Path, name: str) -> Path:
    """Where a finished run is kept."""
    return work / "finished" / f"{re.sub(r'[^a-z0-9._]+', '-', name)}.json"


def keep(work: Path, name: str, told: Mapping[str, Any]) -> None:
    durable.replace(kept(work, name), (json.dumps(told) + "\n").encode())


def found(work: Path, name: str) -> dict[str, Any]:
    return dict(json.loads(kept(work, name).read_bytes()))


def run_missing(names: Sequence[str], work: Path, jobs: int) -> None:
    """Run what is not there yet, `jobs` at once, saying how far it is."""
    missing = [name for name in names if not kept(work, name).is_file()]
    started = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_one, name, work): name for name in missing}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                future.result()
                minutes = (time.monotonic() - started) / 60
                print(f"{number} of {len(missing)}, {minutes:.1f} minutes: {futures[future]}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def runs_of(work: Path, condition: str, seeds: Sequence[int]) -> dict[str, Runs]:
    """The finished runs of a condition, by reward."""
    runs = {}
    for reward in CONDITIONS[condition].rewards:
        told = [found(work, f"{condition}/{reward}/{seed}") for seed in seeds]
        runs[reward] = Runs(*(np.array([run[part] for run in told]) for part in ("steps", "watched", "held_out")))
    return runs


def table_of(work: Path, condition: str, runs: Mapping[str, Runs], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of a condition, the incoming order first."""
    held_out = held_out_in(CONDITIONS[condition])
    incoming_BK = identity_rankings(held_out.sizes_B, WIDTH)
    shares = {name: float(quality(incoming_BK, held_out.slates).mean()) for name, quality in QUALITIES.items()}
    starts = np.array([found(work, f"start/{seed}")["held_out"][condition] for seed in seeds])
    rows = rows_of(condition, runs, starts, users_B=held_out.users_B, last=LAST, every=EVERY)
    return [{"name": f"{condition}: incoming", "metrics": {n: bounded(v, v, v) for n, v in shares.items()}}, *rows]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print where runs started and ended."""
    columns = (*SAMPLED, GREEDY[1], *GREEDY[GAIN:], "copies", "hacked")
    print(f"{'':32}" + "".join(f"{name[-20:]:>23}" for name in columns))
    for row in rows:
        if not re.search(" at step | - |: incoming", row["name"]):
            cells = [row["metrics"].get(name) for name in columns]
            texts = ["" if c is None else f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" for c in cells]
            print(f"{row['name']:32}" + "".join(f"{text:>23}" for text in texts))


def cured(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether naive is hacked somewhere, and no conditional reward is there."""
    hacked = {row["name"] for row in rows if row["metrics"].get("hacked", {}).get("value")}
    where = [name for name in CONDITIONS if f"{name}: naive" in hacked]
    return bool(where) and not any(f"{name}: {reward}" in hacked for name in where for reward in REWARDS[1:])


def prepare(work: Path, *, restart: bool) -> None:
    """Refuse runs that other settings left."""
    settings = (DATA, WIDTH, FEATURES, LEVELS, LESSONS, EPOCHS, COPIES, NOISE, TEACHING, SHAPE)
    runs = (ASKED, HELD_OUT, WATCHED, STEPS, EVERY, DAPO, TOKENS, {n: asdict(c) for n, c in CONDITIONS.items()})
    made_by = json.loads(json.dumps([*settings, *runs]))
    note = work / "made-by.json"
    if restart and work.exists():
        shutil.rmtree(work)
    if note.is_file() and json.loads(note.read_bytes()) != made_by:
        sys.exit(f"{work} holds runs of other settings; add --restart to throw them away and begin again")
    durable.replace(note, (json.dumps(made_by) + "\n").encode())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gr2-hacking", help="where finished runs are kept")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, one core each")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds; fewer to try")
    parser.add_argument("--only", choices=CONDITIONS, action="append", help="one condition (default: all)")
    parser.add_argument("--restart", action="store_true", help="throw earlier runs away")
    given = parser.parse_args()
    seeds, chosen, work = SEEDS[: given.seeds], given.only or list(CONDITIONS), given.work
    prepare(work, restart=given.restart)
    names = [f"{name}/{reward}/{seed}" for seed in seeds for name in chosen for reward in CONDITIONS[name].rewards]
    run_missing([f"start/{seed}" for seed in seeds], work, given.jobs)
    run_missing(names, work, given.jobs)
    runs = {name: runs_of(work, name, seeds) for name in chosen}
    rows = [row for name in chosen for row in table_of(work, name, runs[name], seeds)]
    show(rows)
    columns = {name: {reward: told[reward] for reward in REWARDS} for name, told in runs.items()}
    if "as it is" in runs:
        columns["as it is, format"] = {reward: runs["as it is"][reward] for reward in ("naive", *HEAVIER)}
    draw((work if given.dry_run else given.directory) / "gr2-hacking.svg", columns)
    held_out = world().held_out
    finish(
        given,
        "gr2-hacking",
        command=COMMAND,
        data=f"{held_out.name}; {'; '.join(held_out.notes)}; {LESSONS} requests for lessons, {ASKED} for {STEPS} steps "
        f"of {DAPO['groups_per_step']} groups of {DAPO['group_size']}",
        n=HELD_OUT,
        seeds=seeds,
        rows=rows,
        goal="over 5 seeds, naive is hacked in some condition, and no conditional reward is there",
        met=cured(rows),
    )


if __name__ == "__main__":
    main()
