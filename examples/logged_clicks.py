"""Clicks of made-up users with known parameters: what a log says that another order is worth, and what it is worth.

Run: python examples/logged_clicks.py            (a few seconds on one core)
"""

import gymnasium as gym
import numpy as np

from rerank_env import clicks
from rerank_env.data import load
from rerank_env.rewards import ClickCredit
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.rankings import from_scores, identity_rankings

rng = np.random.default_rng(0)

# Users look at place i with probability 1 / i and click what they look at as it pleases: by its grade, 0.1 to 0.5.
users = clicks.parse_click_model("pbm(eta=1, attraction=grades(max_grade=2, most=0.5))")
requests = load("synthetic", split="train", requests=3000)
log = clicks.logged(requests, users, rng=rng, sessions=3)
assert log.clicks_BK is not None
print(f"{len(log)} lists of {requests.candidates_BK.shape[1]}, {log.clicks_BK.sum(axis=1).mean():.2f} clicks a list")
print("clicks by place:", " ".join(f"{rate:.3f}" for rate in log.clicks_BK.mean(axis=0)))

# Another order of the same lists: by how the taste that the history shows fits each candidate, a least-squares guess.
traits_IT = requests.catalog.features_IF[:, :-1].astype(float)
seen_BHT, opinions_BH = traits_IT[log.history_BH], log.feedback_BH - log.feedback_BH.mean(axis=1, keepdims=True)
normal_BTT = np.einsum("bht,bhs->bts", seen_BHT, seen_BHT) + 0.5 * np.eye(traits_IT.shape[1])
taste_BT = np.linalg.solve(normal_BTT, np.einsum("bht,bh->bt", seen_BHT, opinions_BH)[..., None])[..., 0]
liking_BK = np.einsum("bkt,bt->bk", traits_IT[log.candidates_BK], taste_BT) + log.scores_BK
informed_BK = from_scores(liking_BK, log.sizes_B, ties="incoming")[0]
incoming_BK = identity_rankings(log.sizes_B, log.candidates_BK.shape[1])

# What is it worth to show that order? By the log as it is, by the log corrected for place, and in truth.
naive, corrected = ClickCredit(min_propensity=1), ClickCredit(min_propensity=0.1)
gains = {
    "plain clicks": naive(informed_BK, log.slates) - naive(incoming_BK, log.slates),
    "clicks over propensities": corrected(informed_BK, log.slates) - corrected(incoming_BK, log.slates),
    "the truth": clicks.true_value(log, users, informed_BK) - clicks.true_value(log, users, incoming_BK),
}
found = cluster_bootstrap(np.stack(list(gains.values()), axis=1), log.users_B, resamples=1000, rng=rng)
for column, name in enumerate(gains):
    print(f"gain by {name:25} {found.interval(column)}")
plain, ips, truth = (found.interval(column) for column in range(3))
assert ips.low <= truth.value <= ips.high
assert not plain.low <= truth.value <= plain.high

# The log is a data set like any other, so an environment can pay by its clicks.
env = gym.make("rerank_env:Rerank-v0", data=log, reward="click_credit(min_propensity=0.1)")
paid = []
for episode in range(200):
    row = env.reset(seed=0 if episode == 0 else None)[1]["request"]
    paid.append(float(env.step(informed_BK[row])[1]))
print(f"the environment pays {np.mean(paid):.3f} a list for the other order, in the mean of {len(paid)}")
