"""The linear model finds the weights that the lists were drawn with, and values that are worked out by hand."""

from __future__ import annotations

import hashlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax

from rerank_env.agents import Policy
from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.lists import Lists
from rerank_env.agents.linear import LinearPlackettLuce, LinearSettings, held_likelihood, likeliest
from rerank_env.data import Catalog, Requests
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.rewards.rankings import Verdict, verdicts


def lists_of(features_BKF: np.ndarray, relevance_BK: np.ndarray, real_BK: np.ndarray | None = None) -> Lists:
    real_BK = np.ones(relevance_BK.shape, dtype=bool) if real_BK is None else real_BK
    return Lists(features_BKF.astype(np.float32), relevance_BK.astype(float), real_BK, np.arange(len(relevance_BK)))


def drawn(weights: list[float], count: int, *, seed: int = 0) -> Lists:
    """Lists of five candidates with normal features whose relevant candidate is drawn by the law itself."""
    rng = np.random.default_rng(seed)
    features_BKF = rng.normal(size=(count, 5, len(weights)))
    noisy_BK = features_BKF @ np.array(weights) + rng.gumbel(size=(count, 5))
    return lists_of(features_BKF, noisy_BK == noisy_BK.max(axis=1, keepdims=True))


def test_one_feature_and_two_candidates_have_the_log_odds_as_weight() -> None:
    # The candidate that has the feature is relevant in 3 lists of 4: p = 1 / (1 + exp(-w)) = 3/4, so w = ln 3.
    features_BKF = np.tile([[1.0], [0.0]], (4, 1, 1))
    relevance_BK = np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
    (weight,) = likeliest(lists_of(features_BKF, relevance_BK), 1e-9)
    assert weight == pytest.approx(math.log(3), abs=1e-4)
    assert held_likelihood(np.array([weight]), lists_of(features_BKF, relevance_BK)) == pytest.approx(
        0.75 * math.log(0.75) + 0.25 * math.log(0.25), abs=1e-6
    )


def test_candidates_that_share_a_list_share_the_top_by_their_gains() -> None:
    features_BKF = np.eye(3)[None]
    scores_K = likeliest(lists_of(features_BKF, np.array([[2.0, 1.0, 1.0]])), 1e-9)
    assert np.exp(log_softmax(scores_K)) == pytest.approx([0.5, 0.25, 0.25], abs=1e-3)


def test_the_weights_that_lists_were_drawn_with_are_found() -> None:
    assert likeliest(drawn([1.0, -0.5, 0.0], 20_000), 1e-6) == pytest.approx([1.0, -0.5, 0.0], abs=0.04)


def test_no_other_weights_have_a_smaller_penalised_loss() -> None:
    lists, penalty = drawn([0.7, -1.2, 0.3], 60), 0.05
    best_F = likeliest(lists, penalty)
    centred_BKF = lists.features_BKF - lists.features_BKF.mean(axis=1, keepdims=True)
    deviation_F = np.sqrt(np.square(centred_BKF, dtype=np.float64).mean(axis=(0, 1)))

    def loss(weights_F: np.ndarray) -> float:
        total = 0.0
        for values_KF, gains_K in zip(lists.features_BKF.astype(float), lists.relevance_BK, strict=True):
            total -= log_softmax(values_KF @ weights_F)[gains_K.argmax()] / len(lists)
        return total + penalty / 2 * float(np.square(weights_F * deviation_F).sum())

    assert approx_fprime(best_F, loss) == pytest.approx(np.zeros(3), abs=1e-4)


def test_units_and_what_all_candidates_share_do_not_matter() -> None:
    lists = drawn([1.0, -0.5], 300)
    best_F = likeliest(lists, 0.01)
    shift_B = np.random.default_rng(1).normal(size=(300, 1, 1))
    other = lists_of(np.concatenate([lists.features_BKF * [100.0, 0.01] + 3.0 * shift_B, shift_B.repeat(5, 1)], axis=2),
                     lists.relevance_BK)  # fmt: skip
    found_F = likeliest(other, 0.01)
    assert found_F[:2] * [100.0, 0.01] == pytest.approx(best_F, rel=2e-3)
    assert found_F[2] == 0.0


