"""DAPO on one page: a re-ranker learns in Rerank-v0 (the full trainer is rerank_env.training.dapo).

Run: python examples/dapo_one_page.py            (half a minute on one core)
"""

import gymnasium as gym
import numpy as np
import torch

import rerank_env
from rerank_env.agents import ListwisePolicy, plackett_luce
from rerank_env.training.evaluate import evaluate

REQUESTS, GROUP, STEPS, LOW, HIGH = 64, 16, 120, 0.2, 0.28

train, test = rerank_env.load("synthetic"), rerank_env.load("synthetic", split="test")
envs = gym.make_vec(
    "rerank_env:Rerank-v0",
    num_envs=REQUESTS * GROUP,
    vectorization_mode="vector_entry_point",
    data=train,
    reward="gain",
)
policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(0)

for step in range(1, STEPS + 1):
    # A group of answers to each request, sampled from the exact law over permutations and scored by the environment.
    rows = rng.choice(len(train), REQUESTS, replace=False)
    envs.reset(options={"request": rows.repeat(GROUP)})
    requests = train.take(rows)
    sizes = torch.from_numpy(requests.sizes_B)
    with torch.no_grad():
        logits = policy(requests)
        rankings = plackett_luce.sample(logits, sizes, GROUP, generator=generator)
        old = plackett_luce.log_prob(logits, rankings, sizes)
    _, paid, _, _, _ = envs.step(rankings.flatten(0, 1).numpy())

    # What an answer is worth beside the other answers to the same request; groups that all earn the same say nothing.
    rewards = torch.from_numpy(paid).view(REQUESTS, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    alive = (rewards != rewards[:, :1]).any(1)

    # The clipped objective, with more room upwards than downwards, averaged over all slots of the batch.
    ratio = (plackett_luce.log_prob(policy(requests), rankings, sizes) - old).exp()
    surrogate = torch.minimum(ratio * advantages[..., None], ratio.clamp(1 - LOW, 1 + HIGH) * advantages[..., None])
    loss = -surrogate[alive].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: mean gain over the incoming order {paid.mean():+.4f}")

policy.eval()
found = evaluate(test, {"policy": policy}, seed=0)
gain = found.gain("policy", "ndcg@10")
print(f"held out: NDCG@10 {gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over the incoming order")
assert gain.is_gain
