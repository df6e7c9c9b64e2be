"""Estimators of the likelihood against an enumeration of all that a toy can write, and of all ways to write it."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from estimator_toy import ORDERS, Path, Toy, expected  # noqa: E402
from scipy.stats import chi2  # noqa: E402
from torch import Tensor  # noqa: E402

from rerank_env.agents.block_diffusion.filling import Form  # noqa: E402
from rerank_env.agents.block_diffusion.likelihood import (  # noqa: E402
    ArOrder,
    Coupled,
    Elbo,
    Gpl,
    MeanField,
    Plan,
    Replay,
    Written,
    score,
)
from rerank_env.agents.block_diffusion.rules import rule_of  # noqa: E402
from rerank_env.agents.block_diffusion.sampling import sample  # noqa: E402

FIXED = ("left to right", "static(1)", "random order")
CONFIDENT = ("surest first", "threshold(0.6)")
EXACT = 1e-5


class World:
    """A toy, all its decodings in every order, and a reward of each completion."""

    def __init__(self, size: int) -> None:
        self.toy = Toy(5, size=size, length=4 if size == 2 else 3)
        self.paths = {name: self.toy.paths(order) for name, order in ORDERS.items()}
        self.written = [Written(self.toy.prompt, list(tokens)) for tokens in self.toy.completions]

    def reward(self, tokens: tuple[int, ...]) -> float:
        """The number that its tokens are as digits, squared and halved, modulo 7: nothing like a sum over them."""
        value = 0
        for token in tokens:
            value = value * self.toy.tokens + token
        return float(value * value // 2 % 7)

    def values(self, plans: list[Plan]) -> Tensor:
        toy = self.toy
        found = score(toy.model, plans, blocks=toy.blocks, mask_id=toy.mask_id, pad_id=0, batch_size=400)
        return torch.stack([values.sum() for values in found.log_probs]).double()

    def truth(self, order: str) -> Tensor:
        """The probability of every completion, however it was decoded, with a graph."""
        whole = {tokens: torch.zeros((), dtype=torch.float64) for tokens in self.toy.completions}
        for (tokens, _), p in self.paths[order].items():
            whole[tokens] = whole[tokens] + p
        return torch.stack(list(whole.values()))

    def gain(self, order: str) -> dict[tuple[int, ...], float]:
        """The advantage of each completion."""
        rewards = [self.reward(tokens) for tokens in self.toy.completions]
        mean = float(self.truth(order).detach() @ torch.tensor(rewards, dtype=torch.float64))
        return {tokens: reward - mean for tokens, reward in zip(self.toy.completions, rewards, strict=True)}

    def exact(self, order: str) -> Tensor:
        """The gradient of the expected reward."""
        rewards = torch.tensor([self.reward(tokens) for tokens in self.toy.completions], dtype=torch.float64)
        return self.toy.gradient(self.truth(order) @ rewards)

    def expectation(self, values_N: Tensor, order: str, paths: list[Path] | None = None) -> Tensor:
        """The expectation of advantage times gradient, over completions, or over decodings where these are given."""
        gain = self.gain(order)
        if paths is None:
            chance_N, told = self.truth(order).detach(), self.toy.completions
        else:
            chance_N = torch.stack([self.paths[order][path].detach() for path in paths])
            told = [tokens for tokens, _ in paths]
        gain_N = torch.tensor([gain[tokens] for tokens in told], dtype=torch.float64)
        return self.toy.gradient((chance_N * gain_N * values_N).sum())


@pytest.fixture(scope="module", params=[2, 3], ids=["two blocks of two", "a block of three"])
def world(request: Any) -> World:
    return World(request.param)


def apart(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("order", ORDERS)
def test_the_probabilities_of_all_decodings_sum_to_one(world: World, order: str) -> None:
    assert float(sum(p.detach() for p in world.paths[order].values())) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("rule", "order"), [("static(1)",) * 2, ("threshold(0.6)",) * 2, ("static(2)", "left to right")]
)
def test_the_toy_is_enumerated_as_the_sampler_decodes_it(rule: str, order: str) -> None:
    """Pearson's test of how often each decoding comes up, those that hardly do together."""
    toy, n = Toy(5), 4000
    paths = toy.paths(ORDERS[order])
    found = sample(
        toy.model, 0, 99, toy.mask_id, [toy.prompt], blocks=toy.blocks, rule=rule_of(rule), max_tokens=toy.length,
        temperature=1.0, generator=torch.Generator().manual_seed(1), n=n, batch_size=n,
    ).trajectories  # fmt: skip
    counts = Counter((tuple(one.tokens), tuple(one.rounds)) for one in found)
    assert set(counts) <= set(paths)
    likely = {path: n * float(p.detach()) for path, p in paths.items() if n * float(p.detach()) >= 5}
    squares = [(counts[path] - mean) ** 2 / mean for path, mean in likely.items()]
    rare, mean = n - sum(counts[path] for path in likely), n - sum(likely.values())
    assert chi2.sf(sum(squares) + (rare - mean) ** 2 / mean, len(squares)) > 0.001


