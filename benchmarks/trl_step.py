"""What share of a GRPO step of TRL our reward takes: the time inside the reward call over the time of the step.

    python benchmarks/trl_step.py            # writes docs/results/trl-step.json
    python benchmarks/trl_step.py --dry-run  # prints only

Needs the `trl` extra. A real `GRPOTrainer` trains on the CPU a model of one layer that has been taught to answer with
lists, so that answers are read to their end and scored. A model worth training takes longer for a step, on a CPU at
least, and the same time for the reward; the microseconds per completion are there for comparing with a step of one's
own. The first step is not counted; the others are split into repeats, whose median, least and greatest are recorded.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any, ClassVar

import numpy as np
from record import finish, options_of, spread

os.environ["HF_HUB_OFFLINE"] = "1"

from rerank_env.data import load
from rerank_env.rewards import gain
from rerank_env.training.adapters.trl import TrlReward, dataset_and_reward

GOAL_PERCENT = 1.0
INVALID = gain().invalid
SEED = 0
SLATE_SIZE = 10
HISTORY = 4
GROUP = 8
MAX_TOKENS = 48


class Timed:
    """A reward whose calls are timed: `seconds` of each."""

    def __init__(self, reward: TrlReward) -> None:
        self.reward = reward
        self.__name__ = reward.__name__
        self.seconds: list[float] = []
        self.valid: list[float] = []

    def __call__(self, **given: Any) -> list[float | None]:
        """The values of the reward."""
        start = time.perf_counter()
        values = self.reward(**given)
        self.seconds.append(time.perf_counter() - start)
        self.valid.append(float(np.mean([value != INVALID for value in values])))
        return values


def run(steps: int, completions: int) -> tuple[list[float], Timed]:
    """The seconds of each step after the first, and the reward with the seconds of its calls, one a step."""
    from tiny import taught_model, tiny_tokenizer
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        started = 0.0
        seconds: ClassVar[list[float]] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.started)

    requests = load("synthetic", requests=256, slate_size=SLATE_SIZE, history=HISTORY, seed=SEED)
    dataset, reward = dataset_and_reward(requests, "gain")
    # A token a number, so that each follows from the one before: that much a single layer learns.
    tokenizer = tiny_tokenizer(whole=tuple(f", {number}" for number in range(1, SLATE_SIZE)))
    prompts = tokenizer.apply_chat_template(dataset["prompt"][:64], tokenize=False, add_generation_prompt=True)
    answers = [str([*range(SLATE_SIZE, 0, -1)])] * len(prompts)
    timed, clock = Timed(reward), Clock()
    with tempfile.TemporaryDirectory() as folder:
        GRPOTrainer(
            model=taught_model(tokenizer, prompts, answers),
            reward_funcs=timed,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=completions,
                num_generations=GROUP,
                max_completion_length=MAX_TOKENS,
                max_steps=steps + 1,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                seed=SEED,
            ),
            train_dataset=dataset,
            processing_class=tokenizer,
            callbacks=[clock],
        ).train()
    return clock.seconds[1:], timed


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--completions", type=int, default=32, help="in one step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of each repeat")
    options = parser.parse_args()

    steps, timed = run(options.repeats * options.steps, options.completions)
    step_RS = np.array(steps).reshape(options.repeats, options.steps)
    reward_RS = np.array(timed.seconds[1:]).reshape(options.repeats, options.steps)
    percents = (100 * reward_RS.sum(axis=1) / step_RS.sum(axis=1)).tolist()
    metrics = {
        "reward_percent_of_step": spread(percents),
        "reward_microseconds_per_completion": spread((1e6 * reward_RS.mean(axis=1) / options.completions).tolist()),
        "step_seconds": spread(step_RS.mean(axis=1).tolist()),
        "valid_share": spread(timed.valid[1:]),
    }
    for name, numbers in metrics.items():
        print(f"{name}: {numbers['value']:.4g} [{numbers['low']:.4g}, {numbers['high']:.4g}]")
    finish(
        options,
        "trl-step",
        command="python benchmarks/trl_step.py",
        data=f"synthetic, {SLATE_SIZE} candidates; {options.completions} completions a step in groups of {GROUP}, "
        f"{MAX_TOKENS} tokens at most, a model of one layer",
        n=options.completions * options.repeats * options.steps,
        seeds=[SEED],
        rows=[{"name": "gain", "metrics": metrics}],
        goal=f"the reward takes less than {GOAL_PERCENT:g} % of a step in every repeat; ranges are over repeats",
        met=max(percents) < GOAL_PERCENT,
    )


if __name__ == "__main__":
    main()
