"""Frames of pandas and polars that do not fit: one sentence each, with row and column."""

import re
from typing import Any

import pytest
from frame_tables import LIBRARIES, LISTS, ROWS, Frame, framed, says

from rerank_env.data import Catalog
from rerank_env.data.impressions import RULES
from rerank_env.data.readers.columns import RowColumns
from rerank_env.data.readers.frames import read_lists, read_rows
from rerank_env.rewards.errors import SlateError


@pytest.fixture(params=LIBRARIES, scope="module")
def frame(request: pytest.FixtureRequest) -> Frame:
    return framed(request.param)


BAD_LISTS: list[tuple[str, Any, str]] = [
    ("candidates", [["b", "a", None], ["c", "z"]], "row 0 .*column 'candidates', entry 2 is null, not .* ids are"),
    ("candidates", [["b", "a", "c"], ["c", ""]], "row 1 .*column 'candidates', entry 1 is '' of type str"),
    ("candidates", [["b", "a", "b"], ["c", "z"]], "row 0 of the frame, column 'candidates' has 'b' twice"),
    ("candidates", [[1.0, 2.0, 3.0], [4.0, 5.0]], "row 0 .*column 'candidates', entry 0 is 1.0 of type float"),
    ("candidates", [[True, False, True], [True, False]], "row 0 .*entry 0 is True of type bool"),
    ("candidates", [None, ["c", "z"]], "row 0 of the frame, column 'candidates' is null, not a list"),
    ("candidates", ["abc", "cz"], "row 0 of the frame, column 'candidates' is 'abc' of type str, not a list"),
    ("candidates", [1, 2], "row 0 of the frame, column 'candidates' is 1 of type int, not a list"),
    ("candidates", [["b", "a"], ["c", "z"]], "row 0 .*column 'relevance' has 3 entries for 2 candidates"),
    ("relevance", [[0.0, 1.0, None], [2.0, 0.0]], "row 0 .*column 'relevance', entry 2 is null, not a gain from 0"),
    ("relevance", [[0.0, 1.0, 0.0], [2.0, -1.0]], "row 1 .*column 'relevance', entry 1 is -1.0 of type float, not a"),
    ("relevance", [[0.0, 1.0, float("inf")], [2.0, 0.0]], "row 0 .*column 'relevance', entry 2 is inf"),
    ("relevance", [["0", "1", "0"], ["2", "0"]], "row 0 .*column 'relevance', entry 0 is '0' of type str"),
    ("scores", [[3.0, 2.5, float("nan")], [0.5, 0.25]], "row 0 .*column 'scores', entry 2 is null, not a number that"),
    ("scores", [[3.0, 2.5, 1e39], [0.5, 0.25]], r"row 0 .*column 'scores', entry 2 is 1e\+39"),
    ("scores", [[3.0, 2.5, 1.0], [0.5]], "row 1 .*column 'scores' has 1 entries for 2 candidates"),
    ("texts", [["Bee", "Ay"], ["Sea", "Zed"]], "row 0 .*column 'texts' has 2 entries for 3 candidates"),
    ("input_order", [[0, 2, 2], [0, 1]], r"row 0 .*column 'input_order' is \[0, 2, 2\]; name each place from 0 once"),
    ("input_order", [[0.0, 1.5, 2.0], [0.0, 1.0]], "row 0 .*column 'input_order', entry 1 is 1.5"),
    ("clicks", [[0, 2, 0], [0, 0]], "row 0 .*column 'clicks', entry 1 is 2 of type int, not 0 or 1"),
    ("propensities", [[1.0, 0.0, 1.0], [1.0, 1.0]], "row 0 .*column 'propensities', entry 1 is 0.0 .*above 0"),
    ("predictions", [[1.0, 0.0, 1.5], [1.0, 1.0]], "row 0 .*column 'predictions', entry 2 is 1.5 .*probability"),
    ("history", [["z", None], []], "row 0 .*column 'history', entry 1 is null"),
    ("history", [["z", "y"], []], "row 0 .*column 'feedback' has 1 entries for 2 entries of the history"),
    ("history_texts", [[], []], "row 0 .*column 'history_texts' has 0 entries for 1 entries of the history"),
    ("texts", [["Bee", "Ay", None], ["Sea", "Zed"]], "row 0 .*column 'texts', entry 2 is null, not a text"),
    ("user", ["ann", None], "row 1 of the frame, column 'user' is null"),
    ("request", [None, "r2"], "row 0 of the frame, column 'request' is null"),
]


