"""Impressions as a record: what it refuses, and the requests that are made of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data import Catalog, rules
from rerank_env.data.ids import user_numbers, whole_number
from rerank_env.data.impressions import RULES, Impressions, joined, repeated
from rerank_env.rewards import ClickCredit
from rerank_env.rewards.errors import DataError, InputError, UnknownNameError


def texts(*values: str) -> Any:
    return np.array(values, dtype=object)


def log(**changes: Any) -> Impressions:
    """Two requests: "a" shows x, z at places 1, 3 (rows out of order), "b" shows z, y, x."""
    fields: dict[str, Any] = {
        "request_ids_B": texts("a", "b"),
        "user_ids_B": texts("7", "anna"),
        "sizes_B": np.array([2, 3]),
        "item_ids_I": texts("x", "y", "z"),
        "items_N": np.array([2, 0, 2, 1, 0]),
        "positions_N": np.array([3, 1, 1, 2, 3]),
        "clicks_N": np.array([1.0, 0.0, 0.0, 1.0, 0.0]),
        "propensities_N": np.array([0.25, 1.0, 1.0, 0.5, 0.25]),
        "propensity": "examination",
    }
    return Impressions(**(fields | changes))


CATALOG = Catalog.of(["ecks", "why", "zed", "never shown"])
NUMBERS = {"x": 0, "y": 1, "z": 2}


def test_requests_have_their_candidates_in_order_of_position() -> None:
    requests = log().requests(CATALOG, relevance="clicks", item_numbers=NUMBERS)
    assert requests.candidates_BK.tolist() == [[0, 2, -1], [2, 1, 0]]
    assert requests.sizes_B.tolist() == [2, 3]
    assert requests.clicks_BK is not None and requests.propensities_BK is not None
    assert requests.clicks_BK.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert requests.propensities_BK.tolist() == [[1, 0.25, 0], [1, 0.5, 0.25]]
    assert requests.relevance_BK.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert requests.scores_BK.tolist() == [[0, -1, 0], [0, -1, -2]]
    assert requests.users_B[0] == 7 and requests.users_B[1] >= 2**62
    assert requests.history_BH.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("user", ["\ud83d", "a\udc00", "\udfff\ud83d"])
def test_a_user_whose_id_is_no_text_is_refused(user: str) -> None:
    with pytest.raises(DataError, match="the user id .* holds half a surrogate pair, so it is no text"):
        log(user_ids_B=texts("7", user)).requests(CATALOG, relevance="clicks", item_numbers=NUMBERS)
    assert user_numbers(["\U0001f600", "\U0001f600"]).tolist()[0] >= 2**62


def test_a_log_prints_its_counts_and_not_its_ids() -> None:
    many = [f"item-{number}" for number in range(50_000)]
    shown = repr(log(item_ids_I=texts("x", "y", "z", *many)))
    assert shown == "Impressions(2 requests, 5 rows, 50,003 items, position, click, propensity (of examination))"


NUMBER = st.one_of(st.floats(), st.integers(-3, 3).map(float), st.sampled_from([2.0**53, 1e100, -1e100, rules.SINGLE]))


@given(st.lists(NUMBER, min_size=1, max_size=20))
def test_a_rule_says_of_each_number_what_it_says_of_all_and_never_holds_for_nan_or_infinity(
    values: list[float],
) -> None:
    for rule in (rules.POSITION, rules.ORDER, rules.PLACE, *RULES.values()):
        held = rule.holds(np.array(values)).tolist()
        assert held == [rule.admits(value) for value in values]
        assert all(np.isfinite(value) for value, holds in zip(values, held, strict=True) if holds)
    assert rules.TIMESTAMP.holds(np.array(values)).tolist() == np.isfinite(values).tolist()
    assert rules.PROPENSITY.holds(np.array(values)).tolist() == [0 < value <= 1 for value in values]
    assert rules.POSITION.holds(np.array(values)).tolist() == [
        1 <= value <= 2**53 and value.is_integer() for value in values
    ]


def test_clicks_are_credited_by_the_propensity_of_their_place() -> None:
    """Echoed: (1 / 0.25) / log2(3) of 1 + 1 / log2(3), and (1 / 0.5) / log2(3) of 1 + 1 / log2(3) + 1 / 2."""
    requests = log().requests(CATALOG, relevance="none", item_numbers=NUMBERS)
    echoed = ClickCredit()(np.array([[0, 1, -1], [0, 1, 2]]), requests.slates)
    second = 1 / np.log2(3)
    np.testing.assert_allclose(echoed, [4 * second / (1 + second), 2 * second / (1.5 + second)], rtol=1e-12)
    assert not requests.relevance_BK.any()


def test_the_relevance_column_is_used_only_where_it_is_asked_for_and_there() -> None:
    gains = np.array([0.5, 3.0, 0.0, 1.0, 2.0])
    labelled = log(relevance_N=gains)
    of_column = labelled.requests(CATALOG, relevance="column", item_numbers=NUMBERS)
    assert of_column.relevance_BK.tolist() == [[3, 0.5, 0], [0, 1, 2]]
    assert labelled.requests(CATALOG, relevance="clicks", item_numbers=NUMBERS).relevance_BK.sum() == 2
    with pytest.raises(InputError, match='no column of relevance; pass relevance="clicks"'):
        log().requests(CATALOG, relevance="column", item_numbers=NUMBERS)
    with pytest.raises(UnknownNameError, match="did you mean 'clicks'"):
        log().requests(CATALOG, relevance="click", item_numbers=NUMBERS)  # type: ignore[arg-type]


def test_propensities_of_selection_never_become_those_of_examination() -> None:
    chosen = log(propensity="selection")
    with pytest.raises(InputError, match="those of selection, but credit for clicks needs") as caught:
        chosen.requests(CATALOG, relevance="clicks", item_numbers=NUMBERS)
    assert "\n" not in str(caught.value)
    requests = chosen.requests(CATALOG, relevance="clicks", item_numbers=NUMBERS, logged=False)
    assert requests.clicks_BK is None and requests.propensities_BK is None and requests.relevance_BK.sum() == 2


def test_one_candidate_is_an_impression_but_no_request() -> None:
    alone = log(sizes_B=np.array([1, 4]), positions_N=np.array([1, 1, 2, 3, 4]), items_N=np.array([0, 0, 1, 2, 3]),
                item_ids_I=texts("x", "y", "z", "w"))  # fmt: skip
    with pytest.raises(DataError, match="request 'a' has one candidate"):
        alone.requests(CATALOG, relevance="clicks")


def test_items_are_rows_of_the_catalogue_by_number_where_no_mapping_is_given() -> None:
    numbered = log(item_ids_I=texts("3", "0", "1"))
    assert numbered.requests(CATALOG, relevance="clicks").candidates_BK.tolist() == [[3, 1, -1], [1, 0, 3]]
    for item in ("4", "-1", "01", "x", ""):
        with pytest.raises(DataError, match="is not in the catalogue, which has items 0..3"):
            log(item_ids_I=texts("3", item, "1")).requests(CATALOG, relevance="clicks")
    with pytest.raises(DataError, match="item 'z' of the log is not in the catalogue"):
        log().requests(CATALOG, relevance="clicks", item_numbers={"x": 0, "y": 1})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"positions_N": np.array([3, 0, 1, 2, 3])}, "request 'a', row 1: position is not a whole number from 1"),
        ({"positions_N": np.array([3, 1, 1, 2, 2])}, "request 'b', row 4: another row .* has the same position"),
        ({"items_N": np.array([2, 0, 2, 2, 0])}, "request 'b', row 3: another row .* shows the same item"),
        ({"items_N": np.array([2, 0, 2, 3, 0])}, r"outside 0\.\.2"),
        ({"clicks_N": np.array([1, 0, 0, 0.5, 0])}, "row 3: click is not 0 or 1"),
        ({"propensities_N": np.array([0.25, 0.0, 1, 0.5, 0.25])}, "row 1: propensity is not a probability above 0"),
        ({"propensities_N": np.array([0.25, 1.1, 1, 0.5, 0.25])}, "row 1: propensity"),
        ({"propensities_N": np.array([0.25, np.nan, 1, 0.5, 0.25])}, "row 1: propensity"),
        ({"scores_N": np.array([0, 1, 2, 3, 1e39])}, "row 4: score is not a number that a float32 can hold"),
        ({"relevance_N": np.array([0, 1, 2, 3, -1.0])}, "row 4: relevance"),
        ({"predictions_N": np.array([0, 1, 0, 0, 1.5])}, "row 4: prediction is not a probability"),
        ({"timestamps_N": np.array([0, 1, 0, 0, np.inf])}, "row 4: timestamp"),
        ({"sizes_B": np.array([2, 2])}, "the sizes' sum has 4 entries, expected 5"),
        ({"sizes_B": np.array([0, 5])}, "a request of no rows"),
        ({"user_ids_B": texts("7")}, "user_ids has 1 entries, expected 2"),
        ({"scores_N": np.zeros(4)}, "score has 4 entries, expected 5"),
        ({"item_ids_I": texts("x", "y", "x")}, "two items have the same item_id"),
        ({"row_columns": {"device": texts("tv")}}, "row column 'device' has 1 entries, expected 5"),
        ({"item_columns": {"brand": texts("b")}}, "item column 'brand' has 1 entries, expected 3"),
    ],
)
def test_columns_that_are_no_log_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        log(**changes)


def test_the_meaning_of_propensity_has_to_be_one_of_the_two() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'examination'"):
        log(propensity="examined")


def test_taking_requests_takes_their_rows() -> None:
    labelled = log(row_columns={"device": texts("a1", "a2", "b1", "b2", "b3")})
    part = labelled.take(1, 2)
    assert part.request_ids_B.tolist() == ["b"] and part.items_N.tolist() == [2, 1, 0]
    assert part.row_columns["device"].tolist() == ["b1", "b2", "b3"] and part.requests_N.tolist() == [0, 0, 0]
    assert len(labelled.take(1, 1)) == 0
    Impressions(**{name: value for name, value in part.__dict__.items() if name != "requests_N"})  # is a log itself


def test_runs_of_a_log_are_joined_over_one_vocabulary() -> None:
    more = log(request_ids_B=texts("c", "d"), item_ids_I=texts("z", "w", "x"))
    both = joined([log(), more])
    assert both.request_ids_B.tolist() == ["a", "b", "c", "d"]
    shown = both.item_ids_I[both.items_N].tolist()
    assert shown == ["z", "x", "z", "y", "x", "x", "z", "x", "w", "z"]
    for other in (replace(more, propensity="selection"), replace(more, scores_N=np.zeros(5))):
        with pytest.raises(InputError, match="differ in columns"):
            joined([log(), other])
    with pytest.raises(InputError, match="no impressions to join"):
        joined([])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_a_row_is_repeated_where_an_earlier_row_of_its_request_has_the_value(rows: list[tuple[int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    requests_N = np.array([request for request, _ in rows], dtype=np.int64)
    values_N = np.array([value for _, value in rows], dtype=np.int64)
    assert repeated(requests_N, values_N).tolist() == [row in rows[:index] for index, row in enumerate(rows)]


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.text(min_size=1)), max_size=10))
def test_a_user_has_one_number_in_every_log_and_whole_numbers_are_kept(users: list[str]) -> None:
    numbers = user_numbers(users).tolist()
    assert numbers == [int(user_numbers([user])[0]) for user in users]
    for user, number in zip(users, numbers, strict=True):
        assert number == int(user) if whole_number(user) is not None else number >= 2**62
    assert len({*zip(users, numbers, strict=True)}) == len(set(users))


@pytest.mark.parametrize("text", ["007", "-0", "+1", "1.0", " 1", "9223372036854775808", "", "-", "\u0661", "1_0"])
def test_what_is_not_a_plain_whole_number_of_64_bits_is_text(text: str) -> None:
    assert whole_number(text) is None