def test_what_stands_in_padding_is_not_read() -> None:
    lists = drawn([1.0, -0.5], 100)
    padding = np.full((100, 2, 2), 7e5)
    padded = lists_of(
        np.concatenate([lists.features_BKF, padding], axis=1),
        np.concatenate([lists.relevance_BK, np.zeros((100, 2))], axis=1),
        np.arange(7) < np.full((100, 1), 5),
    )
    assert likeliest(padded, 0.01) == pytest.approx(likeliest(lists, 0.01), abs=1e-9)
    weights_F = np.array([0.3, 0.4])
    assert held_likelihood(weights_F, padded) == pytest.approx(held_likelihood(weights_F, lists), abs=1e-12)


def small_world() -> tuple[Evidence, Requests]:
    """Sixty users take an item and its companion; the companion of the latest item is to be found among three."""
    rng = np.random.default_rng(0)
    items_U2 = (rng.integers(0, 6, 60) * 2)[:, None] + np.arange(2)
    log = Interactions(
        np.repeat(np.arange(60), 2), items_U2.ravel(), np.ones(120), np.tile([0.0, 1.0], 60),
        tuple(f"thing {item}" for item in range(12)), np.zeros((12, 0), dtype=np.float32), (),
    )  # fmt: skip
    candidates = [rng.permutation([b, (a + 3) % 12, (a + 6) % 12]) for a, b in items_U2]
    gains = [(listed == b).astype(float) for listed, (_, b) in zip(candidates, items_U2, strict=True)]
    requests = Requests.of(
        candidates, gains, history=items_U2[:, :1].tolist(), users=list(range(60)), catalog=Catalog.of(log.texts)
    )
    return Evidence.fit(log, np.ones(120, dtype=bool)), requests


def test_the_policy_is_fitted_both_ways_answers_with_permutations_and_is_kept_on_disk(tmp_path: Path) -> None:
    evidence, requests = small_world()
    fitted = LinearPlackettLuce.fit(requests, evidence=evidence)
    stopped = LinearPlackettLuce.fit(requests.take(np.arange(40)), requests.take(np.arange(40, 60)), evidence=evidence)
    for policy in (fitted, stopped):
        assert isinstance(policy, Policy)
        rankings_BK = policy.rank(requests, rng=np.random.default_rng(0))
        assert (verdicts(rankings_BK, requests.sizes_B) == Verdict.OK).all()
        assert requests.relevance_BK[np.arange(60), rankings_BK[:, 0]].mean() > 0.95
        assert policy.penalty in LinearSettings().penalties
    fitted.save_pretrained(tmp_path)
    loaded = LinearPlackettLuce.from_pretrained(tmp_path)
    np.testing.assert_array_equal(loaded.scores(requests), fitted.scores(requests))
    assert loaded.weights == fitted.weights
    assert set(loaded.weights) == set(evidence.names)
    (tmp_path / "evidence.npz").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="were not saved together"):
        LinearPlackettLuce.from_pretrained(tmp_path)


def test_a_penalty_that_is_too_heavy_is_not_chosen() -> None:
    evidence, requests = small_world()
    settings = LinearSettings(penalties=(1e-2, 1e6))
    assert LinearPlackettLuce.fit(requests, evidence=evidence, settings=settings).penalty == 1e-2
    only = LinearSettings(penalties=(1e6,))
    heavy = LinearPlackettLuce.fit(requests, evidence=evidence, settings=only)
    assert np.abs(heavy.weights_F).max() < 1e-3


@pytest.mark.parametrize("penalties", [(), (0.0,), (-1.0,)])
def test_penalties_have_to_be_above_zero(penalties: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="each above 0"):
        LinearSettings(penalties=penalties)


def test_requests_over_another_catalogue_of_as_many_items_are_refused_by_a_loaded_policy_too(tmp_path: Path) -> None:
    evidence, requests = small_world()
    fitted = LinearPlackettLuce.fit(requests, evidence=evidence)
    fitted.save_pretrained(tmp_path)
    foreign = replace(requests, catalog=Catalog.of(requests.catalog.texts[::-1]))
    for policy in (fitted, LinearPlackettLuce.from_pretrained(tmp_path)):
        with pytest.raises(InputError, match="the 12 items of the requests' catalogue are not those"):
            policy.rank(foreign, rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="the 12 items of the requests' catalogue are not those"):
        LinearPlackettLuce.fit(requests, foreign, evidence=evidence)


