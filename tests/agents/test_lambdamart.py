"""LambdaMART learns what the counts say, and answers alike when fitted again, loaded or asked in another batch."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from rerank_env.agents import Policy
from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.lists import Lists
from rerank_env.agents.lambdamart import METRIC, LambdaMart, LambdaMartSettings, _Growing, _lightgbm
from rerank_env.data import Catalog, Requests
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import Verdict, invert, is_identity, verdicts

ITEMS, USERS, LENGTH = 40, 260, 6
SMALL = LambdaMartSettings(rows_in_leaf=5, leaf_penalty=1.0, most_trees=25, patience=10, folds=3, learning_rate=0.2)


def world() -> tuple[Interactions, np.ndarray, Requests]:
    """Users who take an item and then its companion; the last purchase is to be found among five others at random.

    The first stage's scores are noise, so whoever ranks by them finds it first in one list of six.
    """
    rng = np.random.default_rng(0)
    firsts_UP = np.array([rng.permutation(ITEMS // 2)[: LENGTH // 2] for _ in range(USERS)]) * 2
    items_UL = np.stack([firsts_UP, firsts_UP + 1], axis=2).reshape(USERS, LENGTH)
    log = Interactions(
        np.repeat(np.arange(USERS), LENGTH), items_UL.ravel(), np.ones(items_UL.size), np.tile(np.arange(6.0), USERS),
        tuple(f"thing {item}" for item in range(ITEMS)), np.zeros((ITEMS, 0), dtype=np.float32), (),
    )  # fmt: skip
    seen_N = np.tile(np.arange(LENGTH) < LENGTH - 1, USERS)
    seen_N[: LENGTH * USERS // 2] = True  # half the users are in training whole
    candidates, gains = [], []
    for items in items_UL:
        others = rng.permutation(np.setdiff1d(np.arange(ITEMS), items))[: 5 - rng.integers(0, 3)]
        listed = rng.permutation([items[-1], *others])
        candidates.append(listed)
        gains.append((listed == items[-1]).astype(float))
    scores = [np.sort(rng.normal(size=len(items)))[::-1] for items in candidates]
    requests = Requests.of(
        candidates, gains, scores, history=items_UL[:, :-1].tolist(), users=list(range(USERS)),
        catalog=Catalog.of(log.texts), name="companions",
    )  # fmt: skip
    return log, seen_N, requests


LOG, SEEN, REQUESTS = world()
EVIDENCE = Evidence.fit(LOG, SEEN)
TRAIN, VALIDATION, TEST = (
    REQUESTS.take(np.arange(130)),
    REQUESTS.take(np.arange(130, 195)),
    REQUESTS.take(np.arange(195, USERS)),
)
POLICY = LambdaMart.fit(VALIDATION, evidence=EVIDENCE, settings=SMALL)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def hits(policy: Policy, requests: Requests) -> float:
    """The share of lists whose relevant candidate is put first."""
    first_B = policy.rank(requests, rng=rng())[:, 0]
    return float((requests.relevance_BK[np.arange(len(requests)), first_B] > 0).mean())


def test_it_finds_what_is_bought_together_whichever_way_it_is_fitted() -> None:
    assert REQUESTS.relevance_BK[:, 0].mean() < 0.3
    assert hits(POLICY, TEST) > 0.9
    stopped = LambdaMart.fit(TRAIN, VALIDATION, evidence=EVIDENCE, settings=SMALL)
    assert hits(stopped, TEST) > 0.9
    assert 1 <= stopped.trees <= 25
    assert isinstance(stopped, Policy)


def test_training_lists_alone_do_not_teach_it_to_trust_the_answer_in_the_counts() -> None:
    # In a log of noise nothing can be found; with the asking user's own pairs counted, training lists would be solved.
    order = np.random.default_rng(1)
    items_UL = np.array([order.permutation(ITEMS)[:LENGTH] for _ in range(USERS)])
    shuffled = replace(LOG, items_N=items_UL.ravel())
    candidates = [order.permutation([items[-1], *np.setdiff1d(np.arange(ITEMS), items)[:5]]) for items in items_UL]
    gains = [(listed == items[-1]).astype(float) for listed, items in zip(candidates, items_UL, strict=True)]
    lists = Requests.of(
        candidates, gains, history=items_UL[:, :-1].tolist(), users=list(range(USERS)), catalog=Catalog.of(LOG.texts)
    )
    evidence = Evidence.fit(shuffled, np.ones(len(LOG), dtype=bool))
    next_last = evidence.names.index("next_last")
    targets_B = evidence.features(lists)[np.arange(USERS), lists.relevance_BK.argmax(axis=1), next_last]
    others_BK = evidence.features(lists)[:, :, next_last][lists.relevance_BK == 0]
    assert abs(targets_B.mean() - others_BK.mean()) < 0.05  # ln 2 = 0.69 would be added to every target


def test_the_same_arguments_give_the_same_trees_and_another_seed_others() -> None:
    again = LambdaMart.fit(VALIDATION, evidence=EVIDENCE, settings=SMALL)
    assert again.text == POLICY.text
    assert LambdaMart.fit(VALIDATION, evidence=EVIDENCE, settings=SMALL, seed=1).text != POLICY.text


def test_answers_are_padded_permutations_and_do_not_depend_on_the_rest_of_the_batch() -> None:
    rankings_BK = POLICY.rank(REQUESTS, rng=rng())
    assert rankings_BK.dtype == np.int64
    assert (verdicts(rankings_BK, REQUESTS.sizes_B) == Verdict.OK).all()
    assert (rankings_BK[~REQUESTS.slates.mask_BK] == -1).all()
    np.testing.assert_array_equal(POLICY.rank(REQUESTS.take([9, 4]), rng=rng()), rankings_BK[[9, 4]])
    assert POLICY.rank(REQUESTS.take([]), rng=rng()).shape == (0, REQUESTS.candidates_BK.shape[1])


def test_relevance_is_not_looked_at_when_it_answers() -> None:
    blind = replace(TEST, relevance_BK=np.zeros_like(TEST.relevance_BK))
    np.testing.assert_array_equal(POLICY.scores(blind), POLICY.scores(TEST))


def test_candidates_that_the_trees_cannot_tell_apart_keep_the_incoming_order() -> None:
    stump = LambdaMart.fit(VALIDATION, evidence=EVIDENCE, settings=replace(SMALL, rows_in_leaf=10_000))
    assert is_identity(stump.rank(TEST, rng=rng()), TEST.sizes_B).all()
    assert set(stump.importances.values()) == {0.0}


def test_importances_are_shares_of_the_features_and_the_counts_come_first() -> None:
    assert sum(POLICY.importances.values()) == pytest.approx(1.0)
    assert set(POLICY.importances) == set(EVIDENCE.names)
    best = next(iter(POLICY.importances))
    assert best.startswith(("next", "near", "after", "together", "lift"))


def test_the_held_out_curve_is_the_ndcg_of_our_own_metric_for_any_gains() -> None:
    gains_BK = np.random.default_rng(3).choice([0.0, 0.5, 3.0], VALIDATION.candidates_BK.shape)
    graded = replace(VALIDATION, relevance_BK=gains_BK * VALIDATION.slates.mask_BK)
    lists = Lists.of(graded, EVIDENCE)
    settings = replace(SMALL, cutoff=4)
    growing = _Growing(_lightgbm(), settings, EVIDENCE.names, np.array([0.0, 0.5, 3.0]), 0)
    curve, booster = growing.grow(lists, lists, stop=False)
    uneven = graded.take([len(set(row[:size])) > 1 for row, size in zip(gains_BK, graded.sizes_B, strict=True)])
    grown = LambdaMart(EVIDENCE, settings, booster.model_to_string())
    ours = ndcg(grown.rank(uneven, rng=rng()), uneven.slates, k=4)
    assert len(curve) == settings.most_trees
    assert len(uneven) == len(lists)
    assert curve[-1] == pytest.approx(ours.mean(), abs=1e-9)
    assert METRIC == "ndcg"


def test_folds_hold_out_whole_users_and_everybody_once() -> None:
    doubled = TRAIN.take(np.repeat(np.arange(20), 2))
    lists = Lists.of(doubled, EVIDENCE)
    held: list[int] = []
    for others, part in lists.folds(4, rng=rng()):
        assert not set(others.users_B) & set(part.users_B)
        assert len(others) + len(part) == len(lists)
        held += sorted(set(part.users_B.tolist()))
    assert sorted(held) == sorted(set(doubled.users_B.tolist()))
    with pytest.raises(InputError, match="20 users cannot be cut into 21 folds"):
        list(lists.folds(21, rng=rng()))


def test_lists_that_teach_nothing_are_left_out_and_refused_where_there_is_nothing_else() -> None:
    flat = replace(TRAIN, relevance_BK=TRAIN.slates.mask_BK.astype(np.float64))
    mixed = replace(
        TRAIN, relevance_BK=np.where(np.arange(len(TRAIN))[:, None] < 5, flat.relevance_BK, TRAIN.relevance_BK)
    )
    assert len(Lists.of(mixed, EVIDENCE)) == len(TRAIN) - 5
    for nothing in (flat, TRAIN.take([])):
        with pytest.raises(InputError, match="has a better and a worse candidate"):
            LambdaMart.fit(nothing, evidence=EVIDENCE, settings=SMALL)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"leaves": 1}, "leaves is 1"), ({"folds": 1}, "folds is 1"), ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"lists_a_tree": 1.5}, "lists_a_tree is 1.5"), ({"leaf_penalty": -1.0}, "leaf_penalty is -1.0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        LambdaMartSettings(**wrong)  # type: ignore[arg-type]


WHOLE = ("leaves", "rows_in_leaf", "most_trees", "patience", "cutoff", "folds")


@pytest.mark.parametrize("name", [field.name for field in fields(LambdaMartSettings)])
def test_settings_that_are_no_such_number_are_refused_whichever_it_is(name: str) -> None:
    for strange in (None, "x", True, -1, math.nan, math.inf, (1,), 10**400, *((2.0, 2**31) if name in WHOLE else ())):
        with pytest.raises(InputError, match=f"{name} is "):
            LambdaMartSettings(**{name: strange})  # type: ignore[arg-type]
    given = np.int64(2) if name in WHOLE else np.float32(0.5)
    kept = getattr(LambdaMartSettings(**{name: given}), name)  # type: ignore[arg-type]
    assert (type(kept), kept) == ((int, 2) if name in WHOLE else (float, 0.5))


@pytest.mark.parametrize("seed", [-1, 1.5, "x", None, True])
def test_a_seed_that_is_none_is_refused_before_anything_is_grown(seed: object) -> None:
    for validation in (None, VALIDATION):
        with pytest.raises(InputError, match="seed is .*; give a whole number of at least 0"):
            LambdaMart.fit(TRAIN, validation, evidence=EVIDENCE, settings=SMALL, seed=seed)  # type: ignore[arg-type]


def test_trees_that_are_larger_than_lightgbm_grows_cannot_be_asked_for() -> None:
    assert replace(SMALL, leaves=2**17).leaves == 131072
    with pytest.raises(InputError, match="leaves is 131073; give a whole number of at most 131072"):
        replace(SMALL, leaves=2**17 + 1)


def test_requests_over_another_catalogue_of_as_many_items_are_refused() -> None:
    foreign = replace(TEST, catalog=Catalog.of(TEST.catalog.texts[::-1]))
    with pytest.raises(InputError, match=f"the {ITEMS} items of the requests' catalogue are not those"):
        POLICY.rank(foreign, rng=rng())
    with pytest.raises(InputError, match=f"the {ITEMS} items of the requests' catalogue are not those"):
        LambdaMart.fit(foreign, evidence=EVIDENCE, settings=SMALL)


def test_a_loaded_policy_answers_as_the_saved_one(tmp_path: Path) -> None:
    POLICY.save_pretrained(tmp_path / "policy")
    loaded = LambdaMart.from_pretrained(tmp_path / "policy")
    np.testing.assert_array_equal(loaded.scores(TEST), POLICY.scores(TEST))
    assert (loaded.text, loaded.settings, loaded.trees) == (POLICY.text, POLICY.settings, POLICY.trees)
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["config.json", "evidence.npz", "model.txt"]
    before = (tmp_path / "policy" / "evidence.npz").read_bytes()
    loaded.save_pretrained(tmp_path / "policy")
    assert (tmp_path / "policy" / "evidence.npz").read_bytes() == before


@pytest.mark.parametrize("name", ["config.json", "evidence.npz", "model.txt"])
def test_a_file_that_is_missing_torn_or_foreign_is_named(tmp_path: Path, name: str) -> None:
    POLICY.save_pretrained(tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"cannot be read|were not saved together"):
        LambdaMart.from_pretrained(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}; pass a folder that save_pretrained wrote"):
        LambdaMart.from_pretrained(tmp_path)


def test_another_kind_or_another_models_settings_are_refused(tmp_path: Path) -> None:
    POLICY.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(record | {"kind": "forest"}))
    with pytest.raises(CheckpointError, match="holds a 'forest' model of version 1, not a 'lambdamart' model"):
        LambdaMart.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(record | {"config": {"colour": "red"}}))
    with pytest.raises(CheckpointError, match="cannot be read .*colour"):
        LambdaMart.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="cannot be read"):
        LambdaMart.from_pretrained(tmp_path)


def test_trees_of_other_features_are_refused() -> None:
    labelled = replace(LOG, labels=(("one",),) * ITEMS)
    with pytest.raises(InputError, match="grown on other features than the evidence has .*label_last"):
        LambdaMart(Evidence.fit(labelled, SEEN), SMALL, POLICY.text)


def test_without_lightgbm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(
        MissingExtraError, match=r'needs lightgbm, which is not installed; run: pip install "rerank-env\[ltr\]"$'
    ):
        LambdaMart.fit(VALIDATION, evidence=EVIDENCE)


def test_the_relevant_candidate_moves_up_on_average() -> None:
    places_BK = invert(POLICY.rank(TEST, rng=rng()), TEST.sizes_B)
    rows = np.arange(len(TEST))
    target_B = TEST.relevance_BK.argmax(axis=1)
    assert (target_B - places_BK[rows, target_B]).mean() > 1.0
