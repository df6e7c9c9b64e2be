"""Remarks say in which share of the training values a feature lies, and nothing of order, relevance or the asker."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.agents.evidence import Evidence, EvidenceRemarks, Remark
from rerank_env.agents.evidence.words import DEFAULT, WORDS
from rerank_env.data import Catalog, Requests
from rerank_env.data.interactions import Interactions
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError
from rerank_env.rewards.rankings import random_rankings

TEXTS = ("red lip balm", "red lip gloss", "green tea soap", "soap", "black tea", "blue soap")

SCORE = Remark("score", "stage", "the earlier stage's score")
"""A feature whose values the tests choose."""


def log_of(users: list[int], items: list[int]) -> Interactions:
    count = len(users)
    return Interactions(
        np.array(users), np.array(items), np.ones(count), np.arange(count) + 0.0,
        TEXTS, np.zeros((len(TEXTS), 0), dtype=np.float32), (), (),
    )  # fmt: skip


def evidence_of(users: list[int], items: list[int]) -> Evidence:
    return Evidence.fit(log_of(users, items), np.ones(len(users), dtype=bool))


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return evidence_of([1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4], [0, 1, 2, 0, 1, 1, 2, 3, 0, 2, 5])


def asked(
    candidates: list[list[int]], scores: list[list[float]] | None = None, history: list[list[int]] | None = None,
    users: list[int] | None = None,
) -> Requests:  # fmt: skip
    gains = [[1.0] + [0.0] * (len(items) - 1) for items in candidates]
    return Requests.of(candidates, gains, scores, history=history, users=users, catalog=Catalog.of(TEXTS))


TRAIN = asked(
    [[0, 1, 2, 5], [2, 3, 1], [1, 2, 4]],
    [[4, 3, 1, 0.5], [5, 4, 0], [2, 1, 1]],
    [[1], [0, 1], [0, 5]],
    [1, 9, 8],
)


def scored(values: list[float]) -> Requests:
    """Requests of five candidates with these scores, filled up with the last."""
    rows = -(-len(values) // 5)
    padded = values + [values[-1]] * (5 * rows - len(values))
    return asked([[0, 1, 2, 3, 4]] * rows, np.array(padded).reshape(rows, 5).tolist())


def levels_of(evidence: Evidence, train: list[float], shown: list[float], **options: int) -> list[int]:
    assert len(train) % 5 == 0, "no value counts twice"
    fitted = EvidenceRemarks.fit(evidence, scored(train), features=[SCORE], **options)
    return fitted.levels_of(scored(shown)).ravel()[: len(shown)].tolist()


def test_ten_values_are_ten_levels(evidence: Evidence) -> None:
    values = [float(v) for v in range(1, 11)]
    assert levels_of(evidence, values[::-1], values) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    # two each of five levels
    assert levels_of(evidence, values, values, levels=5) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_equal_values_have_the_level_of_the_middle_of_their_run(evidence: Evidence) -> None:
    # 6 of 10 are 1: their middle is at 3 of 10, which is level 4; then 2 has its middle at 6.5, and 3 at 8.5, two each
    train = [1.0] * 6 + [2.0] + [3.0] * 3
    assert levels_of(evidence, train, [1.0, 2.0, 3.0]) == [4, 7, 9]


def test_a_value_that_training_did_not_show_has_the_level_of_the_nearest_that_it_did(evidence: Evidence) -> None:
    train = [1.0] * 6 + [2.0] + [3.0] * 3
    assert levels_of(evidence, train, [-99.0, 1.49, 1.5, 1.51, 2.49, 2.51, 99.0]) == [4, 4, 7, 7, 7, 9, 9]


def test_zeros_are_nothing_known_where_more_than_a_tenth_are(evidence: Evidence) -> None:
    some = [float(v) for v in range(1, 10)]
    # one of ten: a value like others, the lowest; and so is a value below it
    assert levels_of(evidence, [0.0, *some], [0.0, 1.0, 9.0, -5.0]) == [1, 2, 10, 1]
    # six of fifteen: level 0, and the nine others have the levels: middles at 0.5 ... 8.5 of 9
    assert levels_of(evidence, [0.0] * 6 + some, [0.0, *some]) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    # what is not zero is something, even below all that was known
    assert levels_of(evidence, [0.0] * 6 + some, [0.001, -3.0]) == [1, 1]
    # where all that is known is one value, it is the middle
    assert levels_of(evidence, [0.0] * 3 + [2.0] * 2, [0.0, 2.0, 3.0]) == [0, 6, 6]


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(-6, 6), min_size=1, max_size=12), most=st.integers(2, 12))
def test_levels_are_those_of_a_plain_count(evidence: Evidence, values: list[int], most: int) -> None:
    train = [float(v) for v in values for _ in range(5)]
    if len(set(train)) == 1:
        train = [*train, train[0] + 1, *train[:4]]
    known = [v for v in train if v != 0] if train.count(0.0) * 10 > len(train) else train

    def level(value: float) -> int:
        if value == 0 and len(known) < len(train):
            return 0
        below, equal = sum(v < value for v in known), known.count(value)
        return 1 + int(Fraction(2 * below + equal, 2) * most / len(known))

    assert levels_of(evidence, train, train, levels=most) == [level(value) for value in train]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.floats(-50, 50, width=32), min_size=10, max_size=10), st.booleans())
def test_a_shuffled_request_has_the_same_remark_on_the_same_candidate(
    evidence: Evidence, seed: int, scores: list[float], ours: bool
) -> None:
    rng = np.random.default_rng(seed)
    candidates = [rng.permutation(6)[:size].tolist() for size in (4, 6)]
    history = [rng.permutation(6)[: rng.integers(0, 6)].tolist() for _ in range(2)]
    requests = asked(candidates, [scores[:4], scores[4:]], history, [int(rng.integers(1, 5)), 9])
    fitted = EvidenceRemarks.fit(evidence, requests if ours and np.ptp(scores[:4]) else TRAIN, features=["score_z"])
    every = EvidenceRemarks.fit(evidence, TRAIN)
    for remarks in (fitted, every):
        order_BK = random_rankings(requests.sizes_B, 6, rng)
        before, after = remarks.on(requests).reordered(order_BK), remarks.on(requests.reordered(order_BK))
        assert before.remarks_BK.tolist() == after.remarks_BK.tolist()  # type: ignore[union-attr]
        assert [bool(text) for text in before.remarks_BK.ravel()] == (before.candidates_BK >= 0).ravel().tolist()  # type: ignore[union-attr]


def test_neither_relevance_nor_the_asking_users_own_purchases_enter(evidence: Evidence) -> None:
    remarks = EvidenceRemarks.fit(evidence, TRAIN)
    turned = replace(TRAIN, relevance_BK=np.where(TRAIN.slates.mask_BK, 1.0 - TRAIN.relevance_BK, 0.0))
    assert remarks.on(turned).remarks_BK.tolist() == remarks.on(TRAIN).remarks_BK.tolist()  # type: ignore[union-attr]
    # user 4 took 5 right after 2; nobody else did, so to user 4 nothing is known of it, and to user 77 something is
    own, other = (asked([[5, 0]], history=[[2]], users=[user]) for user in (4, 77))
    said = [remarks.on(requests).remarks_BK[0, 0].split() for requests in (own, other)]  # type: ignore[union-attr, index]
    assert said[0][2:4] == ["next", "0"]
    assert said[1][2] == "next" and int(said[1][3]) > 0


def test_a_remark_is_words_and_levels_that_the_legend_explains(evidence: Evidence) -> None:
    remarks = EvidenceRemarks.fit(evidence, TRAIN, levels=4)
    assert remarks.names == ("stage", "next", "near", "text", "lift")
    assert tuple(WORDS[name].word for name in DEFAULT) == remarks.names
    shown = remarks.on(TRAIN)
    levels_BKF = remarks.levels_of(TRAIN)
    assert levels_BKF.shape == (3, 4, 5) and levels_BKF.dtype == np.int64
    assert levels_BKF.min() >= 0 and levels_BKF.max() == 4 and not levels_BKF[1, 3].any()
    for row, place in np.argwhere(TRAIN.candidates_BK >= 0):
        text = shown.remarks_BK[row, place]  # type: ignore[index]
        assert re.fullmatch(r"stage \d next \d near \d text \d lift \d", text)
        assert [int(level) for level in re.findall(r"\d", text)] == levels_BKF[row, place].tolist()
    assert shown.remarks_BK[1, 3] == ""  # type: ignore[index]
    legend = remarks.legend.split("\n")
    assert "from 1 to 4" in legend[0]
    assert [line.partition(":")[0] for line in legend[1:]] == [f"- {name}" for name in remarks.names]
    assert legend[2].endswith("; 0 if none") and not legend[5].endswith("; 0 if none")
    # the remarks replace others, and no other field changes
    assert remarks.on(shown).remarks_BK.tolist() == shown.remarks_BK.tolist()  # type: ignore[union-attr]
    assert replace(shown, remarks_BK=None).candidates_BK is TRAIN.candidates_BK
    assert (
        PromptWriter(prompt="compact")
        .write(shown, [2])[0]
        .text.startswith(
            f"rank 3\n{shown.remarks_BK[2, 0]} [1]\n"  # type: ignore[index]
        )
    )


def test_features_are_shown_in_the_order_asked_for_under_words_of_ones_own(evidence: Evidence) -> None:
    own = Remark("lift_max", "rate-near", "how often it follows the latest entry")
    remarks = EvidenceRemarks.fit(evidence, TRAIN, features=["next_last", own, "score_z"])
    assert remarks.names == ("next", "rate-near", "stage")
    assert "- rate-near: how often it follows the latest entry" in remarks.legend
    swapped = EvidenceRemarks.fit(evidence, TRAIN, features=["score_z", "next_last", own])
    np.testing.assert_array_equal(remarks.levels_of(TRAIN), swapped.levels_of(TRAIN)[:, :, [1, 2, 0]])


def test_every_word_is_of_a_feature_and_there_are_no_two_alike(evidence: Evidence) -> None:
    log = replace(log_of([1, 2], [0, 1]), labels=(("a",),) * 6)
    full = Evidence.fit(log, np.ones(2, dtype=bool), embeddings=np.eye(6))
    assert set(WORDS) <= set(full.names) and set(DEFAULT) <= set(WORDS)
    assert len({remark.word for remark in WORDS.values()}) == len(WORDS)


def test_no_requests_have_no_remarks(evidence: Evidence) -> None:
    remarks = EvidenceRemarks.fit(evidence, TRAIN)
    empty = remarks.on(TRAIN.take([]))
    assert empty.remarks_BK.shape == (0, 4) and len(empty) == 0  # type: ignore[union-attr]
    assert remarks.levels_of(TRAIN.take([])).shape == (0, 4, 5)


@pytest.mark.parametrize(
    ("features", "error", "says"),
    [
        (["next_lst"], UnknownNameError, "did you mean 'next_last'"),
        (["label_max"], UnknownNameError, "unknown feature 'label_max'"),  # a log without labels
        ([Remark("fame", "fame", "")], UnknownNameError, "unknown feature 'fame'"),
        (["lift_max"], InputError, r"'lift_max' has no word of its own; give Remark\('lift_max', word, meaning\)"),
        (["score_z", "score_z"], InputError, "two features are called 'stage'"),
        (["next_last", Remark("score", "next", "")], InputError, "two features are called 'next'"),
        ([], InputError, r"features is \[\]; give a list"),
        ("score_z", InputError, "features is 'score_z'; give a list"),
        ([3], UnknownNameError, "unknown feature 3"),
    ],
)
def test_features_that_cannot_be_put_in_words_are_refused(
    evidence: Evidence, features: list[str | Remark], error: type[InputError], says: str
) -> None:
    with pytest.raises(error, match=says):
        EvidenceRemarks.fit(evidence, TRAIN, features=features)


@pytest.mark.parametrize("word", ["", "two words", "7", "<x>", "a|b", "a\n", 3])
def test_a_word_is_one_word(word: object) -> None:
    with pytest.raises(InputError, match="give one word that begins with a letter"):
        Remark("score", word, "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="meaning of the remark 'a' is no text"):
        Remark("score", "a", None)  # type: ignore[arg-type]


def test_what_says_nothing_of_any_candidate_is_refused_by_name(evidence: Evidence) -> None:
    unknown = asked([[3, 4], [4, 3]], [[1, 0], [2, 1]], [[4], [3]])
    with pytest.raises(InputError, match="the same for every candidate say nothing; leave out next_last, near_last_3$"):
        EvidenceRemarks.fit(evidence, unknown)
    with pytest.raises(InputError, match="there are no requests"):
        EvidenceRemarks.fit(evidence, TRAIN.take([]))
    for levels in (1, 2.0, True):
        with pytest.raises(InputError, match="levels is"):
            EvidenceRemarks.fit(evidence, TRAIN, levels=levels)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_features_that_are_not_finite_are_refused(evidence: Evidence) -> None:
    below = Remark("score_below_top", "below", "")
    huge = asked([[0, 1], [1, 2]], [[1, 0], [3e38, -3e38]])
    with pytest.raises(InputError, match="the feature 'score_below_top' of request 1 is not finite"):
        EvidenceRemarks.fit(evidence, huge, features=[below])
    fitted = EvidenceRemarks.fit(evidence, TRAIN, features=[below])
    with pytest.raises(InputError, match="of request 1 is not finite"):
        fitted.on(huge)


def test_another_catalogue_is_refused(evidence: Evidence) -> None:
    remarks = EvidenceRemarks.fit(evidence, TRAIN)
    for catalog in (Catalog.of(TEXTS[::-1]), Catalog.of([*TEXTS, "new"])):
        for use in (remarks.on, remarks.levels_of, lambda r: EvidenceRemarks.fit(evidence, r)):
            with pytest.raises(InputError, match="the evidence was fitted on"):
                use(replace(TRAIN, catalog=catalog))


def test_what_was_saved_makes_the_same_remarks(evidence: Evidence, tmp_path: Path) -> None:
    own = Remark("lift_max", "rate", "é")
    remarks = EvidenceRemarks.fit(evidence, TRAIN, features=[*DEFAULT, own], levels=7)
    remarks.save(tmp_path / "a" / "remarks")
    loaded = EvidenceRemarks.load(tmp_path / "a" / "remarks")
    assert (loaded.scales, loaded.remarks, loaded.legend) == (remarks.scales, remarks.remarks, remarks.legend)
    assert loaded.levels == 7
    assert loaded.on(TRAIN).remarks_BK.tolist() == remarks.on(TRAIN).remarks_BK.tolist()  # type: ignore[union-attr]
    loaded.save(tmp_path / "b")
    for file in ("config.json", "evidence.npz"):
        assert (tmp_path / "b" / file).read_bytes() == (tmp_path / "a" / "remarks" / file).read_bytes()
    loaded.save(tmp_path / "b")  # over its own


def test_remarks_are_not_saved_over_the_configuration_of_something_else(evidence: Evidence, tmp_path: Path) -> None:
    remarks = EvidenceRemarks.fit(evidence, TRAIN)
    for text in ('{"model_type": "qwen2"}', "[]", "torn", '{"kind": "lambdamart"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json is not that of remarks; save them in a folder"):
            remarks.save(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
        assert (tmp_path / "config.json").read_text() == text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"levels": 1}, "levels is 1"),
        ({"levels": 3}, "not those of 3 levels"),
        ({"scales": []}, "there are 5 remarks and 0 scales"),
        ({"remarks": []}, r"features is \[\]"),
        ({"scales": [{}]}, "cannot be read"),
        ({"scales": None}, "cannot be read"),
        ({"edges": [2, 1]}, "not those of 10 levels"),
        ({"edges": [float("nan")]}, "not those of 10 levels"),
        ({"edges": "ab"}, "cannot be read"),
        ({"lowest": 0}, "the lowest level is 0"),
        ({"lowest": 10}, "not those of 10 levels"),
        ({"zero_is_nothing": 1}, "neither true nor false"),
        ({"remarks": [{"feature": "scr", "word": "a", "meaning": ""}]}, "unknown feature 'scr'"),
        ({"remarks": [{"feature": "score", "word": "a b", "meaning": ""}]}, "give one word"),
        ({"remarks": [{"feature": "score"}]}, "cannot be read"),
        ({"remarks": [None]}, "cannot be read"),
    ],
)
def test_a_folder_that_was_changed_is_refused(
    evidence: Evidence, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    EvidenceRemarks.fit(evidence, TRAIN).save(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())
    if set(change) <= set(record["config"]):
        record["config"] |= change
    else:
        record["config"]["scales"][0] |= change
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=says) as caught:
        EvidenceRemarks.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_of_something_else_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        EvidenceRemarks.load(tmp_path)
    EvidenceRemarks.fit(evidence, TRAIN).save(tmp_path)
    (tmp_path / "evidence.npz").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="were not saved together"):
        EvidenceRemarks.load(tmp_path)