def put(folder: Path, name: str, data: bytes) -> None:
    """Another file, with its digest: what only somebody who meant it could have written."""
    record = json.loads((folder / "config.json").read_text())
    record["sha256"][name] = hashlib.sha256(data).hexdigest()
    (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps(record))


STRANGE = [None, True, 0, -1, math.inf, 10**400, "x", "\0", 1.0, [], {}, ["evidence.npz"], {"evidence.npz": 1}, [[1]]]
KEYS = [
    (), ("kind",), ("version",), ("config",), ("config", "penalty"), ("config", "weights"),
    ("config", "weights", "score"), ("sha256",), ("sha256", "evidence.npz"),
]  # fmt: skip


@pytest.mark.parametrize("keys", KEYS, ids=".".join)
def test_a_configuration_with_anything_else_in_any_place_cannot_be_read(keys: tuple[str, ...], tmp_path: Path) -> None:
    evidence, requests = small_world()
    LinearPlackettLuce.fit(requests, evidence=evidence).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    whole = path.read_text()
    for value in STRANGE:
        top = {"all": json.loads(whole)}
        part, last = top, "all"
        for key in keys:
            part, last = part[last], key
        part[last] = value
        path.write_text(json.dumps(top["all"]))
        if last in ("penalty", "score") and value in (0, -1, 1) and value is not True:
            LinearPlackettLuce.from_pretrained(tmp_path)
        else:
            with pytest.raises(CheckpointError):
                LinearPlackettLuce.from_pretrained(tmp_path)
    for text in ("", "{", "[" * 100_000, '{"kind": ' * 100_000, "\ud800".encode("utf-16-le", "surrogatepass")):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(CheckpointError):
            LinearPlackettLuce.from_pretrained(tmp_path)


def test_evidence_that_is_anything_else_cannot_be_read_even_with_its_digest(tmp_path: Path) -> None:
    evidence, requests = small_world()
    LinearPlackettLuce.fit(requests, evidence=evidence).save_pretrained(tmp_path)
    whole = (tmp_path / "evidence.npz").read_bytes()
    with np.load(io.BytesIO(whole)) as file:
        arrays = dict(file.items())
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    packed = [b"", b"PK", b"x" * 100, whole[:200], whole[len(whole) // 2 :], bytes(flipped), one_array(np.arange(3))]
    for name, values in arrays.items():
        packed.append(archive({other: arrays[other] for other in arrays if other != name}))
        for strange in (np.array(["x"] * values.size), values.ravel()[:1].reshape(1, 1, 1), values.ravel()[:0]):
            packed.append(archive(arrays | {name: strange}))
    for data in packed:
        put(tmp_path, "evidence.npz", data)
        with pytest.raises(CheckpointError, match="the evidence in .* cannot be read"):
            LinearPlackettLuce.from_pretrained(tmp_path)
    put(tmp_path, "evidence.npz", archive(arrays))
    LinearPlackettLuce.from_pretrained(tmp_path)


def one_array(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def archive(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("strange", [None, "x", True, -1, -0.5, math.nan, (), ("x",), (None,)])
def test_arguments_that_are_no_such_number_are_refused_in_a_sentence(strange: object) -> None:
    evidence, requests = small_world()
    with pytest.raises(InputError, match="penalt(ies are|y is)"):
        LinearSettings(penalties=strange)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="penalt(ies are|y is)"):
        LinearSettings(penalties=(strange,))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="folds is"):
        LinearSettings(folds=strange)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed is"):
        LinearPlackettLuce.fit(requests, evidence=evidence, seed=strange)  # type: ignore[arg-type]


def test_weights_that_do_not_fit_the_evidence_are_refused() -> None:
    evidence, _ = small_world()
    with pytest.raises(InputError, match=r"weights have shape \(2,\) for 31 features"):
        LinearPlackettLuce(evidence, np.zeros(2), 0.1)
