"""Does the reward decide whether a policy copies? One policy that can be wrong, six rewards, five seeds.

Run: python benchmarks/naive_vs_conditional.py     (about half an hour on two cores; Ctrl-C at any time, it goes on)

The policy (`TokenPolicy`) writes an answer word by word and may repeat, omit, stop early or fail to stop. It first
imitates a teacher, as language models are fine-tuned before reinforcement, and then every reward starts from the same
weights with the same seed. The teacher copies the incoming order in two lists of five; the others it sorts by place,
with noise, the relevant candidates moved up. So copying is the easy way to be valid, and what re-ranking the policy
knows it knows with mistakes. How many depends on how many lessons it got: WORLDS has two warm starts on made-up
requests whose first stage sees the relevance through noise (the order is good, and the history can still improve it),
and one on MovieLens-100K.

Identity, near-identity (at most two exchanges of neighbours) and Kendall's tau are over valid answers; ndcg@10 counts
an invalid answer as 0. Answers are sampled at temperature 1, four a request; "greedy" is what would be served.
Intervals resample seeds and users together, 2,000 times; differences are paired by seed, user and resample. Curves are
on validation requests, the last rows on the test split. The network, the teacher and the learning rates were chosen on
validation requests, in pilots under `naive`, `gr2` and others; so were the numbers of lessons. The hypothesis, written
down after the pilots and before the full run, is GR2's: where `naive` ends in copying, the conditional `gr2` does not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RESULTS, ROOT, commit, record

from rerank_env import durable
from rerank_env.agents import Incoming, Oracle, Policy, Random, TokenPolicy
from rerank_env.data import SPLITS, Requests, load
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.copies import NEAR_SWAPS
from rerank_env.training import DapoConfig, ImitationConfig, dapo, imitation
from rerank_env.training.checkpoints import CheckpointStore
from rerank_env.training.processes import Run, run_all

COMMAND = "python benchmarks/naive_vs_conditional.py"
REWARDS = ("naive", "gr2", "gr2_hardened", "gr2_industrial", "gr2_industrial_hardened", "gain")
DIFFERENCES = tuple((reward, "naive") for reward in REWARDS[1:]) + tuple((r, "incoming") for r in (*REWARDS, "warm"))
SEEDS = (0, 1, 2, 3, 4)
STEPS, EVERY = 300, 50
SAMPLES = 4
CURVE_REQUESTS = 500
RESAMPLES = 2000
RUN_SECONDS, LESSONS_A_SECOND = 27, 75
"""What to expect, for the forecast."""

SHARPNESS = 1.0
"""How far a grade of relevance moves the made-up first stage's score, in units of its noise."""

MEASURED = ("validity", "identity_rate", "near_identity_rate", "kendall_tau", "ndcg@10")
OVER_VALID = ("identity_rate", "near_identity_rate", "kendall_tau")
WAYS = ("", "greedy ")
NDCG = parse_reward("ndcg@10")


@dataclass(frozen=True)
class World:
    """Requests, and how many lessons the warm start has."""

    data: str
    lessons: int


WORLDS = {
    "brief": World("synthetic", 1000),
    "long": World("synthetic", 4000),
    "movielens": World("movielens-100k", 1000),
}
RECORDS = {"naive-vs-conditional": ("brief", "long"), "naive-vs-conditional-movielens": ("movielens",)}


@dataclass(frozen=True)
class Teacher:
    """Copies the incoming order now and then, and else sorts by place, moved by noise and by relevance. A `Policy`."""

    copies: float = 0.4
    noise_places: float = 2.0
    promotion_places: float = 3.0

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """One ranking a request, drawn anew each time."""
        rows, width = requests.candidates_BK.shape
        moved_BK = self.noise_places * rng.normal(size=(rows, width)) - self.promotion_places * requests.relevance_BK
        place_K = np.arange(width)
        keys_BK = place_K + np.where(rng.random((rows, 1)) < self.copies, 0.0, moved_BK)
        keys_BK = np.where(place_K < requests.sizes_B[:, None], keys_BK, np.inf)
        return rankings.padded(np.argsort(keys_BK, axis=1, kind="stable"), requests.sizes_B)


