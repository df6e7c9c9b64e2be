"""Hugging Face data sets as requests: whole and streamed, our own form there and back, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data import Requests, load
from rerank_env.data.readers import huggingface
from rerank_env.data.readers.huggingface import PREPARED, ListColumns
from rerank_env.rewards.errors import DataError
from rerank_env.rewards.rankings import random_rankings

datasets = pytest.importorskip("datasets", reason="needs the datasets extra")

COLUMNS: dict[str, list[Any]] = {
    "candidates": [["b", "a", "c"], ["c", "z"]],
    "relevance": [[0.0, 1.0, 0.0], [2.0, 0.0]],
    "scores": [[3.0, 2.5, -1.0], [0.5, 0.25]],
    "history": [["z"], []],
    "texts": [["Bee", "Ay", "Sea"], ["Sea", "Zed"]],
    "user": [5, 6],
    "prompt": ["long", "longer"],
}


def rows_of(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def unpadded(requests: Requests, field: str) -> list[list[Any]] | None:
    values_BK = getattr(requests, field)
    if values_BK is None:
        return None
    return [row[:size] for row, size in zip(values_BK.tolist(), requests.sizes_B.tolist(), strict=True)]


def says(text: str) -> Any:
    return pytest.raises(DataError, match=text)


def check(named: Any) -> None:
    requests = named.requests
    back = [[named.item_ids[item] for item in items if item >= 0] for items in requests.candidates_BK.tolist()]
    assert back == COLUMNS["candidates"]
    assert requests.relevance_BK.tolist() == [[0, 1, 0], [2, 0, 0]]
    assert requests.scores_BK.tolist() == [[3, 2.5, -1], [0.5, 0.25, 0]]
    assert [named.item_ids[item] for item in requests.history_BH[:, 0].tolist() if item >= 0] == ["z"]
    assert requests.catalog.texts[named.item_ids.index("z")] == "Zed"
    assert requests.users_B.tolist() == [5, 6] and named.user_ids == (5, 6) and named.request_ids == (0, 1)
    assert requests.notes == (
        "read of the data set: candidates, relevance, scores, history, user, texts; not read: prompt",
    )


def test_a_data_set_is_read_whole_streamed_and_in_any_format(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_dict(COLUMNS)
    check(huggingface.read(whole))
    check(huggingface.read(whole.with_format("numpy")))
    check(huggingface.read(whole.to_iterable_dataset()))
    check(huggingface.read(datasets.IterableDataset.from_generator(lambda: rows_of(COLUMNS))))  # knows no columns
    whole.to_parquet(str(tmp_path / "lists.parquet"))
    check(huggingface.read(datasets.Dataset.from_parquet(str(tmp_path / "lists.parquet"), cache_dir=str(tmp_path))))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("logged", [False, True])
def test_what_the_adapter_makes_of_requests_comes_back(shuffled: bool, logged: bool) -> None:
    to_dataset = pytest.importorskip("rerank_env.training.adapters.huggingface").to_dataset
    requests = load("synthetic", requests=12, min_slate_size=4)
    if logged:
        offered = [row[:size].tolist() for row, size in zip(requests.candidates_BK, requests.sizes_B, strict=True)]
        ones = [[1.0] * len(row) for row in offered]
        gains = [row[:n].tolist() for row, n in zip(requests.relevance_BK, requests.sizes_B, strict=True)]
        halves = [[0.5] * len(row) for row in offered]
        requests = Requests.of(
            offered, gains, clicks=ones, propensities=halves, predictions=halves, catalog=requests.catalog
        )
    if shuffled:
        copies = requests.take([3, 3, 1, 0])
        width = copies.candidates_BK.shape[1]
        requests = copies.reordered(random_rankings(copies.sizes_B, width, np.random.default_rng(0)))
    for conversational in (False, True):
        named = huggingface.read(
            to_dataset(requests, conversational=conversational), PREPARED, catalog=requests.catalog
        )
        back = named.requests
        assert back.catalog is requests.catalog
        for field in ("candidates_BK", "relevance_BK", "clicks_BK", "propensities_BK", "predictions_BK"):
            assert unpadded(back, field) == unpadded(requests, field), field
        assert back.origins.tolist() == requests.origins.tolist()
        expected = unpadded(requests, "canonical_BK") or [list(range(size)) for size in requests.sizes_B]
        assert unpadded(back, "canonical_BK") == expected
    renumbered = huggingface.read(to_dataset(requests), PREPARED, seed=3)
    ids = [[int(renumbered.item_ids[i]) for i in row if i >= 0] for row in renumbered.requests.candidates_BK.tolist()]
    assert ids == [row[:n].tolist() for row, n in zip(requests.candidates_BK, requests.sizes_B, strict=True)]


@given(
    st.lists(
        st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 3), st.floats(-9, 9, width=32)), min_size=2),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
    st.integers(0, 9),
)
@settings(max_examples=30)
def test_random_lists_come_back_up_to_renumbering(
    table: list[dict[int, tuple[int, float]]], as_texts: bool, seed: int
) -> None:
    columns = {
        "candidates": [[str(name) if as_texts else name for name in row] for row in table],
        "relevance": [[gain for gain, _ in row.values()] for row in table],
        "scores": [[score for _, score in row.values()] for row in table],
    }
    named = huggingface.read(datasets.Dataset.from_dict(columns), seed=seed)
    rows = zip(
        named.requests.candidates_BK.tolist(), named.requests.relevance_BK.tolist(),
        named.requests.scores_BK.tolist(), named.requests.sizes_B.tolist(), strict=True,
    )  # fmt: skip
    back = [
        {int(named.item_ids[i]): (g, s) for i, g, s in zip(items[:n], gains, scores, strict=False)}
        for items, gains, scores, n in rows
    ]
    assert back == table and [list(row) for row in back] == [list(row) for row in table]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": [["b", None, "c"], ["c", "z"]]}, "row 0 of the data set, column 'candidates', entry 1 is null"),
        ({"candidates": [["b", "a", "c"], None]}, "row 1 of the data set, column 'candidates' is null, not a list"),
        ({"candidates": [["b", "a"], ["c", "z"]]}, "row 0 .*column 'relevance' has 3 entries for 2 candidates"),
        ({"relevance": [[0, 1, 0], [2, -1]]}, "row 1 of the data set, column 'relevance', entry 1 is -1"),
        ({"relevance": [["0", "1", "0"], ["2", "0"]]}, "row 0 .*column 'relevance', entry 0 is '0' of type str"),
        ({"user": [5, None]}, "row 1 of the data set, column 'user' is null"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_cell_that_does_not_fit_is_refused_with_row_and_column(
    change: dict[str, Any], message: str, streamed: bool
) -> None:
    dataset = datasets.Dataset.from_dict(COLUMNS | change)
    with says(message):
        huggingface.read(dataset.to_iterable_dataset() if streamed else dataset)


def test_what_is_no_single_data_set_or_has_no_such_column_is_refused() -> None:
    whole = datasets.Dataset.from_dict(COLUMNS)
    with says(r"has the splits 'train', 'test'; give one of them, as in dataset\['train'\]"):
        huggingface.read(datasets.DatasetDict(train=whole, test=whole))
    with says("list is no data set"):
        huggingface.read([COLUMNS])
    with says("no column 'bm25', which is to hold the scores"):
        huggingface.read(whole, ListColumns(scores="bm25"))
    with says("no column 'candidates', which is to hold the candidates; .* .it has none.: pass ListColumns"):
        huggingface.read(datasets.IterableDataset.from_generator(lambda: iter(())))
