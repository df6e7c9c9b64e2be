"""Is the policy gradient of block diffusion right? Named estimators against gradients that are known exactly.

Run: python benchmarks/estimator_truth.py                  (about a minute on one idle core)

A tiny random transformer writes four tokens of three in two blocks of two. Completions and all ways to decode them are
enumerated (`estimator_toy`), each completion is paid a random reward, and its advantage is that less the mean, so the
exact gradient of the expected reward is known for every way to decode:

    left to right     one place a round           static(1)         all places of a block in one round
    surest first      the surest place a round    threshold(0.6)    all that are sure enough, else the surest; the first
    random order      one place a round, at random                  of a block alone where it is not sure

A row is an estimator under a way to decode. With g the advantage times the gradient of the estimated log-probability,
what reinforcement learning climbs along at its first inner step, and e the exact gradient:

    bias      |E g - e| / |e|, the expectation over all decodings and, where masks are drawn, over all masks
    cosine    of E g and e, which the scale of an estimator leaves alone
    variance  E |g - E g|^2 / |e|^2 of a single completion; masks drawn `DRAWS` times a completion
    error     the largest difference of the log-probability from the truth: of what was committed for `replay`, which
              leaves the order out, else of the completion under that way to decode
    excess    the largest amount by which it is above the truth
    canvases  noisy blocks that are read for a completion
    forwards  passes of the model that a completion needs for these

"replay and order" adds the gradient of the log-probability of the order, which only an enumeration knows. `gpl` fills
an answer of three slots, in two blocks. Value, low and high: the median over the seeds, and their range.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from estimator_toy import ORDERS, Path, Tokens, Toy, expected
from record import finish, options_of, spread
from torch import Tensor

from rerank_env.agents.block_diffusion.filling import Form
from rerank_env.agents.block_diffusion.likelihood import (
    ArOrder,
    Coupled,
    Elbo,
    Gpl,
    Likelihood,
    MeanField,
    Plan,
    Replay,
    Written,
    score,
)

COMMAND = "python benchmarks/estimator_truth.py"
SEEDS = (0, 1, 2, 3, 4, 5, 6, 7)
TOLERANCE = 1e-5
DRAWS = 32
FIXED = ("left to right", "static(1)", "random order")
"""Ways to decode whose order owes nothing to the parameters."""

GOAL = (
    f"within {TOLERANCE:g} of the truth: the log-probability of what was committed by replay, its gradient where the "
    "order owes nothing to the parameters, replay and order everywhere, log-probability and gradient of ar_order from "
    "left to right, mean_field in one round and gpl; elbo never above the truth of a random order"
)

Metrics = dict[str, float]
Entry = tuple[Tokens, Tokens, int, int]
"""A token at a place of a canvas behind clean tokens."""


class Judge:
    """Estimators of one toy with one reward."""

    def __init__(self, seed: int) -> None:
        self.toy = Toy(seed)
        rewards = np.random.default_rng(seed).normal(size=len(self.toy.completions))
        self.rewards = dict(zip(self.toy.completions, rewards.tolist(), strict=True))
        self.generator = torch.Generator().manual_seed(seed)
        self.gradient_of = cache(self._gradient_of)

    def rows(self) -> dict[str, Metrics]:
        """The metrics of every row."""
        toy, setting = self.toy, self.toy.setting
        written = [Written(toy.prompt, list(tokens)) for tokens in toy.completions]
        plans: dict[Likelihood, list[Plan]] = {
            estimator: estimator.plan(written, setting) for estimator in (MeanField(), ArOrder())
        }
        plans |= {
            estimator: [expected(estimator, one, setting) for one in written] for estimator in (Elbo(), Coupled())
        }
        values = {estimator: self.values(some)[0] for estimator, some in plans.items()}
        drawn: dict[Likelihood, list[Plan]] = {
            estimator: estimator.plan(
                [one for one in written for _ in range(DRAWS)], replace(setting, generator=self.generator)
            )
            for estimator in (Elbo(), Coupled())
        }
        with torch.no_grad():
            cost = {estimator: self.values(drawn.get(estimator, some))[1] for estimator, some in plans.items()}
        found: dict[str, Metrics] = {}
        for name, order in ORDERS.items():
            paths = toy.paths(order)
            truth = self.of_completions(paths)
            chance = torch.stack([p.detach() for p in truth.values()])
            mean = float(sum(p * self.rewards[tokens] for p, tokens in zip(chance, truth, strict=True)))
            gain = {tokens: reward - mean for tokens, reward in self.rewards.items()}
            exact = toy.gradient(torch.stack([p * gain[tokens] for tokens, p in truth.items()]).sum())
            gain_N = torch.tensor([gain[tokens] for tokens in truth], dtype=torch.float64)
            log_truth_N = torch.stack(list(truth.values())).log().detach()
            for estimator, some in plans.items():
                copies = drawn.get(estimator, some)
                many = len(copies) // len(some)
                metrics = self.compared(values[estimator], chance, gain_N, exact)
                metrics |= self.spread_of(copies, chance.repeat_interleave(many) / many, gain_N, exact, metrics)
                found[f"{estimator} · {name}"] = metrics | (
                    cost[estimator] | _errors(values[estimator].detach() - log_truth_N)
                )
            found |= self.replayed(name, paths, gain, exact)
        return found | {"gpl": self.ranked()}

    def values(self, plans: Sequence[Plan]) -> tuple[Tensor, Metrics]:
        """What the estimators themselves make of plans, summed over each completion, with a graph; and the cost."""
        toy = self.toy
        scored = score(toy.model, plans, blocks=toy.blocks, mask_id=toy.mask_id, pad_id=0, batch_size=len(plans))
        canvases = sum(len(plan.looks) for plan in plans) / len(plans)
        cost = {"canvases": canvases, "forwards": scored.forwards / len(plans)}
        return torch.stack([one.sum() for one in scored.log_probs]).double(), cost

    def of_completions(self, paths: Mapping[Path, Tensor]) -> dict[Tokens, Tensor]:
        """The probability of each completion, all its decodings together, in the order of `Toy.completions`."""
        found = dict.fromkeys(self.toy.completions, torch.zeros((), dtype=torch.float64))
        for (tokens, _), p in paths.items():
            found[tokens] = found[tokens] + p
        return found

    def compared(self, values_N: Tensor, chance_N: Tensor, gain_N: Tensor, exact: Tensor) -> Metrics:
        """Bias and cosine of the expected gradient."""
        return _apart(self.toy.gradient((values_N * chance_N * gain_N).sum()), exact)

    def spread_of(
        self, plans: Sequence[Plan], chance_M: Tensor, gain_N: Tensor, exact: Tensor, metrics: Metrics
    ) -> Metrics:
        """The variance of one completion's gradient, from the gradients of the tokens that its plan looks at."""
        entries: dict[Entry, int] = {}
        told = [(number, *one) for number, plan in enumerate(plans) for one in self.looked_at(plan)]
        for _, entry, _ in told:
            entries.setdefault(entry, len(entries))
        weights_ME = torch.zeros(len(plans), len(entries), dtype=torch.float64)
        for number, entry, weight in told:
            weights_ME[number, entries[entry]] += weight
        gradients_MP = weights_ME @ torch.stack([self.gradient_of(entry) for entry in entries])
        gradients_MP *= gain_N.repeat_interleave(len(plans) // len(gain_N))[:, None]
        mean_P = chance_M @ gradients_MP
        away_M = (gradients_MP - mean_P).square().sum(-1)
        assert len(plans) > len(gain_N) or abs(float((mean_P - exact).norm() / exact.norm()) - metrics["bias"]) < 1e-4
        return {"variance": float(chance_M @ away_M / exact.square().sum())}

    def looked_at(self, plan: Plan) -> list[tuple[Entry, float]]:
        """The tokens that a plan looks at, each with its weight."""
        size = self.toy.blocks.size
        found = []
        for look in plan.looks:
            start = look.canvas.block * size
            before, canvas = tuple(plan.tokens[:start]), tuple(look.canvas.tokens)
            for place, weight in zip(look.canvas.wanted, look.weights, strict=True):
                found.append(((before, canvas, place, plan.tokens[start + place]), weight))
        return found

    def _gradient_of(self, entry: Entry) -> Tensor:
        before, canvas, place, token = entry
        return self.toy.gradient(self.toy.law(before, canvas)[place, token])

    def replayed(
        self, name: str, paths: Mapping[Path, Tensor], gain: Mapping[Tokens, float], exact: Tensor
    ) -> dict[str, Metrics]:
        """The rows of `replay` under one way to decode, without and with the order."""
        toy = self.toy
        plans = Replay().plan([toy.written(path) for path in paths], toy.setting)
        values_N, cost = self.values(plans)
        chance_N = torch.stack([p.detach() for p in paths.values()])
        gain_N = torch.tensor([gain[tokens] for tokens, _ in paths], dtype=torch.float64)
        committed_N = torch.stack([toy.committed(path) for path in paths])
        metrics = self.compared(values_N, chance_N, gain_N, exact)
        metrics |= self.spread_of(plans, chance_N, gain_N, exact, metrics)
        metrics |= cost | _errors((values_N - committed_N).detach())
        order_N = torch.stack(list(paths.values())).log() - committed_N
        whole = toy.gradient(((values_N + order_N) * chance_N * gain_N).sum())
        return {f"replay · {name}": metrics, f"replay and order · {name}": _apart(whole, exact)}

    def ranked(self) -> Metrics:
        """The row of `gpl`: every ranking of three candidates, its probability by a plain loop."""
        toy = self.toy
        form = Form(toy.prompt, [], [toy.mask_id] * toy.tokens, list(range(toy.tokens)))
        rankings = list(itertools.permutations(range(toy.tokens)))
        log_p = []
        for ranking in rankings:
            terms = []
            for place, token in enumerate(ranking):
                start = place // toy.blocks.size * toy.blocks.size
                hidden = (toy.mask_id,) * min(toy.blocks.size, toy.tokens - start)
                law = toy.law(ranking[:start], hidden)[place - start]
                terms.append(law[token] - torch.stack([law[other] for other in ranking[place:]]).logsumexp(0))
            log_p.append(torch.stack(terms).sum())
        truth_N = torch.stack(log_p)
        chance_N = truth_N.detach().exp()
        rewards_N = torch.tensor([self.rewards[(*ranking, 0)] for ranking in rankings], dtype=torch.float64)
        gain_N = rewards_N - chance_N @ rewards_N
        exact = toy.gradient((truth_N.exp() * gain_N).sum())
        plans = Gpl().plan([Written(toy.prompt, list(ranking), form=form) for ranking in rankings], toy.setting)
        values_N, cost = self.values(plans)
        each_NP = torch.stack([toy.gradient(value) for value in values_N]) * gain_N[:, None]
        away_N = (each_NP - chance_N @ each_NP).square().sum(-1)
        return (
            self.compared(values_N, chance_N, gain_N, exact)
            | {"variance": float(chance_N @ away_N / exact.square().sum())}
            | cost
            | _errors((values_N - truth_N).detach())
        )


def _apart(found: Tensor, exact: Tensor) -> Metrics:
    cosine = torch.nn.functional.cosine_similarity(found, exact, dim=0)
    return {"bias": float((found - exact).norm() / exact.norm()), "cosine": float(cosine)}


def _errors(above_truth: Tensor) -> Metrics:
    return {"error": float(above_truth.abs().max()), "excess": float(above_truth.max())}


def is_met(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bool:
    """Whether the goal is, for every seed."""

    def within(row: str, *metrics: str) -> bool:
        return all(rows[row][metric]["high"] <= TOLERANCE for metric in metrics)

    return (
        all(within(f"replay · {name}", "error") for name in ORDERS)
        and all(within(f"replay · {name}", "bias") for name in FIXED)
        and all(within(f"replay and order · {name}", "bias") for name in ORDERS)
        and within("ar_order · left to right", "error", "bias")
        and within("mean_field · static(1)", "error", "bias")
        and within("gpl", "error", "bias")
        and rows["elbo · random order"]["excess"]["high"] <= 0
    )


def main() -> None:
    options = options_of(__doc__).parse_args()
    found = []
    for seed in SEEDS:
        found.append(Judge(seed).rows())
        print(f"seed {seed} done", flush=True)
    rows = {
        name: {metric: spread([one[name][metric] for one in found]) for metric in metrics}
        for name, metrics in sorted(found[0].items())
    }
    for name, metrics in rows.items():
        print(f"{name:34}", "  ".join(f"{metric} {numbers['value']:.3g}" for metric, numbers in metrics.items()))
    met = is_met(rows)
    print("goal met" if met else "goal NOT met")
    finish(
        options,
        "estimator-truth",
        command=COMMAND,
        data="a random transformer of one layer, 3 tokens, completions of 4 in blocks of 2, random rewards; all "
        "completions and decodings enumerated",
        n=3**4,
        seeds=SEEDS,
        rows=[{"name": name, "metrics": metrics} for name, metrics in rows.items()],
        goal=GOAL,
        met=met,
    )


if __name__ == "__main__":
    main()
