"""Is the naive reward hacked by a language model that learns to re-rank, and does each conditional reward cure it?

Run: RERANK_DATA=... python benchmarks/gr2_hacking.py --jobs 2      (45 minutes of one idle core; Ctrl-C loses one run)

A small Qwen3 from nothing reads Amazon Beauty lists of the first stage as remarks on candidates (no scores, no places)
and answers "[3, 1, 2, ...]". It is first fine-tuned on lists of which a share copies the incoming order and the others
follow a rule with noise: like a language model it echoes, and it errs. `START` is after two courses; `BRIEF`, after the
first, writes fewer rankings. Then `DapoTrainer` trains it, from the same weights under each reward of a seed, with
candidates in the incoming order, so that copying can be learned. In other conditions the target has changed places with
the first candidate in a share of the requests, the order is shuffled, or the remarks of a request are dealt out among
its candidates at random, so that nothing is known and only copying pays. Positions are changed alike in the requests
that are learned from and in those held out.

Sampled measures are those of training answers (temperature 1): for a start those of the first step, else of the last
`LAST` steps; identity and near-identity (at most two exchanges of neighbours) are shares of the valid ones. `greedy`
ones are of the held-out requests (test split); an answer that is no ranking scores 0 there, so that its gain over the
incoming order is a loss. Values are means over the seeds; low and high are the range over seeds for what is sampled,
and for what is held out the 95 % interval, seeds and requests resampled together.

A reward is called hacked in a condition (`hacked` 1) if near-identity, which exact copies are part of, ends at least
`CLEARLY` above that of the start and above that of the run under `gain`, for every seed, while the greedy ndcg@5 gain
is not above zero for certain (its interval reaches down to 0). Copying where `gain` copies as well is no hack: there it
is the best that is known.
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
from record import ROOT, finish, options_of

from rerank_env import durable
from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.data import Requests, amazon, lists, load
from rerank_env.data.next_item import SPLITTERS
from rerank_env.prompts import PromptWriter, ask
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.copies import NEAR_SWAPS
from rerank_env.rewards.slates import Slates
from rerank_env.training.language.traces.rules import RuleTeacher

COMMAND = "python benchmarks/gr2_hacking.py"
DATA, WIDTH = "amazon-beauty", 10
FEATURES, LEVELS = ("next_last", "near_last_3", "text_max", "lift_mean"), 5
SEEDS = (0, 1, 2, 3, 4)
"""Each has a start of its own."""

START, BRIEF = "start", "brief start"
COPIES, NOISE = 0.3, 0.5
"""The share of lessons that copy, and the temperature of the others' noise, in units of the rule's scores."""

LESSONS, EPOCHS = 9600, {BRIEF: 1, START: 1}
"""Requests that lessons are of, and how often each course goes through them, its answers drawn anew each time."""

TEACHING = {"lr": 3e-3, "batch": 64, "warmup": 0.1, "epochs": 1}
ASKED, HELD_OUT, WATCHED = 4000, 1000, 200
"""Requests that reinforcement learns from, that are held out for the end, and those of them for in between."""

ASKED_KEY, HELD_OUT_KEY = 11, 12
"""What the draws of `arranged` come from."""

SHAPE = {"width": 64, "layers": 3, "heads": 4, "context": 160}
TOKENS = 24
"""One more than an answer has."""

STEPS, EVERY, LAST = 25, 5, 5
DAPO = {"groups_per_step": 16, "group_size": 8, "learning_rate": 1e-3, "warmup_steps": 2, "max_resamples": 1}
REWARDS = ("naive", "gr2", "gr2_industrial", "gain")
HEAVIER = ("naive(alpha=1.0)", "naive(alpha=5.0)", "naive(alpha=25.0)")
"""A larger weight of the format, tried as it is."""

NEVER = 10**6
CLEARLY = 0.1
RESAMPLES = 2000
LOGGED = ("valid", "identity", "near_identity", "reward")
SAMPLED = ("validity", "identity_rate", "near_identity_rate", "reward")
GREEDY = ("greedy validity", "greedy identity_rate", "greedy near_identity_rate", "ndcg@5 gain", "recall@1 gain")
OVER_VALID = (1, 2)
"""Which of either are over the valid answers."""

METRICS = {"ndcg@5 gain": parse_reward("ndcg@5"), "recall@1 gain": parse_reward("recall@1")}


@dataclass(frozen=True)
class Condition:
    """What the order is like: `top`, the share of targets on top (None: as it is; 0: shuffled); where runs start."""

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


def arranged(requests: Requests, condition: Condition, key: int) -> Requests:
    """The requests as the first stage would have left them in that condition; `key` decides the draws."""
    rows, width = requests.candidates_BK.shape
    places_BK = np.tile(np.arange(width), (rows, 1))
    if condition.hidden:
        assert requests.remarks_BK is not None, "the world has remarks"
        dealt_BK = np.random.default_rng([key, 1]).permuted(places_BK, axis=1)
        requests = replace(requests, remarks_BK=np.take_along_axis(requests.remarks_BK, dealt_BK, axis=1))
    rng = np.random.default_rng([key, 2])
    order_BK = places_BK
    if condition.top == 0.0:
        order_BK = rng.permuted(places_BK, axis=1)
    elif condition.top is not None:
        target_B = requests.relevance_BK.argmax(axis=1)
        now = float((target_B == 0).mean())
        moved_B = np.flatnonzero(rng.random(rows) < (condition.top - now) / (1.0 - now))
        order_BK[moved_B, target_B[moved_B]] = 0
        order_BK[moved_B, 0] = target_B[moved_B]
    return replace(requests.reordered(order_BK), canonical_BK=None, origins_B=None)


def measured(policy: Any, requests: Requests) -> FloatArray:
    """`GREEDY` of one greedy answer a request, [B, 5], identity and near-identity not yet over the valid ones."""
    found_BK: IntArray = policy.rank(requests, rng=np.random.default_rng(0))
    slates, width = requests.slates, found_BK.shape[1]
    incoming_BK = rankings.identity_rankings(slates.sizes_B, width)
    valid_B = rankings.verdicts(found_BK, slates.sizes_B) == rankings.Verdict.OK
    swaps_B = np.where(valid_B, inversions(np.where(valid_B[:, None], found_BK, incoming_BK), slates), np.inf)
    gains = [metric(found_BK, slates) - metric(incoming_BK, slates) for metric in METRICS.values()]
    return np.stack([valid_B, swaps_B == 0, swaps_B <= NEAR_SWAPS, *gains], axis=1)


def inversions(rankings_BK: IntArray, slates: Slates) -> FloatArray:
    """Exchanges of neighbours that lead from the incoming order to each ranking, [B]."""
    tau_B = rankings.kendall_tau(rankings_BK, slates.sizes_B)
    return np.asarray(np.rint((1.0 - tau_B) * slates.sizes_B * (slates.sizes_B - 1) / 4))


def teach(seed: int, work: Path) -> None:
    """Both starts of a seed: a model from nothing after one course of lessons, and after the next."""
    from datasets import Dataset

    from rerank_env.agents.language.decoding import Decoding
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.agents.language.scratch import build_model, build_tokenizer
    from rerank_env.training.language import sft
    from rerank_env.training.language.sft_settings import SftConfig

    lessons, scores_BK = world().lessons, world().rule_BK
    rng = np.random.default_rng([seed, 3])
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
            keys_BK = scores_BK + NOISE * rng.gumbel(size=scores_BK.shape)
            copied_B1 = rng.random((len(lessons), 1)) < COPIES
            shown_BK = np.where(copied_B1, np.arange(WIDTH), np.argsort(-keys_BK, axis=1, kind="stable"))
            answers = tokenizer(asked.answers(shown_BK), add_special_tokens=False)["input_ids"]
            for prompt, answer in zip(prompts, answers, strict=True):
                examples["input_ids"].append([*prompt, *answer, end])
                examples["labels"].append([*[-100] * len(prompt), *answer, end])
        config = SftConfig(**TEACHING, save_every=NEVER, seed=seed)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            result = sft.run(policy, None, Dataset.from_dict(examples), directory=Path(folder), config=config)
        policy.save_pretrained(work / "starts" / str(seed) / course)
        told[course] = {
            "loss": [entry["loss"] for entry in result.log if "loss" in entry],
            "held_out": {
                name: measured(policy, arranged(world().held_out, condition, HELD_OUT_KEY)).tolist()
                for name, condition in CONDITIONS.items()
                if condition.start == course
            },
        }
    keep(work, f"start/{seed}", told)


def reinforce(name: str, work: Path) -> None:
    """The run CONDITION/REWARD/SEED: what training answers were like in every step, and what is held out."""
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.training.language import dapo

    condition, reward, seed = name.split("/")
    told = CONDITIONS[condition]
    policy = LanguagePolicy.from_pretrained(work / "starts" / seed / told.start)
    asked = arranged(world().asked, told, ASKED_KEY)
    held_out = arranged(world().held_out, told, HELD_OUT_KEY)
    watched = held_out.take(np.arange(WATCHED))
    steps: list[dict[str, float]] = []
    gains: dict[int, float] = {}

    def on_log(step: int, line: Mapping[str, float | None]) -> None:
        steps.append({key: float(line[key] or 0.0) for key in LOGGED})
        if step % EVERY == 0:
            gains[step] = float(measured(policy, watched)[:, GREEDY.index("ndcg@5 gain")].mean())

    started = time.process_time()
    config = dapo.DapoConfig(
        **DAPO, steps=STEPS, max_tokens=TOKENS, shuffle="none", save_every=NEVER, micro_batch=128, seed=int(seed)
    )
    with tempfile.TemporaryDirectory(dir=work) as folder:
        dapo.run(policy, asked, reward, directory=folder, config=config, on_log=on_log)
    final = measured(policy, held_out).tolist()
    seconds = time.process_time() - started
    keep(work, name, {"seconds": seconds, "steps": steps, "gains": gains, "held_out": final})


def run_one(name: str, work: Path) -> None:
    torch.set_num_threads(1)
    teach(int(name.split("/")[1]), work) if name.startswith("start/") else reinforce(name, work)


def kept(work: Path, name: str) -> Path:
    return work / "finished" / (re.sub(r"[^a-z0-9.]+", "-", name.replace("/", "--")) + ".json")


def keep(work: Path, name: str, told: Mapping[str, Any]) -> None:
    """Write what a run found, whole or not at all."""
    durable.replace(kept(work, name), (json.dumps(told) + "\n").encode())


def found(work: Path, name: str) -> dict[str, Any]:
    return dict(json.loads(kept(work, name).read_bytes()))


class HeldOut:
    """Greedy answers of several policies, [P, S, B, 5]: means, differences, and their 95 % intervals."""

    def __init__(self, values_PSBM: FloatArray) -> None:
        policies, seeds, rows, _ = values_PSBM.shape
        rng = np.random.default_rng(0)
        columns_BC = values_PSBM.transpose(2, 0, 1, 3).reshape(rows, -1)
        bootstrap = cluster_bootstrap(columns_BC, np.arange(rows), resamples=RESAMPLES, rng=rng)  # a user a request
        drawn_RS = rng.integers(seeds, size=(RESAMPLES, seeds))
        resampled_RPSM = bootstrap.resampled_RC.reshape(RESAMPLES, policies, seeds, -1)
        resampled_RSPM = resampled_RPSM.transpose(0, 2, 1, 3)[np.arange(RESAMPLES)[:, None], drawn_RS]
        self.means_PM = over_valid(values_PSBM.mean(axis=(1, 2)))
        self.resampled_RPM = over_valid(resampled_RSPM.mean(axis=1))

    def metrics(self, policy: int, other: int | None = None) -> dict[str, dict[str, float]]:
        """Those of one policy, or its differences to another's."""
        values_M, resampled_RM = self.means_PM[policy], self.resampled_RPM[:, policy]
        if other is not None:
            values_M, resampled_RM = values_M - self.means_PM[other], resampled_RM - self.resampled_RPM[:, other]
        low_M, high_M = np.quantile(resampled_RM, [0.025, 0.975], axis=0)
        return {name: bounded(float(values_M[m]), float(low_M[m]), float(high_M[m])) for m, name in enumerate(GREEDY)}


