"""Imitation teaches what the teacher does, and reinforcement goes on from there with a policy that can be wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import Incoming, Oracle, Random, TokenPolicy  # noqa: E402
from rerank_env.rewards import rankings  # noqa: E402
from rerank_env.rewards.errors import InputError, RankingError  # noqa: E402
from rerank_env.training import DapoConfig, ImitationConfig, Interrupted, dapo, imitation  # noqa: E402
from rerank_env.training.logs import UNEQUAL_FIELDS, read_log  # noqa: E402

pytestmark = pytest.mark.torch

LESSONS = ImitationConfig(steps=9, requests_per_step=8, learning_rate=3e-3, checkpoint_every=4, validate_every=3)


@pytest.fixture
def writer(requests):
    """Builds the same untrained policy every time."""

    def build(dropout=0.1):
        generator = torch.Generator().manual_seed(1)
        return TokenPolicy.for_requests(requests, generator=generator, dim=16, dropout=dropout)

    return build


def same_weights(one, two) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def validity(policy, requests) -> float:
    drawn = policy.sample(requests, 1, generator=torch.Generator().manual_seed(5)).rankings_BNK[:, 0].numpy()
    return float((rankings.verdicts(drawn, requests.sizes_B) == rankings.Verdict.OK).mean())


def test_a_policy_learns_to_copy_from_a_teacher_that_copies(requests, validation, writer, tmp_path) -> None:
    config = dataclasses.replace(LESSONS, steps=300, learning_rate=1e-2, requests_per_step=32, checkpoint_every=300)
    policy = writer()
    before = validity(policy, validation)
    result = imitation.train(policy, requests, Incoming(), config=config, directory=tmp_path)
    answers_BK = result.policy.rank(validation, rng=np.random.default_rng(0))
    assert rankings.is_identity(answers_BK, validation.sizes_B).mean() > 0.95
    assert before < 0.3 < 0.9 < validity(policy, validation)
    lines = read_log(result.log_path)
    assert lines[-1]["loss"] < 0.1 < lines[0]["loss"]
    assert all(line["skipped"] is None for line in lines)


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_words(requests, writer, tmp_path) -> None:
    policy = writer(dropout=0.0)
    config = dataclasses.replace(LESSONS, steps=1, requests_per_step=len(requests))
    told_B1K = torch.from_numpy(Oracle().rank(requests, rng=np.random.default_rng(0)))[:, None]
    words = policy.spelled(told_B1K, torch.from_numpy(requests.sizes_B))
    expected = -policy.log_prob(requests, words).detach().sum() / (requests.sizes_B + 1).sum()
    result = imitation.train(policy, requests, Oracle(), config=config, directory=tmp_path)
    assert read_log(result.log_path)[0]["loss"] == pytest.approx(float(expected), abs=1e-5)


def test_a_listwise_policy_can_imitate_too(requests, new_policy, tmp_path) -> None:
    result = imitation.train(new_policy(), requests, Oracle(), config=LESSONS, directory=tmp_path)
    assert all(np.isfinite(line["loss"]) for line in read_log(result.log_path))


@pytest.mark.parametrize("stage", ["imitation", "dapo"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(stage, requests, validation, writer, tmp_path) -> None:
    def train(directory, stop=None):
        def on_step(log) -> None:
            if log.step == stop:
                raise KeyboardInterrupt

        options = {"directory": tmp_path / directory, "validation": validation, "on_step": on_step}
        if stage == "imitation":
            return imitation.train(writer(), requests, Random(), config=LESSONS, **options)
        config = DapoConfig(steps=9, requests_per_step=8, group_size=4, checkpoint_every=4, validate_every=3)
        return dapo.train(writer(), requests, "naive", config=config, **options)

    whole = train("whole")
    for step in (2, 7):
        with pytest.raises(Interrupted):
            train("pieces", stop=step)
    resumed = train("pieces")
    assert same_weights(resumed.policy, whole.policy)
    logs = [
        [{k: v for k, v in line.items() if k not in UNEQUAL_FIELDS} for line in read_log(result.log_path)]
        for result in (whole, resumed)
    ]
    assert logs[0] == logs[1]


def test_reinforcement_makes_a_policy_more_valid(requests, writer, tmp_path) -> None:
    lessons = dataclasses.replace(LESSONS, steps=60, learning_rate=1e-2)
    policy = imitation.train(writer(), requests, Incoming(), config=lessons, directory=tmp_path / "lessons").policy
    config = DapoConfig(steps=40, requests_per_step=16, learning_rate=3e-3, checkpoint_every=40)
    result = dapo.train(policy, requests, "gain", config=config, directory=tmp_path / "reinforced")
    shares = [line["valid_share"] for line in read_log(result.log_path)]
    assert np.mean(shares[:5]) < 0.6
    assert np.mean(shares[-5:]) > np.mean(shares[:5]) + 0.2


def test_a_teacher_that_gives_no_ranking_is_refused(requests, writer, tmp_path) -> None:
    class Stammerer:
        def rank(self, requests, *, rng):
            return np.zeros_like(requests.candidates_BK)

    with pytest.raises(RankingError, match="row 0 is no ranking"):
        imitation.train(writer(), requests, Stammerer(), config=LESSONS, directory=tmp_path)


def test_a_run_is_not_resumed_with_another_teacher(requests, writer, tmp_path) -> None:
    imitation.train(writer(), requests, Incoming(), config=LESSONS, directory=tmp_path)
    with pytest.raises(InputError, match="teacher is"):
        imitation.train(writer(), requests, Oracle(), config=LESSONS, directory=tmp_path)
