"""What our additions to TRL cost: their share of a DAPO step, and the whole step beside that of TRL's own trainer.

    python benchmarks/trl_overhead.py            # writes docs/results/trl-overhead.json
    python benchmarks/trl_overhead.py --dry-run  # prints only

Needs the `language` extra. Real steps of `DapoTrainer` as the tiny recipe takes them: its model, its compact prompts
with remarks, ten candidates, its groups of answers with reasons, its reward and learning rate. The model has been
taught the form of the answers, so that most are read to their end and scored (`valid_share`). Ours are the parts of a
step that TRL has not: shuffling candidates, writing the prompts, putting them in tokens (which TRL does too), reading
answers, paying them, and the bookkeeping of dynamic sampling with all else that our trainer does around TRL's methods.
Writing answers and the loss are not ours; nor is writing answers to fresh requests where groups were dead, whose rounds
are counted in `resampling_rounds`. Times are those of the part itself, without what it calls that is a part too.

The rival is `trl.GRPOTrainer` with the same weights, prompts, lengths and reward, told the same; it is compared with
ours without resampling, which it has not. Ours reads a prompt once for its eight answers, in writing and in the loss.
Then ours where dynamic sampling has much to do: by the metric `recall@1`, groups in which no answer has the relevant
candidate first are dead, and up to two rounds of fresh requests replace them. A repeat trains each from the same
weights for a few steps, of which the first is not counted; the clock runs from the end of a step to that of the next.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from record import finish, options_of, spread
from stopwatch import Stopwatch

from rerank_env.training.recipes.sizes import size_of

os.environ["HF_HUB_OFFLINE"] = "1"

GOAL_PERCENT = 3.0
TINY = size_of("tiny").settings
REWARD, GROUP_SIZE, MAX_TOKENS = TINY.dapo.reward, TINY.dapo.group_size, TINY.dapo.max_tokens
WAYS: Mapping[str, tuple[str, int]] = {"DapoTrainer": ("ndcg@10", 0), "DapoTrainer, groups resampled": ("recall@1", 2)}
"""By the metric that tells dead groups, and at most so many rounds of others in their place."""

REQUESTS = 512
RIVAL = "trl.GRPOTrainer"
LOGGED = {
    "answer_tokens": "completions/mean_length",
    "valid_share": "valid",
    "dead_share": "dead_share",
    "resampling_rounds": "resamples",
}
"""Metrics of the record, and what they are called in the trainer's log."""

OURS = ("shuffles", "prompts", "tokens", "reading", "reward", "bookkeeping")


@contextmanager
def watched(stopwatch: Stopwatch) -> Iterator[None]:
    """Every part of a step on the clock inside; each is a method of ours, or one of TRL's that ours goes around."""
    from trl import GRPOTrainer

    from rerank_env.prompts import PromptWriter
    from rerank_env.rewards.scoring import Scorer
    from rerank_env.training.language import trainer
    from rerank_env.training.language.shuffles import Shuffles
    from rerank_env.training.language.signals import WatchedReward

    parts: list[tuple[Any, str, str]] = [
        (Shuffles, "show", "shuffles"),
        (PromptWriter, "write", "prompts"),
        (Scorer, "read", "reading"),
        (WatchedReward, "__call__", "reward"),
        (trainer.DapoTrainer, "_generate_single_turn", "writing"),
        (trainer.DapoTrainer, "_get_per_token_logps_and_entropies", "loss"),
    ]
    for method in ("_prepare_inputs", "_generate_and_score_completions", "_compute_loss", "_get_grad_norm"):
        parts += [(trainer.DapoTrainer, method, "bookkeeping"), (GRPOTrainer, method, "trl")]
    with ExitStack() as patches:
        for owner, name, part in parts:
            patches.enter_context(patch.object(owner, name, stopwatch.around(getattr(owner, name), part)))
        yield