@pytest.mark.parametrize(("column", "cells", "message"), BAD_LISTS)
def test_a_cell_that_does_not_fit_is_refused_with_row_and_column(
    column: str, cells: Any, message: str, frame: Frame
) -> None:
    with says(message) as caught:
        read_lists(frame(LISTS | {column: cells}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("request", ["r1", "r2", None, "r2", "r1"], "row 2 of the frame, column 'request' is null"),
        ("candidate", ["c", "c", "a", None, "b"], "row 3 of the frame, column 'candidate' is null"),
        ("candidate", ["c", "c", "a", "z", "c"], "row 4 .*column 'candidate' has the candidate 'c', as row 0 of the"),
        ("relevance", [0, 2, None, 0, 0], "row 2 of the frame, column 'relevance' is null, not a gain"),
        ("relevance", [0, 2, 1, 0, -1], "row 4 of the frame, column 'relevance' is -1"),
        ("scores", [-1.0, 0.5, 2.5, float("nan"), 3.0], "row 3 of the frame, column 'scores' is null"),
        ("text", ["Sea", "Sea", None, "Zed", "Bee"], "row 2 of the frame, column 'text' is null, not a text"),
        ("user", ["ann", "bob", "eve", "bob", "ann"], "row 2 .*column 'user' differs from row 0, .* request 'r1'"),
        ("user", ["ann", None, "ann", None, "ann"], "row 1 of the frame, column 'user' is null"),
        ("history", [["z"], [], ["y"], [], ["z"]], "row 2 of the frame, column 'history' differs from row 0"),
        ("history", [["z"], [], ["z", "z"], [], ["z"]], "row 2 of the frame, column 'history' differs from row 0"),
        ("history", [["z"], [], None, [], ["z"]], "row 2 of the frame, column 'history' differs from row 0"),
        (
            "feedback",
            [[4.0], [1.0], [4.0], [1.0], [4.0]],
            "row 1 .*column 'feedback' has 1 entries for 0 entries of the history",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_row_and_column(
    column: str, cells: Any, message: str, frame: Frame
) -> None:
    with says(message) as caught:
        read_rows(frame(ROWS | {column: cells}))
    assert "\n" not in str(caught.value)
    with says("row 1 of the frame, column 'position' is 1.5 of type float, not a whole number"):
        read_rows(frame(ROWS | {"position": [1.0, 1.5, 3.0, 4.0, 5.0]}))


DIGITS = "9" * 5_000


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        (
            "candidates",
            [["a", "\ud83d"], ["c", "z"]],
            "row 0 .*'candidates', entry 1 is '.ud83d' of type str",
        ),
        ("history", [["\udc00"], []], "row 0 .*column 'history', entry 0 is '.udc00'"),
        ("user", ["ann", "b\ud83d"], "row 1 .*column 'user' is 'b.ud83d'"),
        ("request", ["\ud83d", "r2"], "row 0 .*column 'request' is '.ud83d'"),
        (
            "texts",
            [["Bee", "Ay\ud83d", "Sea"], ["Sea", "Zed"]],
            "'texts', entry 1 .* holds half a surrogate pair",
        ),
        ("candidates", [[1, int("9" * 4_000) * 10**4_000], [3, 4]], "entry 1 is a number of more than 1,000 digits"),
        ("user", [1, 10**5_000], "row 1 .*column 'user' is a number of more than 1,000 digits"),
        ("scores", [[3.0, 2.5, 10**5_000], [0.5, 0.25]], "row 0 .*column 'scores', entry 2 is a number of more than"),
    ],
)
def test_what_python_holds_but_cannot_write_is_refused_with_row_and_column(
    column: str, cells: list[Any], message: str
) -> None:
    """A frame of the least kind, because polars refuses some of these by itself."""

    class Column(list[Any]):
        def to_list(self) -> list[Any]:
            return self

    class Plain(dict[str, Column]):
        columns = property(list)

    table = Plain({name: Column(values) for name, values in (LISTS | {column: cells}).items()})
    with says(message) as caught:
        read_lists(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("item", [DIGITS, "-1", "1.0", "1_0", "0" * 5_000, "\u0661", "007"])
def test_a_text_that_is_no_plain_number_of_an_item_is_not_in_the_catalogue(item: str, frame: Frame) -> None:
    catalog = Catalog.of([f"item {number}" for number in range(20)])
    columns = {"candidates": [["1", "2"], ["3", item]], "relevance": [[0, 1], [0, 1]]}
    with says("row 1 of the frame has the item .* but the catalogue has items 0..19"):
        read_lists(frame(columns), catalog=catalog)


def test_a_missing_column_is_refused_with_the_argument_that_names_it(frame: Frame) -> None:
    lists = {"candidate": LISTS["candidates"], "relevance": LISTS["relevance"]}
    with says(r"no column 'candidates'.*did you mean 'candidate'\? .*: pass ListColumns\(candidates='candidate'\)$"):
        read_lists(frame(lists))
    rows = {("query" if name == "request" else name): cells for name, cells in ROWS.items()}
    with says(r"no column 'request', which is to hold the request; say .*'query'.*: pass RowColumns\(request=\.{3}\)$"):
        read_rows(frame(rows))
    with says(r"no column 'querry', .*did you mean 'query'\? .*: pass RowColumns\(request='query'\)$"):
        read_rows(frame(rows), RowColumns(request="querry"))
    assert read_rows(frame(rows), RowColumns(request="query")).request_ids == ("r1", "r2")


@pytest.mark.parametrize(
    ("field", "column", "value"),
    [("clicks", "click", 0.5), ("propensities", "propensity", 0.0), ("propensities", "propensity", 1.5),
     ("predictions", "prediction", 1.5), ("relevance", "relevance", -1.0), ("scores", "score", 1e39)],
)  # fmt: skip
def test_a_number_that_is_refused_is_refused_in_the_same_words_in_tables_and_in_logs(
    field: str, column: str, value: float, frame: Frame
) -> None:
    cells = [list(map(float, row)) for row in LISTS[field]]
    cells[1][0] = value
    with says(f"not {re.escape(RULES[column].expected)};"):
        read_lists(frame(LISTS | {field: cells}))


def test_ids_of_two_types_and_clicks_without_propensities_are_refused(frame: Frame) -> None:
    columns = {"candidates": [[1, 2], [3, 1]], "relevance": [[0, 1], [0, 1]], "history": [["a"], []]}
    with says("row 0 of the frame has the item id 'a' of type str where earlier ones are of type int"):
        read_lists(frame(columns))
    without = {field: cells for field, cells in LISTS.items() if field != "propensities"}
    with pytest.raises(SlateError, match="clicks and propensities come together"):
        read_lists(frame(without))


def test_what_is_no_frame_is_refused_with_what_to_give() -> None:
    with says("list is no frame; give one of pandas or polars"):
        read_lists([{"candidates": [1, 2]}])
    polars = pytest.importorskip("polars", reason="needs polars")
    with says("the frame is lazy.*collect"):
        read_lists(polars.DataFrame(LISTS).lazy())
