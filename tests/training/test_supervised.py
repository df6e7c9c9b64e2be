"""The supervised rival: its targets worked by hand, and that it learns."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents import ListwisePolicy  # noqa: E402
from rerank_env.data import load  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402
from rerank_env.training import SupervisedConfig, supervised  # noqa: E402
from rerank_env.training.evaluate import evaluate  # noqa: E402
from rerank_env.training.logs import read_log  # noqa: E402
from rerank_env.training.supervised import slot_targets  # noqa: E402

SETTINGS = settings(max_examples=40, deadline=None)

pytestmark = pytest.mark.torch


def targets(rows, sizes, *, temperature=1.0, seed=0):
    relevance = torch.tensor(rows, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return slot_targets(relevance, torch.tensor(sizes), temperature=temperature, generator=generator)


def test_targets_are_softmaxes_of_the_gains_still_to_be_placed() -> None:
    # gains ln 1, ln 2, ln 3 and one padded candidate: the ideal order is 2, 1, 0.
    # slot 0: (1, 2, 3) / 6; slot 1, candidate 2 placed: (1, 2) / 3; slot 2, one left: teaches nothing
    found, open_ = targets([[0.0, math.log(2), math.log(3), 0.0]], [3])
    expected = [[[1 / 6, 2 / 6, 3 / 6, 0], [1 / 3, 2 / 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert open_[0, :3].tolist() == [[True, True, True, False], [True, True, False, False], [True, False, False, False]]
    assert not open_[0, 3].any()


def test_a_low_temperature_asks_for_the_best_candidate_alone() -> None:
    found, _ = targets([[0.0, 2.0, 1.0]], [3], temperature=0.01)
    torch.testing.assert_close(found[0, :2], torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64))


def test_slots_whose_remaining_gains_do_not_differ_teach_nothing() -> None:
    found, _ = targets([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]], [3, 3])
    assert (found[0] == 0).all()
    assert (found[1].sum(-1) > 0).tolist() == [True, False, False]


def test_ties_are_broken_afresh() -> None:
    opened = {tuple(targets([[1.0, 1.0, 0.0]], [3], seed=seed)[1][0, 1].tolist()) for seed in range(20)}
    assert opened == {(True, False, True), (False, True, True)}


@SETTINGS
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4),
    st.integers(2, 5),
    st.integers(0, 99),
)
def test_targets_are_distributions_over_open_candidates_or_nothing(rows, size, seed) -> None:
    cut = [[gain if k < size else 0 for k, gain in enumerate(row)] for row in rows]
    found, open_ = targets(cut, [size] * len(cut), seed=seed)
    sums = found.sum(-1)
    assert ((sums - 1).abs().lt(1e-12) | sums.eq(0)).all()
    assert (found[~open_] == 0).all()
    assert open_.sum(-1).tolist() == [[max(size - slot, 0) for slot in range(5)]] * len(cut)


def test_a_policy_learns_to_beat_the_incoming_order_within_seconds(tmp_path) -> None:
    train, validation = load("synthetic", split="train"), load("synthetic", split="validation")
    policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0))
    config = SupervisedConfig(steps=150, learning_rate=3e-3)
    result = supervised.train(policy, train, config=config, directory=tmp_path, validation=validation)
    found = evaluate(load("synthetic", split="test"), {"supervised": result.policy}, seed=0, resamples=500)
    assert found.gain("supervised", "ndcg@10").low > 0.02
    losses = [line["loss"] for line in read_log(result.log_path)]
    assert np.mean(losses[-20:]) < np.mean(losses[:20])


@pytest.mark.parametrize("change", [{"temperature": 2.0}, {"decay": "none"}, {"weight_decay": 1.0}])
def test_every_option_changes_what_is_learned(requests, new_policy, tmp_path, change) -> None:
    config = SupervisedConfig(steps=4, requests_per_step=8, warmup_steps=1)
    plain = supervised.train(new_policy(), requests, config=config, directory=tmp_path / "plain").policy
    config = dataclasses.replace(config, **change)
    changed = supervised.train(new_policy(), requests, config=config, directory=tmp_path / "changed").policy
    assert not torch.equal(plain.key.weight, changed.key.weight)


def test_dropout_follows_the_seed_and_leaves_torchs_own_generator_alone(requests, new_policy, tmp_path) -> None:
    config = SupervisedConfig(steps=3, requests_per_step=8)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = supervised.train(new_policy(), requests, config=config, directory=tmp_path / "one").policy
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    same = supervised.train(new_policy(), requests, config=config, directory=tmp_path / "same").policy
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


def test_requests_without_two_different_gains_are_skipped_and_logged(requests, new_policy, tmp_path) -> None:
    nothing = dataclasses.replace(requests, relevance_BK=np.zeros_like(requests.relevance_BK))
    policy = new_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    config = SupervisedConfig(steps=2, requests_per_step=8)
    result = supervised.train(policy, nothing, config=config, directory=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in result.policy.state_dict().items())
    for line in read_log(result.log_path):
        assert (line["loss"], line["grad_norm"]) == (None, None)
        assert line["skipped"] == "no request has two different gains"


def test_settings_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="temperature is 0"):
        SupervisedConfig(temperature=0)
    with pytest.raises(InputError, match="patience is 0"):
        SupervisedConfig(patience=0)
    with pytest.raises(UnknownNameError, match="did you mean"):
        SupervisedConfig(metric="ndgc@10")