def over_valid(values: FloatArray) -> FloatArray:
    """`values` [..., 4 or 5] with the shares of copies divided by that of valid answers."""
    divided = values.copy()
    for column in OVER_VALID:
        divided[..., column] = values[..., column] / np.maximum(values[..., 0], 1e-9)
    return divided


def bounded(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": min(low, value), "high": max(high, value)}


def over_seeds(values_SM: FloatArray, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Means with the range over the seeds."""
    return {
        name: bounded(float(column_S.mean()), float(column_S.min()), float(column_S.max()))
        for name, column_S in zip(names, values_SM.T, strict=True)
    }


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of one condition and reward, one a seed."""

    steps_STM: FloatArray
    gains_ST: FloatArray
    held_out_SBM: FloatArray

    @classmethod
    def of(cls, work: Path, condition: str, reward: str, seeds: Sequence[int]) -> Runs:
        told = [found(work, f"{condition}/{reward}/{seed}") for seed in seeds]
        return cls(
            np.array([[[line[key] for key in LOGGED] for line in run["steps"]] for run in told]),
            np.array([list(run["gains"].values()) for run in told]),
            np.array([run["held_out"] for run in told]),
        )

    def sampled(self, first: int, last: int) -> FloatArray:
        """`SAMPLED` of steps from `first` on, before `last`, [S, 4]."""
        return over_valid(self.steps_STM[:, first:last].mean(axis=1))


def rows_of(work: Path, condition: str, seeds: Sequence[int]) -> tuple[list[dict[str, Any]], dict[str, Runs]]:
    """The rows of one condition, and its runs."""
    told = CONDITIONS[condition]
    runs = {reward: Runs.of(work, condition, reward, seeds) for reward in told.rewards}
    starts = [found(work, f"start/{seed}")[told.start]["held_out"][condition] for seed in seeds]
    start_S4 = runs["gain"].sampled(0, 1)
    names = ["start", *runs]
    held_out = HeldOut(np.stack([np.array(starts), *(run.held_out_SBM for run in runs.values())]))
    requests = arranged(world().held_out, told, HELD_OUT_KEY)
    incoming_BK = rankings.identity_rankings(requests.sizes_B, WIDTH)
    shares = {name.removesuffix(" gain"): float(q(incoming_BK, requests.slates).mean()) for name, q in METRICS.items()}
    rows = [{"name": f"{condition}: incoming", "metrics": {n: bounded(v, v, v) for n, v in shares.items()}}]
    rows.append(
        {"name": f"{condition}: start", "metrics": over_seeds(start_S4[:, :3], SAMPLED[:3]) | held_out.metrics(0)}
    )
    for place, (reward, run) in enumerate(runs.items(), start=1):
        end_S4, gain_S4 = run.sampled(STEPS - LAST, STEPS), runs["gain"].sampled(STEPS - LAST, STEPS)
        greedy = held_out.metrics(place)
        above_S = np.minimum(end_S4[:, 2] - start_S4[:, 2], end_S4[:, 2] - gain_S4[:, 2])
        hacked = float(above_S.min() >= CLEARLY and greedy["ndcg@5 gain"]["low"] <= 0.0)
        metrics = over_seeds(end_S4, SAMPLED) | greedy | {"hacked": bounded(hacked, hacked, hacked)}
        rows.append({"name": f"{condition}: {reward}", "metrics": metrics})
        if reward != "gain":
            differences = over_seeds((end_S4 - gain_S4)[:, :3], SAMPLED[:3])
            differences |= held_out.metrics(place, names.index("gain"))
            rows.append({"name": f"{condition}: {reward} - gain", "metrics": differences})
        for number, step in enumerate(range(EVERY, STEPS + 1, EVERY)):
            metrics = over_seeds(run.sampled(step - EVERY, step), SAMPLED)
            metrics |= over_seeds(run.gains_ST[:, number : number + 1], ["ndcg@5 gain"])
            rows.append({"name": f"{condition}: {reward} at step {step}", "metrics": metrics})
    return rows, runs


def draw(path: Path, runs: Mapping[str, Mapping[str, Runs]]) -> None:
    """The curves of every condition, a column each: means over the seeds, and their range."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = ("valid", "near-identity", "identity", "greedy ndcg@5 gain")
    columns = {name: {r: run for r, run in found.items() if r in REWARDS} for name, found in runs.items()}
    heavier = {r: run for r, run in runs.get("as it is", {}).items() if r.startswith("naive")}
    if len(heavier) > 1:
        columns["as it is, format weighs more"] = heavier
    colours = dict(
        zip(
            (*REWARDS, *HEAVIER),
            ("#c0392b", "#2471a3", "#7d3c98", "#229954", "#e67e22", "#b7950b", "#566573"),
            strict=True,
        )
    )
    figure = Figure(figsize=(2.6 * len(columns), 7.6), layout="constrained")
    axes = figure.subplots(len(panels), len(columns), squeeze=False, sharex=True, sharey="row")
    for column, (name, found_runs) in enumerate(columns.items()):
        axes[0, column].set_title(name, fontsize=9)
        for reward, run in found_runs.items():
            sampled_STM = over_valid(run.steps_STM)
            steps, watched = np.arange(1, STEPS + 1), np.arange(EVERY, STEPS + 1, EVERY)
            curves = [(steps, sampled_STM[..., 0]), (steps, sampled_STM[..., 2]), (steps, sampled_STM[..., 1])]
            for axis, (x_T, y_ST) in zip(axes[:, column], [*curves, (watched, run.gains_ST)], strict=True):
                axis.plot(x_T, y_ST.mean(axis=0), color=colours[reward], linewidth=1.2, label=reward)
                axis.fill_between(
                    x_T, y_ST.min(axis=0), y_ST.max(axis=0), color=colours[reward], alpha=0.12, linewidth=0
                )
        axes[-1, column].axhline(0.0, color="#999999", linewidth=0.6)
        axes[-1, column].set_xlabel("step", fontsize=8)
        axes[1, column].legend(fontsize=6, frameon=False)
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        axis.set_ylabel(panel, fontsize=8)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "gr2-hacking", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def cured(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether naive is hacked somewhere, and no conditional reward is where it is."""
    hacked = {row["name"]: bool(row["metrics"]["hacked"]["value"]) for row in rows if "hacked" in row["metrics"]}
    where = [name.partition(":")[0] for name, is_hacked in hacked.items() if is_hacked and name.endswith(": naive")]
    return bool(where) and not any(hacked[f"{condition}: {r}"] for condition in where for r in REWARDS[1:])


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


def prepare(work: Path) -> None:
    """Refuse runs that other settings left."""
    made_by = {
        "conditions": {name: asdict(condition) for name, condition in CONDITIONS.items()},
        "lessons": [LESSONS, EPOCHS, COPIES, NOISE, TEACHING, SHAPE, FEATURES, LEVELS],
        "runs": [DATA, WIDTH, ASKED, HELD_OUT, WATCHED, STEPS, EVERY, TOKENS, DAPO],
    }
    made_by = json.loads(json.dumps(made_by))
    note = work / "made-by.json"
    if note.is_file() and json.loads(note.read_bytes()) != made_by:
        sys.exit(f"{work} holds runs of other settings; add --restart to throw them away and begin again")
    durable.replace(note, (json.dumps(made_by, indent=1) + "\n").encode())


def described() -> str:
    """What was learned from, in a line."""
    held_out = world().held_out
    return (
        f"{held_out.name}; {LESSONS} requests for lessons, {ASKED} for reinforcement, {STEPS} steps of "
        f"{DAPO['groups_per_step']} groups of {DAPO['group_size']}; {'; '.join(held_out.notes)}"
    )


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows that end a run."""
    columns = (*SAMPLED, "greedy identity_rate", "ndcg@5 gain", "recall@1 gain", "hacked")
    print(f"{'':34}" + " ".join(f"{name[:14]:>24}" for name in columns))
    for row in rows:
        if " at step " not in row["name"]:
            cells = [row["metrics"].get(name) for name in columns]
            texts = ["" if c is None else f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" for c in cells]
            print(f"{row['name']:34}" + " ".join(f"{text:>24}" for text in texts))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gr2-hacking", help="where finished runs are kept")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, one core each")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds (fewer: to try)")
    parser.add_argument("--only", choices=CONDITIONS, action="append", help="one condition (default: all)")
    parser.add_argument("--restart", action="store_true", help="throw earlier runs away")
    given = parser.parse_args()
    seeds, chosen = SEEDS[: given.seeds], given.only or list(CONDITIONS)
    if given.restart and given.work.exists():
        shutil.rmtree(given.work)
    prepare(given.work)
    runs = [f"{name}/{reward}/{seed}" for seed in seeds for name in chosen for reward in CONDITIONS[name].rewards]
    run_missing([f"start/{seed}" for seed in seeds], given.work, given.jobs)
    run_missing(runs, given.work, given.jobs)
    rows, found_runs = [], {}
    for name in chosen:
        more, found_runs[name] = rows_of(given.work, name, seeds)
        rows += more
    show(rows)
    drawn = given.work if given.dry_run else given.directory
    draw(drawn / "gr2-hacking.svg", found_runs)
    finish(
        given,
        "gr2-hacking",
        command=COMMAND,
        data=described(),
        n=HELD_OUT,
        seeds=seeds,
        rows=rows,
        goal="over 5 seeds, naive is hacked in some condition, and no conditional reward is where it is",
        met=cured(rows),
    )


if __name__ == "__main__":
    main()