@dataclass
class Clock:
    """Told of a run by its trainer: `marks`, the time and the seconds of each part at a step's end, and `logs`."""

    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    marks: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimiser has made its update."""
        self.marks.append((time.perf_counter(), dict(self.stopwatch.seconds)))

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        """The trainer says what the step was like."""
        self.logs.append(logs)

    @classmethod
    def callback(cls) -> Any:
        """One that transformers takes."""
        from transformers import TrainerCallback

        return type("ClockCallback", (cls, TrainerCallback), {})()


def measured(clock: Clock) -> dict[str, float]:
    """Seconds a step, of all and of each part, and the means of what was logged, over the steps after the first."""
    (start, before), (end, after) = clock.marks[0], clock.marks[-1]
    steps = len(clock.marks) - 1
    found = {part: (after[part] - before.get(part, 0.0)) / steps for part in after}
    logs = [entry for entry in clock.logs if "reward" in entry][1:]
    for name in ("completions/mean_length", "valid", "dead_share", "resamples"):
        if all(name in entry for entry in logs):
            found[name] = float(np.mean([float(entry[name]) for entry in logs]))
    return found | {"step": (end - start) / steps}


class Benchmark:
    """Requests, a policy that was taught to answer, and steps of both trainers from its weights."""

    def __init__(self, *, groups: int, updates: int) -> None:
        from remarked import lessons, model_for, requests_of, teach, tokenizer_for

        from rerank_env.agents.language.decoding import Decoding
        from rerank_env.agents.language.policy import LanguagePolicy
        from rerank_env.prompts import PromptWriter

        self.groups = groups
        self.requests = requests_of(REQUESTS, seed=0)
        self.writer = PromptWriter(TINY.wording.text_format, prompt=TINY.wording.template)
        self.tokenizer = tokenizer_for(self.requests, self.writer)
        self.decoding = Decoding(batch_size=groups * GROUP_SIZE)
        self.taught = LanguagePolicy(model_for(self.tokenizer), self.tokenizer, self.writer, decoding=self.decoding)
        teach(self.taught, *lessons(self.requests, self.writer, seed=1), updates=updates)

    def ours(self, steps: int, seed: int, metric: str, resamples: int) -> dict[str, float]:
        """Steps of `DapoTrainer`, with every part on the clock."""
        from rerank_env.training.language.trainer import DapoTrainer

        policy, clock = self._policy(), Clock.callback()
        with watched(clock.stopwatch), tempfile.TemporaryDirectory() as folder:
            config = self._config(steps, seed, metric, resamples)
            trainer = DapoTrainer(
                policy, self.requests, REWARD, config=config, directory=Path(folder), callbacks=[clock]
            )
            shuffles = trainer.shuffles
            shuffles.prompt_ids = clock.stopwatch.around(shuffles.prompt_ids, "tokens")
            trainer.train()
        return measured(clock)

    def theirs(self, steps: int, seed: int) -> dict[str, float]:
        """Steps of `GRPOTrainer` on the prompts that ours shows in the same steps."""
        from datasets import Dataset
        from transformers import PrinterCallback
        from trl import GRPOTrainer

        from rerank_env.training.adapters.trl import TrlReward
        from rerank_env.training.language.dapo_settings import arguments
        from rerank_env.training.language.resampling import schedule
        from rerank_env.training.language.shuffles import Shuffles

        config = self._config(steps, seed, "ndcg@10", 0)
        policy, clock = self._policy(), Clock.callback()
        shuffles = Shuffles(self.requests, self.writer, mode=config.shuffle, seed=seed, prompt_ids=policy.prompt_ids)
        rows: list[dict[str, Any]] = []
        for draw, rows_B in enumerate(schedule(len(self.requests), steps=config.steps, groups=self.groups, seed=seed)):
            shown = shuffles.show(rows_B, 1, draw=draw)
            texts = self.tokenizer.batch_decode(shown.token_ids)
            assert self.tokenizer(texts)["input_ids"] == shown.token_ids, "the rival reads what ours reads"
            rows += [row | {"prompt": text} for row, text in zip(shown.rows(), texts, strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            trainer = GRPOTrainer(
                model=policy.model,
                reward_funcs=TrlReward(REWARD, self.writer.text_format),
                args=arguments(config, Path(folder), device="cpu"),
                train_dataset=Dataset.from_list(rows),
                processing_class=self.tokenizer,
                callbacks=[clock],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return measured(clock)

    def _policy(self) -> Any:
        policy = type(self.taught)(
            deepcopy(self.taught.model), self.tokenizer, self.writer, decoding=self.taught.decoding
        )
        policy.model.train()
        return policy

    def _config(self, steps: int, seed: int, metric: str, resamples: int) -> Any:
        from rerank_env.training.language.dapo_settings import DapoConfig

        return DapoConfig(
            steps=steps + 1,
            groups_per_step=self.groups,
            group_size=GROUP_SIZE,
            micro_batch=TINY.dapo.micro_batch,
            learning_rate=TINY.dapo.learning_rate,
            max_tokens=MAX_TOKENS,
            metric=metric,
            max_resamples=resamples,
            save_every=steps + 2,
            seed=seed,
        )


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of each repeat that are counted")
    parser.add_argument("--groups", type=int, default=TINY.dapo.groups_per_step, help="of a step")
    parser.add_argument("--updates", type=int, default=100, help="by which the model is taught the form of answers")
    options = parser.parse_args()

    torch.set_num_threads(1)
    benchmark = Benchmark(groups=options.groups, updates=options.updates)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in (*WAYS, RIVAL)}
    for seed in range(options.repeats):
        for name, (metric, resamples) in WAYS.items():
            runs[name].append(benchmark.ours(options.steps, seed, metric, resamples))
        runs[RIVAL].append(benchmark.theirs(options.steps, seed))

    answers = options.groups * GROUP_SIZE
    rows: list[dict[str, Any]] = [
        {"name": RIVAL, "metrics": told(runs[RIVAL], {"answer_tokens": "completions/mean_length"})}
    ]
    for name in WAYS:
        rows.append({"name": name, "metrics": told(runs[name], LOGGED) | shares(runs[name], answers)})
    first = next(iter(WAYS))
    pairs = zip(runs[first], runs[RIVAL], strict=True)
    rows[1]["metrics"]["step_ratio"] = spread([ours["step"] / theirs["step"] for ours, theirs in pairs])
    for one in rows:
        print(one["name"])
        for name, numbers in one["metrics"].items():
            print(f"  {name}: {numbers['value']:.4g} [{numbers['low']:.4g}, {numbers['high']:.4g}]")
    finish(
        options,
        "trl-overhead",
        command="python benchmarks/trl_overhead.py",
        data=f"synthetic, {REQUESTS} requests of 10 candidates with remarks; {options.groups} groups of {GROUP_SIZE} "
        f"answers a step, {MAX_TOKENS} tokens at most, a model of width {TINY.model.width} and {TINY.model.layers} "
        "layers, one CPU",
        n=answers * options.repeats * options.steps,
        seeds=list(range(options.repeats)),
        rows=rows,
        goal=f"our additions take less than {GOAL_PERCENT:g} % of a step in every repeat; ranges are over repeats",
        met=all(row["metrics"]["additions_percent"]["high"] < GOAL_PERCENT for row in rows[1:]),
    )


def told(runs: list[dict[str, float]], logged: Mapping[str, str]) -> dict[str, Any]:
    """The seconds of a step, and what was logged of it."""
    keys = {"step_seconds": "step", **logged}
    return {name: spread([run[key] for run in runs]) for name, key in keys.items()}


def shares(runs: list[dict[str, float]], answers: int) -> dict[str, Any]:
    """What our additions take of a step, together and each; of an answer they take microseconds."""
    added = [sum(run[part] for part in OURS) for run in runs]
    found = {
        "additions_percent": [100 * seconds / run["step"] for seconds, run in zip(added, runs, strict=True)],
        "additions_microseconds_per_answer": [1e6 * seconds / answers for seconds in added],
    }
    for part in (*OURS, "writing"):
        found[f"{part}_percent"] = [100 * run[part] / run["step"] for run in runs]
    return {name: spread(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
