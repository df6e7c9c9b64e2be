"""Plug a reward of your own into the environment: a plain function of rankings and slates.

Run: python examples/custom_reward.py
"""

import gymnasium as gym
import numpy as np

from rerank_env import rewards as R


def top_is_relevant(rankings_BK: np.ndarray, slates: R.Slates) -> np.ndarray:
    """1 where the first place holds something relevant, else 0; one number a request."""
    first_B = rankings_BK[:, 0]
    return np.array(slates.relevance_BK[np.arange(len(first_B)), first_B] > 0, dtype=float)


# Declare its range over valid answers and what an invalid answer is worth; it then composes like any other reward.
mine = R.FunctionReward(top_is_relevant, name="top_is_relevant", low=0.0, high=1.0, invalid=-1.0)
reward = 0.5 * mine + R.gain()

env = gym.make("rerank_env:Rerank-v0", data="synthetic", reward=reward, render_mode="ansi")
observation, info = env.reset(seed=0)
best_first = np.argsort(-observation["scores"])  # a policy: trust the first stage, that is, echo it
observation, value, terminated, truncated, info = env.step(best_first)
print(env.render())
print(f"reward {value:.3f} from {info['reward_parts']}, identity {info['identity']}")

# An illegal answer is scored and flagged, never raised.
env.reset()
_, value, _, _, info = env.step(np.zeros(10, dtype=np.int64))
print(f"naming one candidate ten times earns {value:.2f}: {R.Verdict(info['verdict']).sentence}")
env.close()