def splits_of(data: str) -> dict[str, Requests]:
    """The requests of a world; made-up ones in the order of a first stage that sees the relevance through noise."""
    if data != "synthetic":
        return {split: load(data, split=split) for split in SPLITS}
    splits = {}
    for number, split in enumerate(SPLITS):
        requests = load(data, split=split, requests=6000)
        noise_BK = np.random.default_rng([7, number]).normal(size=requests.scores_BK.shape)
        scores_BK = (SHARPNESS * requests.relevance_BK + noise_BK).astype(np.float32)
        order_BK = np.argsort(-scores_BK, axis=1, kind="stable")
        splits[split] = replace(requests, scores_BK=scores_BK).reordered(order_BK)
    return splits


def measured(answers_BNK: IntArray, requests: Requests) -> FloatArray:
    """Means over a request's answers of `MEASURED`, [B, 5]; what is over valid answers still lacks the division."""
    rows, n, width = answers_BNK.shape
    slates = requests.slates.take(np.arange(rows).repeat(n))
    flat_AK, sizes_A = answers_BNK.reshape(rows * n, width), slates.sizes_B
    valid_A = rankings.verdicts(flat_AK, sizes_A) == rankings.Verdict.OK
    legal_AK = np.where(valid_A[:, None], flat_AK, rankings.identity_rankings(sizes_A, width))
    tau_A = rankings.kendall_tau(legal_AK, sizes_A)
    swaps_A = np.rint((1.0 - tau_A) * sizes_A * (sizes_A - 1) / 4)
    shares_A5 = np.stack([valid_A, swaps_A == 0, swaps_A <= NEAR_SWAPS, tau_A, NDCG(flat_AK, slates)], axis=1)
    means_B5: FloatArray = (valid_A[:, None] * shares_A5).reshape(rows, n, -1).mean(axis=1)
    return means_B5


def measured_policy(policy: TokenPolicy, requests: Requests) -> FloatArray:
    """Sampled, then greedy, [B, 10]."""
    drawn = policy.sample(requests, SAMPLES, generator=torch.Generator().manual_seed(1)).rankings_BNK.numpy()
    greedy = policy.rank(requests, rng=np.random.default_rng(0))[:, None]
    return np.concatenate([measured(drawn, requests), measured(greedy, requests)], axis=1)


def point(directory: Path, split: str, step: int) -> Path:
    """The file that holds what was measured after `step` steps."""
    return directory / "measured" / f"{split}-{step:05d}.npy"


