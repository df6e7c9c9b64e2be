"""Frames of pandas and polars as requests, in both forms: what is read, and how it is ordered."""

from typing import Any

import numpy as np
import pytest
from frame_tables import LIBRARIES, LISTS, ROWS, Frame, framed, says
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data import Catalog, Requests
from rerank_env.data.readers.columns import ListColumns, RowColumns
from rerank_env.data.readers.documents import NO_TEXT
from rerank_env.data.readers.drafts import TOO_FEW
from rerank_env.data.readers.frames import read_lists, read_rows
from rerank_env.data.readers.named import NamedRequests
from rerank_env.rewards.errors import InputError


@pytest.fixture(params=LIBRARIES, scope="module")
def frame(request: pytest.FixtureRequest) -> Frame:
    return framed(request.param)


def names_of(named: NamedRequests, items_BK: Any) -> list[list[Any]]:
    return [[named.item_ids[item] for item in items if item >= 0] for items in items_BK.tolist()]


@pytest.mark.parametrize("form", ["lists", "rows"])
def test_both_forms_of_one_table_give_the_same_requests(form: str, frame: Frame) -> None:
    named = read_lists(frame(LISTS)) if form == "lists" else read_rows(frame(ROWS))
    requests = named.requests
    assert named.request_ids == ("r1", "r2") and named.user_ids == ("ann", "bob")
    assert names_of(named, requests.candidates_BK) == [["b", "a", "c"], ["c", "z"]]
    assert names_of(named, requests.history_BH) == [["z"], []]
    assert requests.relevance_BK.tolist() == [[0, 1, 0], [2, 0, 0]]
    assert requests.scores_BK.tolist() == [[3, 2.5, -1], [0.5, 0.25, 0]]
    assert requests.feedback_BH.tolist() == [[4], [0]]
    assert requests.clicks_BK is not None and requests.clicks_BK.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert requests.propensities_BK is not None and requests.propensities_BK.tolist() == [[1, 0.5, 0.25], [1, 0.5, 0]]
    assert requests.predictions_BK is not None and requests.predictions_BK.tolist() == [[0.5, 0.5, 0.5], [0, 1, 0]]
    assert {name: requests.catalog.texts[i] for i, name in enumerate(named.item_ids)} == {
        "a": "Ay", "b": "Bee", "c": "Sea", "z": "Zed"
    }  # fmt: skip
    ann, bob = requests.users_B.tolist()
    assert ann != bob and read_lists(frame(LISTS | {"user": ["bob", "ann"]})).requests.users_B.tolist() == [bob, ann]
    assert requests.origins.tolist() == [0, 1]
    assert requests.notes[-1].startswith("read of the frame:") and requests.notes[-1].endswith("not read: day")


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests with distinct candidates, gains, and scores, histories and ids of one type."""
    ids = draw(st.sampled_from([st.integers(-5, 2**40), st.text(min_size=1, max_size=4)]))
    pool = draw(st.lists(ids, min_size=2, max_size=12, unique=True))
    rows = []
    for number in range(draw(st.integers(1, 5))):
        candidates = draw(st.lists(st.sampled_from(pool), min_size=2, max_size=6, unique=True))
        size = len(candidates)
        rows.append(
            {
                "request": f"r{number}",
                "candidates": candidates,
                "relevance": draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
                "scores": sorted(draw(st.lists(st.floats(-9, 9, width=32), min_size=size, max_size=size)))[::-1],
                "history": draw(st.lists(st.sampled_from(pool), max_size=4)),
            }
        )
    return rows


@given(table=tables(), seed=st.integers(0, 9), data=st.data())
@settings(max_examples=30)
def test_random_requests_come_back_from_both_forms_up_to_renumbering(
    frame: Frame, table: list[dict[str, Any]], seed: int, data: st.DataObject
) -> None:
    lists = {field: [row[field] for row in table] for field in table[0]}
    one_each = [
        {"request": row["request"], "candidate": c, "relevance": g, "scores": s, "history": row["history"]}
        for row in table
        for c, g, s in zip(row["candidates"], row["relevance"], row["scores"], strict=True)
    ]
    places = [place for row in table for place in range(len(row["candidates"]))]
    order = data.draw(st.permutations(range(len(one_each))))
    rows: dict[str, list[Any]] = {field: [one_each[at][field] for at in order] for field in one_each[0]}
    rows["position"] = [places[at] for at in order]
    for named in (read_lists(frame(lists), seed=seed), read_rows(frame(rows), seed=seed)):
        by_id = {request: row for row, request in enumerate(named.request_ids)}
        back = named.requests.take([by_id[row["request"]] for row in table])
        assert names_of(named, back.candidates_BK) == lists["candidates"]
        assert names_of(named, back.history_BH) == lists["history"]
        sizes = back.sizes_B.tolist()
        assert [gains[:n] for gains, n in zip(back.relevance_BK.tolist(), sizes, strict=True)] == lists["relevance"]
        assert [scores[:n] for scores, n in zip(back.scores_BK.tolist(), sizes, strict=True)] == lists["scores"]


def test_rows_are_ordered_by_position_then_scores_then_the_table(frame: Frame) -> None:
    rows = {"request": [7] * 4, "candidate": [1, 2, 3, 4], "relevance": [0, 0, 0, 1]}
    named = read_rows(frame(rows))
    assert names_of(named, named.requests.candidates_BK) == [[1, 2, 3, 4]]
    assert named.requests.scores_BK.tolist() == [[0, -1, -2, -3]]
    rows["bm25"] = [5, 9, 5, 9]
    named = read_rows(frame(rows), RowColumns(scores="bm25"))
    assert names_of(named, named.requests.candidates_BK) == [[2, 4, 1, 3]]
    rows["position"] = [3, 1, 2, 0]
    named = read_rows(frame(rows), RowColumns(scores="bm25"))
    assert names_of(named, named.requests.candidates_BK) == [[4, 2, 3, 1]]
    assert not any("contradict" in note for note in named.requests.notes)
    named = read_rows(frame(rows | {"bm25": [9, 1, 2, 0]}), RowColumns(scores="bm25"))
    assert any("1 requests have scores that contradict their positions" in note for note in named.requests.notes)


def test_columns_of_other_names_are_named_and_a_missing_one_is_refused_with_those_there_are(frame: Frame) -> None:
    columns = {"sku": [["a", "b"]], "grade": [[0, 1]], "scores": [["no", "numbers"]]}
    with says("row 0 of the frame, column 'scores', entry 0 is 'no' of type str, not a number that a float32 can hold"):
        read_lists(frame(columns), ListColumns(candidates="sku", relevance="grade"))
    del columns["scores"]
    named = read_lists(frame(columns), ListColumns(candidates="sku", relevance="grade"))
    assert names_of(named, named.requests.candidates_BK) == [["a", "b"]]
    assert named.requests.notes == ("read of the frame: candidates from sku, relevance from grade",)
    with says(r"no column .candidates., which is to hold the candidates; say .*.sku., .grade.\): pass ListColumns"):
        read_lists(frame(columns))
    with says("no column 'bm25', which is to hold the scores"):
        read_lists(frame(columns), ListColumns(candidates="sku", relevance="grade", scores="bm25"))


def test_texts_come_by_id_and_what_has_none_says_so(frame: Frame) -> None:
    columns = {"candidates": [[10, 20], [20, 30]], "relevance": [[0, 1], [1, 0]]}
    named = read_lists(frame(columns), texts={10: "ten", 20: "twenty"})
    assert dict(zip(named.item_ids, named.requests.catalog.texts, strict=True)) == {
        10: "ten", 20: "twenty", 30: NO_TEXT
    }  # fmt: skip
    assert "1 of 3 items have no text" in named.requests.notes
    with says("the text of the item 20 is None; give a text for each id"):
        read_lists(frame(columns), texts={10: "ten", 20: None})  # type: ignore[dict-item]
    named = read_lists(frame(columns))
    assert set(named.requests.catalog.texts) == {"item 0", "item 1", "item 2"}
    named = read_lists(frame(columns | {"texts": [["ten", "one"], ["two", "thirty"]]}))
    assert named.requests.catalog.texts[named.item_ids.index(20)] == "one"
    assert "1 items have several texts, of which the first is kept" in named.requests.notes


def test_ids_of_a_catalogue_stay_what_they_are(frame: Frame) -> None:
    catalog = Catalog.of(["a", "b", "c"])
    columns = {"candidates": [[2, 0]], "relevance": [[0, 1]]}
    named = read_lists(frame(columns), catalog=catalog)
    assert named.requests.candidates_BK.tolist() == [[2, 0]] and named.requests.catalog is catalog
    spelled = {"candidates": [["2", "0"]], "relevance": [[0, 1]]}
    assert read_lists(frame(spelled), catalog=catalog).requests.candidates_BK.tolist() == [[2, 0]]
    for wrong in ([3, 0], ["x", "0"], [-1, 0]):
        with says(f"row 0 of the frame has the item {wrong[0]!r} but the catalogue has items 0..2"):
            read_lists(frame({"candidates": [wrong], "relevance": [[0, 1]]}), catalog=catalog)
    with pytest.raises(InputError, match="catalog came with texts"):
        read_lists(frame(columns), catalog=catalog, texts={0: "a"})


def test_requests_with_fewer_than_two_candidates_are_counted_and_left_out(frame: Frame) -> None:
    lists = {"candidates": [["a"], ["a", "b"], []], "relevance": [[1], [0, 1], []], "user": [5, 6, 7]}
    named = read_lists(frame(lists))
    assert named.request_ids == (1,) and named.requests.users_B.tolist() == [6]
    assert named.skipped.counts == {TOO_FEW: 2} and named.skipped.first == {TOO_FEW: "the frame row 0"}
    rows = {"request": ["x", "y", "y"], "candidate": [1, 1, 2], "relevance": [1, 0, 1]}
    named = read_rows(frame(rows))
    assert named.request_ids == ("y",) and named.skipped.counts == {TOO_FEW: 1}
    with says("the frame has no request with 2 candidates"):
        read_rows(frame({field: values[:1] for field, values in rows.items()}))


def test_requests_of_one_id_are_copies_of_one(frame: Frame) -> None:
    lists = {"request": ["x", "y", "x"], "candidates": [[1, 2], [1, 3], [2, 1]], "relevance": [[0, 1], [1, 0], [1, 0]]}
    assert read_lists(frame(lists)).requests.origins.tolist() == [0, 1, 0]
    named = read_lists(frame(lists | {"request": [90, 12, 90], "input_order": [[0, 1], [0, 1], [1, 0]]}))
    assert named.requests.origins.tolist() == [90, 12, 90]
    assert named.requests.canonical_BK is not None and named.requests.canonical_BK.tolist() == [[0, 1], [0, 1], [1, 0]]
    huge = read_lists(frame(lists | {"request": [2**63 + 5, 1, 2**63 + 5]}))  # hashes are often unsigned
    assert huge.requests.origins.tolist() == [0, 1, 0] and huge.request_ids == (2**63 + 5, 1, 2**63 + 5)


def test_polars_reads_lists_of_every_type_and_nulls_of_its_own() -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    fixed = polars.DataFrame(
        {"candidates": np.array([[3, 1], [2, 3]], np.uint16), "relevance": np.array([[0, 1], [1, 0]], np.float32)}
    )
    named = read_lists(fixed)
    assert names_of(named, named.requests.candidates_BK) == [[3, 1], [2, 3]]
    labelled = polars.DataFrame(ROWS).with_columns(polars.col("candidate", "user").cast(polars.Categorical))
    assert read_rows(labelled).user_ids == ("ann", "bob")


def test_pandas_reads_arrays_in_cells_and_knows_every_null() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    arrays = pandas.DataFrame(
        {
            "candidates": [np.array([3, 1], np.int32), np.array([2, 3], np.uint64)],
            "relevance": [np.array([0, 1]), (True, False)],
            "scores": [pandas.Series([0.5, 0.25]), [np.float32(1), np.int8(0)]],
        },
        index=[7, 7],
    )
    named = read_lists(arrays)
    assert names_of(named, named.requests.candidates_BK) == [[3, 1], [2, 3]]
    assert named.requests.scores_BK.tolist() == [[0.5, 0.25], [1, 0]]
    rows = pandas.DataFrame(ROWS)
    assert read_rows(rows.astype({"candidate": "category", "relevance": "Int64", "scores": "Float32"})).request_ids
    for dtype, column in (("Int64", "relevance"), ("Float64", "scores"), ("string", "candidate"), (object, "user")):
        holed = rows.astype({column: dtype})
        holed.loc[3, column] = pandas.NA
        with says(f"row 3 of the frame, column '{column}' is null|row 3 .*differs from row 1"):
            read_rows(holed)
    dated = rows.assign(user=pandas.to_datetime(["2024-01-01"] * 5))
    with says("row 0 of the frame, column 'user' is Timestamp.* of type Timestamp, not a whole number or a text"):
        read_rows(dated)
    with says("the frame has a column named 'user', by no text or not alone"):
        read_rows(pandas.concat([rows, rows[["user"]]], axis=1))
    with says("the frame has a column named 0"):
        read_rows(pandas.DataFrame([[1, 2]]))


def test_reading_a_frame_imports_neither_library() -> None:
    class Column(list):  # type: ignore[type-arg]
        def to_list(self) -> list[Any]:
            return list(self)

    class Plain(dict):  # type: ignore[type-arg]
        @property
        def columns(self) -> list[str]:
            return list(self)

    plain = Plain({name: Column(cells) for name, cells in LISTS.items()})
    named = read_lists(plain)
    assert isinstance(named.requests, Requests) and named.request_ids == ("r1", "r2")
