"""How many times the steps a second of Gymnasium's SyncVectorEnv the native vector form does, in one process.

    python benchmarks/vector_env.py            # writes docs/results/vector-env.json
    python benchmarks/vector_env.py --dry-run  # prints only

Rival: `SyncVectorEnv` over environments from `gym.make`, the form everyone has by default. Both step the same requests
with the same legal rankings under same-step autoreset and default arguments, and must return equal rewards before
anything is timed. A repeat goes from one to the other several times, so that a slow spell of the machine hits both;
it gives one ratio, and the lowest of them has to reach the goal. Processor time is reported beside the clock on the
wall, because other programs do not count in it: both forms run in one thread and wait for nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from record import finish, options_of, spread

from rerank_env.rewards.rankings import random_rankings

GOAL_RATIO = 100.0
ID = "rerank_env:Rerank-v0"
SEED = 0
ROUNDS = 16
"""How many different batches of actions are cycled through."""

SLICES = 4
"""How often a repeat goes from one form to the other."""


def both_forms(environments: int) -> tuple[gym.vector.VectorEnv[Any, Any, Any], gym.vector.VectorEnv[Any, Any, Any]]:
    """The native form and the rival."""
    native = gym.make_vec(ID, num_envs=environments, vectorization_mode="vector_entry_point")
    rival = gym.make_vec(
        ID,
        num_envs=environments,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    return native, rival


def legal_actions(environments: int, width: int) -> npt.NDArray[np.int64]:
    """Random permutations [ROUNDS, environments, width]."""
    sizes_B = np.full(ROUNDS * environments, width)
    rankings_BK = random_rankings(sizes_B, width, np.random.default_rng(SEED))
    return rankings_BK.reshape(ROUNDS, environments, width)


@dataclass
class Clock:
    """Environment steps of one form, with the wall-clock and processor seconds they took."""

    steps: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def run(self, envs: gym.vector.VectorEnv[Any, Any, Any], actions: npt.NDArray[np.int64], seconds: float) -> None:
        """Step for at least `seconds` and at least once, going through the batches of actions."""
        wall, cpu, batches = time.perf_counter(), time.process_time(), 0
        while not batches or time.perf_counter() - wall < seconds:
            envs.step(actions[batches % len(actions)])
            batches += 1
        self.wall_seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu
        self.steps += batches * envs.num_envs


def check_equal(
    native: gym.vector.VectorEnv[Any, Any, Any],
    rival: gym.vector.VectorEnv[Any, Any, Any],
    actions: npt.NDArray[np.int64],
) -> None:
    """Both must be the same task: equal rewards and requests, or nothing is worth timing."""
    native.reset(seed=SEED)
    rival.reset(seed=SEED)
    for batch in actions[:2]:
        left, right = native.step(batch), rival.step(batch)
        if left[1].tobytes() != right[1].tobytes() or (left[4]["request"] != right[4]["request"]).any():
            raise SystemExit("the two forms disagree; run the tests before the benchmark")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--environments", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each form and repeat")
    options = parser.parse_args()

    native, rival = both_forms(options.environments)
    actions = legal_actions(options.environments, native.single_action_space.shape[0])  # type: ignore[index]
    check_equal(native, rival, actions)
    native_rates, rival_rates, ratios, cpu_ratios = [], [], [], []
    for repeat in range(options.repeats):
        ours, theirs = Clock(), Clock()
        for _ in range(SLICES):
            ours.run(native, actions, options.seconds / SLICES)
            theirs.run(rival, actions, options.seconds / SLICES)
        native_rates.append(ours.steps / ours.wall_seconds)
        rival_rates.append(theirs.steps / theirs.wall_seconds)
        ratios.append(native_rates[-1] / rival_rates[-1])
        cpu_ratios.append(ours.steps / ours.cpu_seconds / (theirs.steps / theirs.cpu_seconds))
        print(
            f"repeat {repeat + 1}: native {native_rates[-1]:,.0f}, SyncVectorEnv {rival_rates[-1]:,.0f} steps/s, "
            f"ratio {ratios[-1]:.0f}, by processor time {cpu_ratios[-1]:.0f}"
        )
    ratio = spread(ratios)
    met = ratio["low"] >= GOAL_RATIO
    print(f"ratio {ratio['value']:.0f} ({ratio['low']:.0f} to {ratio['high']:.0f}), goal {GOAL_RATIO:.0f}: ", end="")
    print("met" if met else "missed")
    finish(
        options,
        "vector-env",
        command="python benchmarks/vector_env.py",
        data="synthetic, graded, train split, slates of 10",
        n=options.environments,
        seeds=[SEED],
        rows=[
            {"name": "native vector form", "metrics": {"steps_per_second": spread(native_rates)}},
            {"name": "gymnasium SyncVectorEnv", "metrics": {"steps_per_second": spread(rival_rates)}},
            {"name": "native / SyncVectorEnv", "metrics": {"ratio": ratio, "processor_time_ratio": spread(cpu_ratios)}},
        ],
        goal=f"every repeat's ratio is at least {GOAL_RATIO:.0f} at 1,024 environments; value is the median, low and "
        "high the range over repeats",
        met=met,
    )


if __name__ == "__main__":
    main()
