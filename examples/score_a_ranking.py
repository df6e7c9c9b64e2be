"""Score rankings with the rewards of the library, and see why echoing the incoming order must not pay.

Run: python examples/score_a_ranking.py
"""

import numpy as np

from rerank_env import rewards as R

# Two requests. Each number is the gain of a candidate, in the order the earlier stage left them; lengths may differ.
slates = R.Slates.of([[0, 0, 2, 1], [1, 0, 0]])

# One answer a request: candidate numbers, best first, padded with -1.
answers = np.array([[2, 3, 0, 1], [0, 1, 2, -1]])
echo = np.array([[0, 1, 2, 3], [0, 1, 2, -1]])

for reward in (R.naive(), R.gr2(), R.gain()):
    print(f"{reward}\n  answers earn {reward(answers, slates).round(3)}, echoing earns {reward(echo, slates).round(3)}")

# Rewards are values: they add, scale and take conditions, and their text form parses back.
mine = R.Ndcg(k=3).over_incoming() + 0.1 * R.ValidFormat().when(R.Improved())
assert R.parse_reward(str(mine)) == mine

# Model text is parsed strictly, once. Every deviation is a verdict, never a repair.
for text in ("[3, 4, 1, 2]", "[3, 4, 1]", "Sure! [3, 4, 1, 2]"):
    parsed = R.parse(text, size=4)
    print(f"{text!r}: {parsed.verdict.name.lower()}, {parsed.reason}")
