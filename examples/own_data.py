"""Train on requests of your own: ragged lists in, a policy beside the baselines out.

Run: python examples/own_data.py            (some seconds on one core)
"""

import tempfile

import numpy as np
import torch

from rerank_env.agents import ListwisePolicy
from rerank_env.data import Catalog, Requests
from rerank_env.data.describe import describe
from rerank_env.training import dapo
from rerank_env.training.evaluate import evaluate

rng = np.random.default_rng(0)
colours, kinds = ("red", "blue", "green"), ("shoe", "hat", "scarf", "bag")
texts = [f"{colour} {kind}" for colour in colours for kind in kinds]
features = [[*(c == colour for c in colours), *(k == kind for k in kinds)] for colour in colours for kind in kinds]
catalog = Catalog.of(texts, np.array(features, dtype=np.float32))


def shoppers(count: int, name: str) -> Requests:
    """Everyone has a favourite colour; the earlier stage does not know it, the history gives it away."""
    candidates, relevance, history, feedback = [], [], [], []
    for _ in range(count):
        items = rng.permutation(len(texts))
        seen, offered = items[:4], items[4 : rng.integers(8, 13)]
        colour = rng.integers(len(colours))
        liked = np.arange(len(texts)) // len(kinds) == colour
        candidates.append(offered)
        relevance.append(liked[offered].astype(float))
        history.append(seen)
        feedback.append(liked[seen].astype(float))
    return Requests.of(candidates, relevance, history=history, feedback=feedback, catalog=catalog, name=name)


train, test = shoppers(400, "shop, train"), shoppers(300, "shop, test")
print(describe(train).to_dict())

policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0), dim=32)
with tempfile.TemporaryDirectory() as directory:
    config = dapo.DapoConfig(steps=60, requests_per_step=32, learning_rate=3e-3)
    dapo.train(policy, train, "gain", config=config, directory=directory)

found = evaluate(test, {"mine": policy}, seed=0)
gain = found.gain("mine", "ndcg@10")
print(f"NDCG@10 {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] over the incoming order")
assert gain.is_gain