@pytest.mark.parametrize("order", ORDERS)
def test_replay_has_the_probability_of_what_was_committed(world: World, order: str) -> None:
    paths = list(world.paths[order])
    found_N = world.values(Replay().plan([world.toy.written(path) for path in paths], world.toy.setting)).detach()
    truth_N = torch.stack([world.toy.committed(path).detach() for path in paths])
    assert float((found_N - truth_N).abs().max()) < EXACT


@pytest.mark.parametrize("order", FIXED)
def test_the_gradient_of_replay_is_exact_where_the_order_owes_nothing_to_the_parameters(
    world: World, order: str
) -> None:
    paths = list(world.paths[order])
    values_N = world.values(Replay().plan([world.toy.written(path) for path in paths], world.toy.setting))
    assert apart(world.expectation(values_N, order, paths), world.exact(order)) < EXACT


@pytest.mark.parametrize("order", CONFIDENT)
def test_where_confidence_decides_replay_lacks_the_gradient_of_the_order_and_nothing_else(
    world: World, order: str
) -> None:
    paths = list(world.paths[order])
    values_N = world.values(Replay().plan([world.toy.written(path) for path in paths], world.toy.setting))
    exact = world.exact(order)
    alone = world.expectation(values_N, order, paths)
    assert 0.01 < apart(alone, exact) < 0.9
    order_N = torch.stack([p.log() - world.toy.committed(path) for path, p in world.paths[order].items()])
    assert apart(alone + world.expectation(order_N, order, paths), exact) < EXACT


def test_merged_rounds_are_one_round_on_the_first_canvas(world: World) -> None:
    paths = list(world.paths["left to right"])
    merged = world.values(Replay(most=1).plan([world.toy.written(path) for path in paths], world.toy.setting))
    at_once = world.values(MeanField().plan([Written(world.toy.prompt, list(t)) for t, _ in paths], world.toy.setting))
    assert float((merged - at_once).detach().abs().max()) < EXACT


def test_ar_order_is_exact_from_left_to_right_and_mean_field_in_one_round(world: World) -> None:
    for estimator, order in ((ArOrder(), "left to right"), (MeanField(), "static(1)")):
        values_N = world.values(estimator.plan(world.written, world.toy.setting))
        assert float((values_N - world.truth(order).log()).detach().abs().max()) < EXACT
        assert apart(world.expectation(values_N, order), world.exact(order)) < EXACT


def test_mean_field_leaves_out_what_places_have_to_do_with_each_other(world: World) -> None:
    """It is a law of its own, so where tokens are written one by one its mean is below the truth by a KL divergence."""
    values_N = world.values(MeanField().plan(world.written, world.toy.setting))
    assert float(values_N.detach().exp().sum()) == pytest.approx(1, abs=1e-5)
    truth_N = world.truth("left to right").detach()
    assert float(truth_N @ (values_N.detach() - truth_N.log())) < -0.01
    assert apart(world.expectation(values_N, "left to right"), world.exact("left to right")) > 0.1


def test_the_lower_bound_is_the_mean_over_orders_and_at_most_the_truth(world: World) -> None:
    toy = world.toy
    bound_N = world.values([expected(Elbo(), one, toy.setting) for one in world.written]).detach()
    truth_N = world.truth("random order").log().detach()
    assert float((bound_N - truth_N).max()) < 1e-6
    assert float((truth_N - bound_N).max()) > 0.01
    for found, tokens in list(zip(bound_N.tolist(), toy.completions, strict=True))[::7]:
        total = 0.0
        for start in range(0, toy.length, toy.blocks.size):
            text = tokens[start : start + toy.blocks.size]
            orders = list(itertools.permutations(range(len(text))))
            for order in orders:
                for place in order:
                    shown = order[: order.index(place)]
                    canvas = tuple(token if at in shown else toy.mask_id for at, token in enumerate(text))
                    total += float(toy.law(tokens[:start], canvas)[place, text[place]].detach()) / len(orders)
        assert found == pytest.approx(total, abs=EXACT)


