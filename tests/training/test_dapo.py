"""DAPO: it learns, it says what it does with groups that carry no signal, and it refuses what makes no sense."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import ListwisePolicy  # noqa: E402
from rerank_env.agents.subsets import MOST_CANDIDATES  # noqa: E402
from rerank_env.data import load  # noqa: E402
from rerank_env.rewards import FunctionReward  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402
from rerank_env.training import DapoConfig, dapo  # noqa: E402
from rerank_env.training.evaluate import evaluate  # noqa: E402
from rerank_env.training.logs import UNEQUAL_FIELDS, read_log  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = DapoConfig(steps=4, requests_per_step=8, group_size=4, learning_rate=3e-3, checkpoint_every=2, validate_every=2)


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


def same_weights(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_policy_learns_to_beat_the_incoming_order_within_seconds(tmp_path) -> None:
    train = load("synthetic", split="train")
    policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0))
    config = DapoConfig(steps=70, learning_rate=3e-3)
    result = dapo.train(policy, train, "gain", config=config, directory=tmp_path)
    found = evaluate(load("synthetic", split="test"), {"policy": result.policy}, seed=0, resamples=500)
    assert found.gain("policy", "ndcg@10").low > 0.02
    # it reads the items: shuffling the candidates changes nothing
    assert found.rows["policy"].agreement > 0.999
    lines = read_log(result.log_path)
    assert np.mean([line["gain"] for line in lines[-10:]]) > np.mean([line["gain"] for line in lines[:10]]) + 0.03


def test_a_seed_reproduces_a_run_and_another_seed_does_not(requests, new_policy, tmp_path) -> None:
    runs = {}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        config = dataclasses.replace(SMALL, seed=seed)
        runs[name] = dapo.train(new_policy(), requests, "gain", config=config, directory=tmp_path / name)
    final = {name: weights(result.policy) for name, result in runs.items()}
    assert same_weights(final["one"], final["same"])
    assert not same_weights(final["one"], final["other"])


def test_every_step_logs_the_same_finite_fields(requests, validation, new_policy, tmp_path) -> None:
    seen = []
    result = dapo.train(
        new_policy(),
        requests,
        "gain",
        config=SMALL,
        directory=tmp_path,
        validation=validation,
        on_step=seen.append,
    )
    lines = read_log(result.log_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line.keys() == lines[0].keys() for line in lines)
    assert [log.step for log in seen] == [1, 2, 3, 4]
    for line, log in zip(lines, seen, strict=True):
        assert {key: line[key] for key in line if key not in ("step", *UNEQUAL_FIELDS)} == dict(log.values)
        assert line["valid_share"] == 1.0
        assert line["skipped"] is None
        # one pass over fresh answers: the ratio is 1 up to rounding, so nothing is clipped and the loss is about 0
        assert line["clip_fraction"] == 0.0
        assert line["ratio_max"] == pytest.approx(1.0, abs=1e-4)
        # reward "gain" is NDCG@10 over the incoming order, and so is the logged gain of the metric
        assert line["gain"] == pytest.approx(line["reward"], abs=1e-12)
    assert [line["validation"] is None for line in lines] == [True, False, True, False]
    assert seen[0].eta_seconds == pytest.approx(3 * seen[0].seconds)
    assert seen[-1].eta_seconds == 0.0


def test_the_weights_of_the_best_validation_are_returned(requests, validation, new_policy, tmp_path) -> None:
    config = dataclasses.replace(SMALL, learning_rate=0.5, max_grad_norm=100.0)  # far too large: it can only get worse
    policy = new_policy()
    before = weights(policy)
    result = dapo.train(policy, requests, "gain", config=config, directory=tmp_path, validation=validation)
    assert result.best_step == 0
    assert same_weights(weights(result.policy), before)
    last = dapo.train(new_policy(), requests, "gain", config=config, directory=tmp_path / "last")
    assert last.best_validation is None
    assert not same_weights(weights(last.policy), before)


def test_dead_groups_are_replaced_by_fresh_requests(requests, new_policy, tmp_path) -> None:
    flat = np.where(np.arange(requests.candidates_BK.shape[1]) < requests.sizes_B[:, None], 1.0, 0.0)
    relevance = np.where((np.arange(len(requests)) % 2 == 0)[:, None], flat, requests.relevance_BK)
    half_dead = dataclasses.replace(requests, relevance_BK=relevance)
    config = dataclasses.replace(SMALL, max_resamples=20, group_size=8)
    result = dapo.train(new_policy(), half_dead, "gain", config=config, directory=tmp_path / "many")
    lines = read_log(result.log_path)
    assert all(line["trained_groups"] == 8 for line in lines)
    assert any(line["dead_share"] > 0 for line in lines)
    none = dataclasses.replace(config, max_resamples=0)
    lines = read_log(dapo.train(new_policy(), half_dead, "gain", config=none, directory=tmp_path / "none").log_path)
    for line in lines:
        assert line["resamples"] == 0
        assert line["trained_groups"] == round(8 * (1 - line["dead_share"]))


def test_without_any_live_group_the_update_is_skipped_and_logged(requests, new_policy, tmp_path) -> None:
    # recall@6 of at most 6 candidates is 1 for every ranking: the raw metric never differs, though the reward does
    config = dataclasses.replace(SMALL, metric="recall@6")
    policy = new_policy()
    before = weights(policy)
    result = dapo.train(policy, requests, "gain", config=config, directory=tmp_path)
    assert same_weights(weights(result.policy), before)
    for line in read_log(result.log_path):
        assert line["skipped"] == "every group is dead"
        assert (line["dead_share"], line["resamples"], line["trained_groups"]) == (1.0, 3, 0)
        assert (line["loss"], line["grad_norm"], line["passes"]) == (None, None, 0)


def test_a_gradient_that_is_not_finite_changes_nothing(requests, new_policy, tmp_path) -> None:
    policy = new_policy()
    policy.key.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = weights(policy)
    result = dapo.train(policy, requests, "gain", config=SMALL, directory=tmp_path)
    assert same_weights(weights(result.policy), before)
    for line in read_log(result.log_path):
        assert (line["skipped"], line["passes"], line["loss"]) == ("the gradient is not finite", 0, None)


@pytest.mark.parametrize("inner_epochs", [1, 3])
def test_a_pass_whose_gradient_is_not_finite_is_the_last_and_the_log_counts_those_before(
    requests, new_policy, tmp_path, inner_epochs
) -> None:
    def spoiled(policy, config, directory):
        calls = []

        def second_is_nan(gradient):
            calls.append(gradient)
            return gradient * float("nan") if len(calls) % 2 == 0 else gradient

        if config.inner_epochs > 1:
            policy.key.weight.register_hook(second_is_nan)
        result = dapo.train(policy, requests, "gain", config=config, directory=directory)
        return weights(result.policy), read_log(result.log_path)

    config = dataclasses.replace(SMALL, inner_epochs=inner_epochs)
    found, lines = spoiled(new_policy(), config, tmp_path / "several")
    once, once_lines = spoiled(new_policy(), SMALL, tmp_path / "once")
    assert same_weights(found, once)  # the first pass counted, those behind the spoiled one were not made
    reason = "the gradient is not finite" if inner_epochs > 1 else None
    for line, once_line in zip(lines, once_lines, strict=True):
        assert (line["passes"], line["skipped"]) == (1, reason)
        assert (line["loss"], line["grad_norm"]) == (once_line["loss"], once_line["grad_norm"])


@pytest.mark.parametrize(
    "change",
    [
        {"inner_epochs": 2},
        {"advantage_scale": "none"},
        {"warmup_steps": 2},
        {"decay": "none"},
        {"epsilon_low": 1e-4, "epsilon_high": 1e-4, "inner_epochs": 3},
        {"max_resamples": 0},
    ],
)
def test_every_option_changes_what_is_learned(requests, new_policy, tmp_path, change) -> None:
    config = dataclasses.replace(SMALL, warmup_steps=1)
    plain = dapo.train(new_policy(), requests, "gr2", config=config, directory=tmp_path / "plain")
    config = dataclasses.replace(config, **change)
    changed = dapo.train(new_policy(), requests, "gr2", config=config, directory=tmp_path / "changed")
    assert not same_weights(weights(plain.policy), weights(changed.policy))
    lines = read_log(changed.log_path)
    assert all((line["skipped"], line["passes"]) == (None, config.inner_epochs) for line in lines)


def test_slates_too_long_for_exact_entropies_are_trained_on_all_the_same(tmp_path) -> None:
    sizes = {"slate_size": MOST_CANDIDATES + 2, "min_slate_size": 3, "history": 4}
    train = load("synthetic", requests=40, **sizes)
    policy = ListwisePolicy.for_requests(train, generator=torch.Generator().manual_seed(0), dim=8, layers=1, heads=2)
    before = weights(policy)
    result = dapo.train(policy, train, "gain", config=SMALL, directory=tmp_path, validation=train)
    assert not same_weights(weights(policy), before) or result.best_step == 0
    largest = math.lgamma(MOST_CANDIDATES + 3)
    for line in read_log(result.log_path):
        assert 0 < line["entropy"] < largest
        assert (line["valid_share"], line["skipped"]) == (1.0, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"group_size": 1}, "group_size is 1; .*at least 2"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"epsilon_low": 1.0}, "a ratio cannot fall below 0"),
        ({"max_resamples": -1}, "max_resamples is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(change, message) -> None:
    with pytest.raises(InputError, match=message):
        DapoConfig(**change)


@pytest.mark.parametrize(
    ("change", "suggestion"),
    [
        ({"advantage_scale": "sd"}, "std"),
        ({"decay": "cosin"}, "cosine"),
        ({"metric": "ndgc@10"}, "ndcg"),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(change, suggestion) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{suggestion}"):
        DapoConfig(**change)


def test_a_run_is_not_resumed_with_another_reward_of_the_same_name(requests, new_policy, tmp_path) -> None:
    def pays(sign: float) -> FunctionReward:
        return FunctionReward(lambda r, s: sign * (r[:, 0] / r.shape[1]), "mine", low=-1.0, high=1.0, invalid=-2.0)

    config = DapoConfig(steps=2, requests_per_step=4, group_size=4)
    dapo.train(new_policy(), requests, pays(1.0), config=config, directory=tmp_path)
    with pytest.raises(InputError, match="reward_scores is"):
        dapo.train(new_policy(), requests, pays(-1.0), config=config, directory=tmp_path)
