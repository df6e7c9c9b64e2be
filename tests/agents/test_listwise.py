"""The set transformer: it reads items and not positions, its probabilities are exact, and it learns."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rerank_env.agents import ListwiseConfig, ListwisePolicy, Policy, listwise, tensors  # noqa: E402
from rerank_env.agents import plackett_luce as pl  # noqa: E402
from rerank_env.data.requests import Requests  # noqa: E402
from rerank_env.data.synthetic import synthetic  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402
from rerank_env.rewards.rankings import identity_rankings, random_rankings  # noqa: E402

pytestmark = pytest.mark.torch
SETTINGS = settings(max_examples=20, deadline=None)
SMALL = {"dim": 16, "layers": 2, "heads": 2, "feedforward": 32}
RAGGED = synthetic(requests=24, slate_size=8, min_slate_size=2, history=6)
RNG = np.random.default_rng(0)


def new_policy(requests: Requests = RAGGED, seed: int = 0, **settings: object) -> ListwisePolicy:
    return ListwisePolicy.for_requests(requests, generator=torch.Generator().manual_seed(seed), **{**SMALL, **settings})


def shaken(policy: ListwisePolicy, seed: int = 1) -> ListwisePolicy:
    """The policy with noise on every weight, in float64: nothing is zero and nothing is small any more."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.double().parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return policy


def without_history(requests: Requests, rows: slice) -> Requests:
    history_BH, feedback_BH = requests.history_BH.copy(), requests.feedback_BH.copy()
    history_BH[rows], feedback_BH[rows] = -1, 0.0
    return replace(requests, history_BH=history_BH, feedback_BH=feedback_BH)


def test_an_untrained_policy_is_the_first_stage() -> None:
    # The synthetic incoming order is the order of the scores, so following them means leaving it alone.
    policy = new_policy()
    assert isinstance(policy, Policy)
    assert np.array_equal(policy.rank(RAGGED, rng=RNG), identity_rankings(RAGGED.sizes_B, 8))
    assert not new_policy(score_prior=0.0)(RAGGED)[0, :, : RAGGED.sizes_B[0]].any()


@SETTINGS
@given(seed=st.integers(0, 2**32), item_embedding=st.sampled_from([0, 3]))
def test_permuting_the_candidates_permutes_the_answer(seed: int, item_embedding: int) -> None:
    policy = shaken(new_policy(item_embedding=item_embedding, slots=5), seed)
    rng = np.random.default_rng(seed)
    order_BK = random_rankings(RAGGED.sizes_B, RAGGED.candidates_BK.shape[1], rng)
    moved = RAGGED.reordered(order_BK)
    index_BK = torch.from_numpy(np.where(order_BK >= 0, order_BK, np.arange(order_BK.shape[1])))
    with torch.no_grad():
        before_BKK, after_BKK = policy(RAGGED), policy(moved)
    expected_BKK = before_BKK.gather(2, index_BK[:, None].expand_as(before_BKK))
    torch.testing.assert_close(after_BKK, expected_BKK, atol=1e-9, rtol=0)
    answer_BK = policy.rank(moved, rng=rng)
    back_BK = np.where(answer_BK >= 0, np.take_along_axis(order_BK, np.maximum(answer_BK, 0), axis=1), -1)
    assert np.array_equal(back_BK, policy.rank(RAGGED, rng=rng))


def test_padding_and_company_change_nothing() -> None:
    policy = shaken(new_policy())
    with torch.no_grad():
        together_BKK = policy(RAGGED)
        for row in range(6):
            size = int(RAGGED.sizes_B[row])
            alone = {
                "candidates": RAGGED.candidates_BK[row : row + 1, :size],
                "scores": RAGGED.scores_BK[row : row + 1, :size],
                "history": np.pad(RAGGED.history_BH[row : row + 1], ((0, 0), (0, 3)), constant_values=-1),
                "feedback": np.pad(RAGGED.feedback_BH[row : row + 1], ((0, 0), (0, 3)), constant_values=np.nan),
            }
            torch.testing.assert_close(policy(alone)[0], together_BKK[row, :size, :size], atol=1e-10, rtol=0)