def test_coupled_is_half_the_mean_field_and_a_lower_bound_whole_with_blocks_of_two() -> None:
    """Of the two parts with weights 1/t and 1/(1 - t) a place is expected once with the other hidden too and once with
    it shown, whatever t is; half of that, and half of all hidden, is the bound (half, half) and half the mean field.
    """
    toy = Toy(5)
    written = [Written(toy.prompt, list(tokens)) for tokens in toy.completions[::10]]
    coupled, elbo, mean_field = (
        torch.stack([one.sum() for one in score(toy.model, plans, blocks=toy.blocks, mask_id=3, pad_id=0).log_probs])
        for plans in (
            [expected(Coupled(), one, toy.setting) for one in written],
            [expected(Elbo(), one, toy.setting) for one in written],
            MeanField().plan(written, toy.setting),
        )
    )
    assert float((coupled - elbo - mean_field / 2).detach().abs().max()) < EXACT


def test_with_blocks_of_one_token_all_estimators_are_the_causal_model() -> None:
    toy = Toy(1, size=1, length=3)
    written = [Written(toy.prompt, list(tokens)) for tokens in toy.completions[::5]]
    setting = toy.setting
    texts = torch.tensor([[*toy.prompt, *one.completion] for one in written])
    logits_RWV = toy.model(input_ids=texts).logits[:, len(toy.prompt) - 1 : -1, : toy.tokens]
    wanted_RW = texts[:, len(toy.prompt) :]
    truth_RW = logits_RWV.log_softmax(-1).gather(-1, wanted_RW[..., None]).squeeze(-1)
    steps = [
        Written(one.prompt, one.completion, toy.written((tuple(one.completion), (0, 0, 0))).trajectory)
        for one in written
    ]
    for plans, scale in (
        (ArOrder().plan(written, setting), 1.0),
        (MeanField().plan(written, setting), 1.0),
        (Replay().plan(steps, setting), 1.0),
        ([expected(Elbo(), one, setting) for one in written], 1.0),
        ([expected(Coupled(), one, setting) for one in written], 1.5),
    ):
        found = score(toy.model, plans, blocks=toy.blocks, mask_id=toy.mask_id, pad_id=0).log_probs
        torch.testing.assert_close(torch.stack(found).double(), scale * truth_RW, atol=EXACT, rtol=EXACT)
        ours, theirs = toy.gradient(torch.stack(found).double().sum()), toy.gradient(scale * truth_RW.sum())
        assert apart(ours, theirs) < EXACT


def test_the_gradient_of_a_filled_answer_is_exact(world: World) -> None:
    """Every ranking of three candidates with its probability by a plain loop; its slots are in one block or in two."""
    toy = world.toy
    form = Form(toy.prompt, [], [toy.mask_id] * 3, [1, 2, 0])
    rankings = list(itertools.permutations(range(3)))
    log_p = []
    for ranking in rankings:
        total = torch.zeros((), dtype=torch.float64)
        for place, token in enumerate(ranking):
            start = place // toy.blocks.size * toy.blocks.size
            law_V = toy.law(ranking[:start], (toy.mask_id,) * min(toy.blocks.size, 3 - start))[place - start]
            total = total + law_V[token] - torch.stack([law_V[other] for other in ranking[place:]]).logsumexp(0)
        log_p.append(total)
    truth_N = torch.stack(log_p)
    values_N = world.values(Gpl().plan([Written(toy.prompt, list(one), form=form) for one in rankings], toy.setting))
    assert float((values_N - truth_N).detach().abs().max()) < EXACT
    assert float(values_N.detach().exp().sum()) == pytest.approx(1, abs=EXACT)
    rewards_N = torch.tensor([world.reward(one) for one in rankings], dtype=torch.float64)
    exact = toy.gradient(truth_N.exp() @ rewards_N)
    gain_N = rewards_N - truth_N.detach().exp() @ rewards_N
    assert apart(toy.gradient((truth_N.detach().exp() * gain_N) @ values_N), exact) < EXACT