def keep(directory: Path, split: str, step: int, policy: TokenPolicy, requests: Requests) -> None:
    """Measure the policy and write it down; the file is whole or absent."""
    path = point(directory, split, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npy")
    np.save(unfinished, measured_policy(policy, requests))
    unfinished.replace(path)


def run_one(name: str, root: Path) -> None:
    """The run WORLD/warm/SEED or WORLD/REWARD/SEED, from where it stopped."""
    world, method, seed = name.split("/")
    directory = root / name
    splits = splits_of(WORLDS[world].data)
    curve = splits["validation"].take(np.arange(CURVE_REQUESTS))
    warm = root / world / "warm" / seed
    if method == "warm":
        generator = torch.Generator().manual_seed(int(seed))
        policy = TokenPolicy.for_requests(splits["train"], generator=generator)
        lessons = ImitationConfig(steps=WORLDS[world].lessons, learning_rate=4e-3, seed=int(seed), checkpoint_every=250)
        imitation.train(policy, splits["train"], Teacher(), config=lessons, directory=directory)
        keep(directory, "validation", 0, policy, curve)
        policy.save_pretrained(directory / "policy")
    else:
        policy = TokenPolicy.from_pretrained(warm / "policy")
        config = DapoConfig(steps=STEPS, learning_rate=1e-3, decay="none", seed=int(seed), checkpoint_every=EVERY)
        done = max(CheckpointStore(directory).steps(), default=0)
        whole = all(point(directory, "validation", step).is_file() for step in range(EVERY, done + 1, EVERY))
        dapo.train(
            policy,
            splits["train"],
            method,
            config=config,
            directory=directory,
            resume=whole,  # killed between a checkpoint and its measurement: cheaper to begin again than to be clever
            on_step=lambda log: (
                keep(directory, "validation", log.step, policy, curve) if log.step % EVERY == 0 else None
            ),
        )
    keep(directory, "test", STEPS, policy, splits["test"])


def names(worlds: Iterable[str], methods: Iterable[str]) -> list[str]:
    """The runs of these worlds."""
    return [f"{world}/{method}/{seed}" for world in worlds for method in methods for seed in SEEDS]


def run_missing(runs: list[str], root: Path, workers: int) -> None:
    """Run what is not there yet, saying how far it is."""
    missing = [name for name in runs if not point(root / name, "test", STEPS).is_file()]
    started, finished = time.monotonic(), set[str]()

    def on_progress(name: str, step: int, steps: int) -> None:
        if step == steps and name not in finished:
            finished.add(name)
            minutes = (time.monotonic() - started) / 60
            print(f"{len(finished)} of {len(missing)} runs, {minutes:.1f} minutes: {name}", flush=True)

    def run(name: str) -> Run:
        world, method, _ = name.split("/")
        command = (sys.executable, __file__, "--directory", str(root), "--one", name)
        return Run(command, WORLDS[world].lessons if method == "warm" else STEPS)

    if missing:
        run_all({name: run(name) for name in missing}, root, on_progress=on_progress, workers=workers)


class Table:
    """Policies [P] measured over seeds and users, with the intervals of their means and paired differences."""

    def __init__(self, values: Mapping[str, FloatArray], users_B: IntArray) -> None:
        """`values` [S, B, 10] a policy."""
        self.policies = list(values)
        stacked_BC = np.stack(list(values.values())).transpose(2, 0, 1, 3).reshape(len(users_B), -1)
        rng = np.random.default_rng(0)
        bootstrap = cluster_bootstrap(stacked_BC, users_B, resamples=RESAMPLES, rng=rng)
        shape = (len(values), len(SEEDS), -1)
        drawn_RS = rng.integers(len(SEEDS), size=(RESAMPLES, len(SEEDS)))
        resampled_RPSC = bootstrap.resampled_RC.reshape(RESAMPLES, *shape)
        resampled_RSPC = resampled_RPSC.transpose(0, 2, 1, 3)[np.arange(RESAMPLES)[:, None], drawn_RS]
        self.means = divided(bootstrap.means_C.reshape(shape).mean(axis=1))
        self.resampled = divided(resampled_RSPC.mean(axis=1))

    def row(self, name: str, policy: str, baseline: str | None = None) -> dict[str, Any]:
        """A row of the record: means, or differences to the baseline."""
        metrics = {}
        for metric, mean_P in self.means.items():
            place = self.policies.index(policy)
            value, resampled_R = mean_P[place], self.resampled[metric][:, place]
            if baseline is not None:
                other = self.policies.index(baseline)
                value, resampled_R = value - mean_P[other], resampled_R - self.resampled[metric][:, other]
            low, high = np.quantile(resampled_R, [0.025, 0.975])
            metrics[metric] = {"value": float(value), "low": float(min(low, value)), "high": float(max(high, value))}
        return {"name": name, "metrics": metrics}


def divided(means: FloatArray) -> dict[str, FloatArray]:
    """The means [..., 10] by name, those over valid answers divided by the share of these."""
    found: dict[str, FloatArray] = {}
    for way, part in zip(WAYS, np.split(means, len(WAYS), axis=-1), strict=True):
        columns = dict(zip(MEASURED, np.moveaxis(part, -1, 0), strict=True))
        over = {name: columns[name] / columns["validity"] for name in OVER_VALID}
        found |= {f"{way}{name}": column for name, column in (columns | over).items()}
        found[f"{way}ndcg@10 of valid"] = columns["ndcg@10"] / columns["validity"]
    return found


def measured_baseline(policy: Policy, requests: Requests) -> FloatArray:
    """A baseline as if it had been trained on every seed, [S, B, 10]."""
    answers = [policy.rank(requests, rng=np.random.default_rng([11, seed])) for seed in SEEDS]
    return np.stack([np.tile(measured(answer[:, None], requests), len(WAYS)) for answer in answers])


def rows_of(world: str, root: Path, splits: Mapping[str, Requests], prefix: str) -> list[dict[str, Any]]:
    """The rows of one world: test split, paired differences, and the curves."""

    def kept(method: str, split: str, step: int) -> FloatArray:
        return np.stack([np.load(point(root / world / method / str(seed), split, step)) for seed in SEEDS])

    test, curve = splits["test"], splits["validation"].take(np.arange(CURVE_REQUESTS))
    baselines: dict[str, Policy] = {"incoming": Incoming(), "random": Random(), "oracle": Oracle()}
    values = {name: measured_baseline(policy, test) for name, policy in baselines.items()}
    values |= {method: kept(method, "test", STEPS) for method in ("warm", *REWARDS)}
    table = Table(values, test.users_B)
    rows = [table.row(f"{prefix}{name}", name) for name in values]
    rows += [table.row(f"{prefix}{one} - {other}", one, other) for one, other in DIFFERENCES]
    over_time = {f"{prefix}warm at step 0": kept("warm", "validation", 0)}
    for reward in REWARDS:
        for step in range(EVERY, STEPS + 1, EVERY):
            over_time[f"{prefix}{reward} at step {step}"] = kept(reward, "validation", step)
    table = Table(over_time, curve.users_B)
    return rows + [table.row(name, name) for name in over_time]


def conditional_copies_less(rows: list[dict[str, Any]], prefix: str) -> bool:
    """Whether naive does not end in copying here, or gr2 surely copies less."""
    metrics = {row["name"].removeprefix(prefix): row["metrics"] for row in rows if row["name"].startswith(prefix)}
    copied = metrics["naive"]["identity_rate"]["value"] > 0.5
    return not copied or bool(metrics["gr2 - naive"]["identity_rate"]["high"] < 0.0)


def write_record(name: str, root: Path, results: Path) -> None:
    """Measure the worlds of one record against each other and write it."""
    worlds = RECORDS[name]
    splits = splits_of(WORLDS[worlds[0]].data)
    prefixes = {world: f"{world}: " if len(worlds) > 1 else "" for world in worlds}
    rows = [row for world in worlds for row in rows_of(world, root, splits, prefixes[world])]
    test = splits["test"]
    path = record(
        name,
        command=COMMAND,
        data=f"{test.name}; {'; '.join(test.notes)}; {STEPS} steps of DAPO after "
        + ", ".join(f"{WORLDS[world].lessons} ({world})" for world in worlds)
        + " lessons",
        n=len(test),
        seeds=SEEDS,
        rows=rows,
        goal="over 5 seeds, wherever naive ends in copying (identity rate above one half), gr2 copies less: the "
        "interval of the difference of their identity rates is below zero",
        met=all(conditional_copies_less(rows, prefixes[world]) for world in worlds),
        directory=results,
    )
    print(f"wrote {path}")


def prepare(root: Path, *, restart: bool) -> None:
    """Refuse weights that another state of the code or of the settings left."""
    made_by = {"commit": commit(), "worlds": {name: asdict(world) for name, world in WORLDS.items()}}
    note = root / "made-by.json"
    if restart and root.exists():
        shutil.rmtree(root)
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) != made_by:
        sys.exit(f"{root} holds runs of another state of the code; add --restart to throw them away and begin again")
    durable.replace(note, (json.dumps(made_by, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one policy on six rewards and record how much it copies.")
    parser.add_argument("--directory", type=Path, default=ROOT / "runs" / "naive-vs-conditional")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the records go")
    parser.add_argument("--only", choices=RECORDS, action="append", help="one record (default: both)")
    parser.add_argument("--workers", type=int, default=2, help="processes at once, one core each")
    parser.add_argument("--restart", action="store_true", help="throw earlier runs away")
    parser.add_argument("--one", metavar="RUN", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        torch.set_num_threads(1)
        run_one(given.one, given.directory)
        return
    prepare(given.directory, restart=given.restart)
    chosen = given.only or list(RECORDS)
    worlds = [world for name in chosen for world in RECORDS[name]]
    seconds = sum(RUN_SECONDS * len(REWARDS) + WORLDS[w].lessons / LESSONS_A_SECOND for w in worlds) * len(SEEDS)
    runs = len(names(worlds, ("warm", *REWARDS)))
    print(f"{runs} runs, about {seconds / 60 / given.workers:.0f} minutes on {given.workers} idle cores", flush=True)
    run_missing(names(worlds, ("warm",)), given.directory, given.workers)
    run_missing(names(worlds, REWARDS), given.directory, given.workers)
    for name in chosen:
        write_record(name, given.directory, given.results)


if __name__ == "__main__":
    main()