def test_padded_candidates_get_a_large_finite_negative() -> None:
    logits_BKK = shaken(new_policy())(RAGGED)
    real_BK = torch.from_numpy(RAGGED.slates.mask_BK)
    assert logits_BKK.isfinite().all()
    assert (logits_BKK.transpose(1, 2)[~real_BK] == listwise.PADDED_LOGIT).all()
    assert (logits_BKK.transpose(1, 2)[real_BK] > listwise.PADDED_LOGIT / 2).all()


def test_requests_without_history_are_ranked_and_trained_on() -> None:
    policy = shaken(new_policy())
    mixed = without_history(RAGGED, slice(0, 12))
    policy(mixed).sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in policy.parameters())
    nobody = {**mixed.observation(), "history": np.zeros((24, 0), np.int64), "feedback": np.zeros((24, 0), np.float32)}
    with torch.no_grad():
        torch.testing.assert_close(policy(nobody)[:12], policy(mixed)[:12], atol=1e-10, rtol=0)
    bare = replace(RAGGED, history_BH=RAGGED.history_BH[:, :0], feedback_BH=RAGGED.feedback_BH[:, :0])
    assert new_policy(bare)(bare).isfinite().all()


@pytest.mark.parametrize("changed", ["history", "feedback", "scores", "order of the history", "nothing it may see"])
def test_what_it_reads_and_what_it_does_not(changed: str) -> None:
    policy = shaken(new_policy())
    other = {
        "history": lambda: replace(RAGGED, history_BH=(RAGGED.history_BH + 1) % len(RAGGED.catalog)),
        "feedback": lambda: replace(RAGGED, feedback_BH=RAGGED.feedback_BH[:, ::-1].copy()),
        "scores": lambda: replace(RAGGED, scores_BK=RAGGED.scores_BK**2),
        "order of the history": lambda: replace(
            RAGGED, history_BH=RAGGED.history_BH[:, ::-1].copy(), feedback_BH=RAGGED.feedback_BH[:, ::-1].copy()
        ),
        "nothing it may see": lambda: replace(RAGGED, relevance_BK=2 * RAGGED.relevance_BK, users_B=RAGGED.users_B + 1),
    }[changed]()
    with torch.no_grad():
        same = torch.allclose(policy(RAGGED), policy(other), atol=1e-6, rtol=0)
    assert same == (changed == "nothing it may see")


def test_one_slot_makes_the_head_plain_plackett_luce() -> None:
    logits_BKK = shaken(new_policy(slots=1))(RAGGED)
    assert torch.equal(logits_BKK, logits_BKK[:, :1].expand_as(logits_BKK))
    free_BKK = shaken(new_policy(slots=3))(RAGGED)
    assert not torch.equal(free_BKK[:, 1], free_BKK[:, 2])
    assert torch.equal(free_BKK[:, 2], free_BKK[:, 7])  # places beyond the last slot share it


def test_sampled_log_probabilities_are_those_of_training_to_the_last_bit() -> None:
    policy = new_policy().train()
    samples = policy.sample(RAGGED, 4, generator=torch.Generator().manual_seed(2))
    seen = tensors(RAGGED)
    for sampled, of in ((samples.logprobs_BNT, pl.log_prob), (samples.entropies_BNT, pl.path_entropy)):
        assert torch.equal(of(policy(seen), samples.rankings_BNK, seen.sizes_B), sampled)
        assert not sampled.requires_grad
    assert policy.training


