"""Amazon purchases as sequences: what is read, what leaks are closed, and what is refused with file and line."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_env.data.readers import amazon_sequences
from rerank_env.data.readers.amazon_fields import NO_TITLE
from rerank_env.data.readers.amazon_sequences import ITEMS, SEQUENCES, folder_of, read
from rerank_env.rewards.errors import DataError, UnknownNameError


def packed(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def item(number: int, title: str = "", keywords: str = "", marks: tuple[int, ...] = ()) -> str:
    return json.dumps({"item_id": number, "title": title, "keywords": keywords, "attr_ids": list(marks)}) + "\n"


def written(folder: Path, sequences: list[list[int]], titles: list[str] | None = None) -> Path:
    """A folder with those sequences of items from 1, each with a title of its own."""
    count = max(map(max, sequences))
    names = [f"title {number}" for number in range(1, count + 1)] if titles is None else titles
    packed(folder / ITEMS, "".join(item(number, title) for number, title in enumerate(names, start=1)))
    packed(
        folder / SEQUENCES,
        "".join(f"{user} {' '.join(map(str, bought))}\n" for user, bought in enumerate(sequences, start=1)),
    )
    return folder


def test_a_purchase_has_its_place_as_time_one_as_rating_and_the_title_as_text(tmp_path: Path) -> None:
    packed(
        tmp_path / ITEMS,
        item(1, "Soap", "bath", (7, 9)) + item(2, "  ", "nail polish") + item(3) + item(4, "never bought"),
    )
    packed(tmp_path / SEQUENCES, "1 3 1\n2 1 2 3\n")
    log = read(tmp_path)
    assert log.users_N.tolist() == [0, 0, 1, 1, 1] and log.times_N.tolist() == [0, 1, 0, 1, 2]
    assert log.ratings_N.tolist() == [1] * 5 and log.item_count == 4
    assert [log.texts[i] for i in log.items_N] == [NO_TITLE, "Soap", "Soap", "nail polish", NO_TITLE]
    assert log.labels[log.items_N[1]] == ("label 7", "label 9") and log.labels[log.items_N[0]] == ()
    assert log.content_IC.shape == (4, 0) and log.content_names == ()


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8, unique=True), min_size=1, max_size=8),
    st.integers(0, 100),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_sequences_come_back_in_their_order_up_to_renumbering(
    tmp_path: Path, sequences: list[list[int]], seed: int
) -> None:
    log = read(written(tmp_path, sequences), seed=seed)
    back = [[int(log.texts[i].split()[1]) for i in log.items_N[log.users_N == u]] for u in range(len(sequences))]
    assert back == sequences


def test_item_numbers_are_drawn_with_the_seed(tmp_path: Path) -> None:
    folder = written(tmp_path, [list(range(1, 101))])
    assert read(folder, seed=1).items_N.tolist() == read(folder, seed=1).items_N.tolist()
    assert read(folder, seed=1).items_N.tolist() != read(folder, seed=2).items_N.tolist()
    steps = np.diff(read(folder).items_N)  # in the file the next item is always the next number
    assert (steps == 1).sum() < 10


def says(text: str) -> Any:
    return pytest.raises(DataError, match=text)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2 1 x\n", "holds something else than numbers"),
        ("2 1 1\n", "each once"),
        ("2 4\n", "items from 1 to 3"),
        ("2 0\n", "items from 1 to 3"),
        ("2\n", "is not a user and items"),
        ("\n", "is not a user and items"),
        ("2 1 2", "no line end"),
        ("1.5 1\n", "holds something else than numbers"),
    ],
)
def test_a_line_that_is_no_sequence_is_refused_with_its_number(line: str, reason: str, tmp_path: Path) -> None:
    folder = written(tmp_path, [[1, 2, 3]])
    packed(folder / SEQUENCES, f"1 1 2 3\n{line}")
    with says(f"{SEQUENCES} line 2.*{reason}") as caught:
        read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "no json\n",
        "[2]\n",
        item(3, "in the wrong place"),
        item(2).replace('"keywords"', '"words"'),
        item(2).replace("[]", "3"),
        item(2).replace("[]", '["Beauty"]'),
        item(2).replace("[]", "[1e999]"),
        item(2).replace("[]", "[NaN]"),
        item(2).replace("[]", "[1.5]"),
        item(2).replace("[]", f"[{'1' * 5_000}]"),
        item(2).replace("[]", "[" * 100_000),
        item(2).replace('"title": ""', '"title": "half a \\ud83d"'),
        item(2).replace('"title": ""', '"title": null'),
    ],
)
def test_a_line_that_is_no_item_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    folder = written(tmp_path, [[1, 2]])
    packed(folder / ITEMS, item(1) + line)
    with says(f"{ITEMS} line 2"):
        read(folder)


def test_a_cut_or_foreign_or_missing_file_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, [list(range(1, 2000))])
    whole = (folder / SEQUENCES).read_bytes()
    (folder / SEQUENCES).write_bytes(whole[: len(whole) // 2])
    with says(f"{SEQUENCES}.*(read|gzip)"):
        read(folder)
    (folder / SEQUENCES).write_bytes(b"no text \xff\n")
    with says(SEQUENCES):
        read(folder)
    (folder / SEQUENCES).unlink()
    with says(f"{SEQUENCES} cannot be read"):
        read(folder)


def test_the_folder_of_a_domain_is_found_through_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RERANK_DATA", str(tmp_path))
    with says("amazon_beauty is no folder; set RERANK_DATA"):
        folder_of("beauty")
    (tmp_path / "amazon_beauty").mkdir()
    assert folder_of("beauty") == tmp_path / "amazon_beauty"
    with pytest.raises(UnknownNameError, match="did you mean 'beauty'"):
        folder_of("beaty")
    monkeypatch.delenv("RERANK_DATA")
    with says("set RERANK_DATA to the folder that holds amazon_beauty"):
        folder_of("beauty")


@pytest.mark.parametrize(
    ("domain", "users", "items", "purchases", "titled"),
    [
        ("beauty", 22_363, 12_101, 198_502, 12_094),
        ("sports", 35_598, 18_357, 296_337, 0),
        ("toys", 19_412, 11_924, 167_597, 0),
    ],
)
def test_the_real_files_have_the_published_counts_and_no_numbering_that_leaks(
    domain: str, users: int, items: int, purchases: int, titled: int
) -> None:
    if not (Path(os.environ.get("RERANK_DATA") or "/nowhere") / f"amazon_{domain}").is_dir():
        pytest.skip("set RERANK_DATA to the folder that holds the Amazon files")
    folder = amazon_sequences.folder_of(domain)
    log = read(folder)
    counts = np.bincount(log.users_N)
    assert (len(counts), log.item_count, len(log)) == (users, items, purchases)
    assert counts.min() == 5 and np.bincount(log.items_N).min() == 5  # a 5-core
    with gzip.open(folder / ITEMS, "rt", encoding="utf-8") as file:
        titles = [json.loads(line)["title"].strip() for line in file]
    assert sum(map(bool, titles)) == titled and set(filter(None, titles)) <= set(log.texts)
    last = np.flatnonzero(np.diff(log.users_N, append=-1))
    leaks = (log.items_N[last] == log.items_N[last - 1] + 1).mean()  # 2 to 4 % in the files, by chance 0.01 %
    assert leaks < 0.001
    assert (log.items_N[1:] > log.items_N[:-1])[np.diff(log.users_N) == 0].mean() == pytest.approx(0.5, abs=0.005)