def test_dropout_is_off_in_ranking_and_sampling_and_on_in_training() -> None:
    policy = new_policy(dropout=0.5, score_prior=0.0)
    with torch.no_grad():
        policy.score.weight.fill_(1.0)
    assert not torch.equal(policy(RAGGED), policy(RAGGED))
    assert np.array_equal(policy.rank(RAGGED, rng=RNG), policy.rank(RAGGED, rng=RNG))
    drawn = [policy.sample(RAGGED, 2, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(drawn[0].logprobs_BNT, drawn[1].logprobs_BNT)


def test_inference_in_parts_is_inference_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = shaken(new_policy())
    at_once = policy.rank(RAGGED, rng=RNG)
    monkeypatch.setattr(listwise, "INFERENCE_ROWS", 5)
    assert np.array_equal(policy.rank(RAGGED, rng=RNG), at_once)
    assert policy.rank(RAGGED.take(np.zeros(0, np.int64)), rng=RNG).shape == (0, 8)


def test_an_action_is_a_permutation_that_starts_with_the_ranking() -> None:
    policy = shaken(new_policy())
    observation = RAGGED.observation()
    ranking_BK = policy.rank(RAGGED, rng=RNG)
    action_BK = policy.act(observation)
    assert np.array_equal(np.sort(action_BK, axis=1), np.broadcast_to(np.arange(8), (24, 8)))
    assert np.array_equal(np.where(RAGGED.slates.mask_BK, action_BK, -1), ranking_BK)
    single = policy.act({key: values[3] for key, values in observation.items()})
    assert single.shape == (8,)
    assert np.array_equal(single, action_BK[3])
    drawn_BK = policy.act(observation, generator=torch.Generator().manual_seed(0))
    assert np.array_equal(np.sort(drawn_BK, axis=1), np.sort(action_BK, axis=1))
    assert not np.array_equal(drawn_BK, action_BK)


def test_it_plays_the_environment_alone_and_in_a_vector() -> None:
    policy = shaken(new_policy())
    env = gym.make("rerank_env:Rerank-v0", data=RAGGED, action="ranking")
    envs = gym.make_vec(
        "rerank_env:Rerank-v0", num_envs=24, vectorization_mode="vector_entry_point", data=RAGGED, action="ranking"
    )
    observations, _ = envs.reset(seed=0, options={"request": np.arange(24)})
    actions = policy.act(observations)
    assert envs.action_space.contains(actions)
    _, rewards, *_ = envs.step(actions)
    for row in range(24):
        observation, _ = env.reset(seed=0, options={"request": row})
        action = policy.act(observation)
        assert env.action_space.contains(action)
        _, reward, terminated, _, info = env.step(action)
        assert terminated
        assert info["valid"]
        assert reward == rewards[row]
    env.close()
    envs.close()


def test_a_generator_decides_the_weights_and_the_global_one_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = new_policy(seed=1), new_policy(seed=1), new_policy(seed=2)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(first.key.weight, other.key.weight)


def test_scales_are_those_of_the_training_requests() -> None:
    # Scores 1, 3 | 5, 7: mean 4, deviation sqrt(5); around their own means -1, 1 | -1, 1: deviation 1. No feedback.
    two = synthetic(requests=4, slate_size=2, history=1).take([0, 1])
    two = replace(two, scores_BK=np.array([[1, 3], [5, 7]], np.float32))
    policy = new_policy(without_history(two, slice(None)))
    assert policy.tokens.score_scale.tolist() == pytest.approx([4.0, 5**0.5, 1.0])
    assert policy.tokens.feedback_scale.tolist() == [0.0, 1.0, 1.0]
    table_IF = policy.tokens.features_IF
    torch.testing.assert_close(table_IF.mean(0), torch.zeros(table_IF.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(table_IF.std(0, correction=0), torch.ones(table_IF.shape[1]))


def test_constant_scores_features_and_feedback_are_harmless() -> None:
    flat = replace(
        RAGGED,
        catalog=replace(RAGGED.catalog, features_IF=np.full_like(RAGGED.catalog.features_IF, 0.1)),
        scores_BK=np.where(RAGGED.slates.mask_BK, 0.3, 0).astype(np.float32),
        feedback_BH=np.full_like(RAGGED.feedback_BH, 0.7),
    )
    policy = new_policy(flat)
    logits_BKK = policy(flat).transpose(1, 2)[torch.from_numpy(RAGGED.slates.mask_BK)]
    torch.testing.assert_close(logits_BKK, torch.zeros_like(logits_BKK), atol=1e-6, rtol=0)
    assert not policy.tokens.features_IF.gt(1e-6).any()


@pytest.mark.parametrize("item_embedding", [0, 4])
def test_it_learns_the_taste_that_the_first_stage_cannot_see(item_embedding: int) -> None:
    requests = synthetic(requests=256, slate_size=6, history=10)
    ideal_BGK = torch.from_numpy(np.argsort(-requests.relevance_BK, axis=1, kind="stable"))[:, None]
    policy = new_policy(requests, item_embedding=item_embedding)
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    seen = tensors(requests)
    losses = []
    for _ in range(40):
        loss = -pl.log_prob(policy(seen), ideal_BGK, seen.sizes_B).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(weight.grad is not None and weight.grad.any() for weight in policy.parameters())
    assert losses[-1] < losses[0] - 0.5


def test_requests_over_another_catalogue_are_refused() -> None:
    policy = new_policy()
    catalog = RAGGED.catalog
    smaller = replace(catalog, features_IF=catalog.features_IF[:, :3], feature_names=catalog.feature_names[:3])
    with pytest.raises(InputError, match="rank requests over the same catalogue"):
        policy.rank(replace(RAGGED, catalog=smaller), rng=RNG)
    strange = {**RAGGED.observation(), "history": np.full((24, 6), 400)}
    with pytest.raises(InputError, match="history item 400 is not among the policy's 400 items"):
        policy(strange)


def test_a_diverged_policy_ranks_nothing() -> None:
    policy = new_policy()
    with torch.no_grad():
        policy.score_weight.fill_(torch.nan)
    with pytest.raises(InputError, match="diverged"):
        policy.rank(RAGGED, rng=RNG)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"dim": 15}, "dim 15 does not divide into 4 heads"),
        ({"layers": -1}, "layers is -1"),
        ({"heads": 0}, "heads is 0"),
        ({"dim": 64.0}, r"dim is 64\.0"),
        ({"slots": True}, "slots is True"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"dropout": "0"}, "dropout is '0'"),
        ({"score_prior": float("nan")}, "score_prior is nan"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(setting: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ListwiseConfig(item_features=4, **setting)


def test_a_misspelt_setting_and_wrong_features_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'heads'"):
        new_policy(head=2)
    with pytest.raises(InputError, match=r"features have shape \(5, 3\) but the configuration says item_features=4"):
        ListwisePolicy(ListwiseConfig(item_features=4), np.zeros((5, 3), np.float32))
    with pytest.raises(InputError, match="at least one item"):
        ListwisePolicy(ListwiseConfig(item_features=4), np.zeros((0, 4), np.float32))
    with pytest.raises(InputError, match="item_embedding"):
        ListwisePolicy(ListwiseConfig(item_features=0), np.zeros((5, 0), np.float32))


def test_items_without_features_can_be_told_apart_by_an_embedding() -> None:
    catalog = replace(RAGGED.catalog, features_IF=np.zeros((400, 0), np.float32), feature_names=())
    bare = replace(RAGGED, catalog=catalog, scores_BK=np.zeros_like(RAGGED.scores_BK))
    logits_BKK = shaken(new_policy(bare, item_embedding=4))(bare)
    assert logits_BKK[0, 0, 0] != logits_BKK[0, 0, 1]


def test_requests_over_another_catalogue_of_the_same_size_are_refused() -> None:
    requests = synthetic(requests=20)
    policy = ListwisePolicy.for_requests(requests, generator=torch.Generator().manual_seed(0), dim=16, layers=1)
    turned = replace(requests.catalog, features_IF=requests.catalog.features_IF[::-1].copy())
    with pytest.raises(InputError, match="other item features"):
        policy.rank(replace(requests, catalog=turned), rng=np.random.default_rng(0))
