"""Amazon reviews in the three public forms, on files written here: what is read, kept, counted and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from amazon_files import FORMS, Row, by_name, meta_2018, new, old, says, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerank_env.data.readers import amazon_reviews
from rerank_env.data.readers.amazon_reviews import IN_METADATA, NO_METADATA, REPEATED, TWICE
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.k_core import k_core
from rerank_env.rewards.errors import InputError

SQUARE = [(user, item, 4.0, 86400 * day) for day, (user, item) in enumerate((u, i) for u in "UV" for i in "AB")]
"""Two users with two items each."""


@pytest.mark.parametrize("form", FORMS)
def test_a_log_of_every_form_is_read_with_titles_paths_brands_stars_and_seconds(form: str, tmp_path: Path) -> None:
    review, meta = FORMS[form]
    entries = [
        meta("A", "Soap &amp; Glory &quot;Original&quot;", ["Beauty", "Skin Care &gt; Body"], "Soap &amp; Co"),
        meta("Z", "not in the log", ["Beauty"], ""),
        meta("B", "", ["Beauty", "Hair"], ""),
    ]
    named = amazon_reviews.read(
        write(tmp_path / "reviews.json.gz", [review(row) for row in reversed(SQUARE)]),
        write(tmp_path / "meta.json.gz", entries),
        core=2,
    )
    assert sorted(by_name(named)) == [
        ("U", "A", 4.0, 0.0), ("U", "B", 4.0, 86400.0), ("V", "A", 4.0, 172800.0), ("V", "B", 4.0, 259200.0)
    ]  # fmt: skip
    assert [name for name, *_ in by_name(named)] == ["V", "V", "U", "U"]  # users in the order of the file
    texts = dict(zip(named.item_ids, named.log.texts, strict=True))
    assert texts["A"] == 'Soap & Glory "Original"; Beauty > Skin Care > Body'
    assert texts["B"] == "an item without a title; Beauty > Hair"
    labels = dict(zip(named.item_ids, named.log.labels, strict=True))
    other = ("Other",) if form == "2014" else ()
    assert labels["A"] == ("Beauty", "Skin Care > Body", *other, "brand Soap & Co")
    assert labels["B"] == ("Beauty", "Hair", *other)
    assert any("1 entries of meta.json.gz are of items that are not in the log" in note for note in named.notes)
    assert any("1 items have an entry without a title" in note for note in named.notes)
    assert named.skipped.total == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(1, 5), st.integers(0, 9)), min_size=1),
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 10),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_logs_written_in_any_form_come_back_up_to_renumbering(
    tmp_path: Path, rows: list[tuple[int, int, int, int]], form: str, seed: int
) -> None:
    review, meta = FORMS[form]
    written = [(f"user {u}", f"B0{i}", float(stars), 86400 * day) for u, i, stars, day in rows]
    titles = {item: f"Titel \u00fc {item} {{'[" for _, item, _, _ in written}
    named = amazon_reviews.read(
        write(tmp_path / "reviews.json", [review(row) for row in written]),
        write(tmp_path / "meta.json", [meta(item, title, ["C"], "") for item, title in titles.items()]),
        core=1,
        seed=seed,
    )
    first: dict[tuple[str, str], tuple[int, Row]] = {}
    for row in sorted(written, key=lambda row: row[3]):  # sorted is stable: the earliest, then the first in the file
        first.setdefault(row[:2], (row[3], row))
    expected = sorted((row[0], row[1], row[2], float(row[3])) for _, row in first.values())
    assert sorted(by_name(named)) == expected
    assert named.skipped.total == len(written) - len(expected)
    log = named.log
    assert (np.lexsort((log.times_N, log.users_N)) == np.arange(len(log))).all()  # chronological, user by user
    assert list(log.texts) == [f"{titles[str(name)]}; C" for name in named.item_ids]
    assert sorted(map(str, named.item_ids)) == sorted(titles)


def test_reviews_of_one_second_come_in_random_order_and_items_are_renumbered_with_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [old(("U", f"B{i:02}", 5.0, 7)) for i in range(30)])
    one, again, other = (amazon_reviews.read(path, core=1, seed=seed) for seed in (1, 1, 2))
    assert by_name(one) == by_name(again) and one.item_ids == again.item_ids
    assert one.item_ids != other.item_ids and by_name(one) != by_name(other)
    assert list(one.item_ids) != sorted(map(str, one.item_ids))
    assert [item for _, item, _, _ in by_name(one)] != sorted(map(str, one.item_ids))


def test_the_core_is_taken_to_its_fixed_point_and_what_falls_out_is_counted(tmp_path: Path) -> None:
    # Round 1 takes W with one review out, which leaves item C with one; round 2 takes C, and with it a review of V.
    rows = [*SQUARE, ("V", "C", 1.0, 9), ("W", "C", 1.0, 10)]
    named = amazon_reviews.read(write(tmp_path / "r.json", [old(row) for row in rows]), core=2)
    assert sorted(by_name(named)) == sorted((u, i, s, float(t)) for u, i, s, t in SQUARE)
    reason = "the user or the item has fewer than 2 reviews (the 2-core, after 2 rounds)"
    assert named.skipped.counts == {reason: 2} and named.skipped.first == {reason: f"{tmp_path / 'r.json'} line 5"}
    assert named.notes == (
        "4 of 6 reviews, 2 of 3 users and 2 of 3 items are in the 2-core",
        f"skipped 2 rows: {reason} (first: {tmp_path / 'r.json'} line 5)",
    )
    assert len(amazon_reviews.read(tmp_path / "r.json", core=1).log) == 6
    assert named.log.texts == ("item 0", "item 1") and named.log.labels == ()


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60), st.integers(1, 4))
def test_the_core_is_the_one_that_taking_out_one_by_one_leaves(pairs: set[tuple[int, int]], core: int) -> None:
    left = sorted(pairs)
    while True:
        users, items = [u for u, _ in left], [i for _, i in left]
        poor = [pair for pair in left if users.count(pair[0]) < core or items.count(pair[1]) < core]
        if not poor:
            break
        left.remove(poor[-1])
    given_ = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    kept, _ = k_core(given_[:, 0], given_[:, 1], core=core)
    assert [tuple(pair) for pair in given_[kept].tolist()] == left


def test_the_first_of_repeated_reviews_is_kept_and_the_others_are_counted(tmp_path: Path) -> None:
    rows = [("U", "A", 1.0, 50), ("U", "A", 2.0, 40), ("U", "A", 3.0, 40), ("U", "B", 5.0, 1)]
    named = amazon_reviews.read(write(tmp_path / "r.json", [old(row) for row in rows]), core=1)
    assert by_name(named) == [("U", "B", 5.0, 1.0), ("U", "A", 2.0, 40.0)]
    assert named.skipped.counts == {REPEATED: 2} and named.skipped.first[REPEATED].endswith("r.json line 1")


def test_missing_repeated_and_unformatted_metadata_are_counted_and_the_text_says_so(tmp_path: Path) -> None:
    script = "var aPageStart = (new Date()).getTime();"
    entries = [meta_2018("A", "first", [], ""), meta_2018("A", "second", [], ""), meta_2018("C", script, [], "")]
    rows = [("U", item, 5.0, place) for place, item in enumerate("ABC")]
    named = amazon_reviews.read(
        write(tmp_path / "r.json", [old(row) for row in rows]), write(tmp_path / "m.json", entries), core=1
    )
    texts = dict(zip(named.item_ids, named.log.texts, strict=True))
    assert texts == {"A": "first", "B": NO_METADATA, "C": "an item without a title"}
    assert named.log.labels == ()  # nothing is known of any
    assert named.skipped.counts == {IN_METADATA + TWICE: 1}
    assert "1 items have no entry in m.json" in named.notes


def test_a_main_category_stands_in_where_there_is_no_path(tmp_path: Path) -> None:
    entry = json.dumps({"parent_asin": "A", "title": "T", "categories": [], "main_category": "All Beauty"})
    rows = write(tmp_path / "r.json", [new(("U", "A", 5.0, 1))])
    named = amazon_reviews.read(rows, write(tmp_path / "m.json", [entry]), core=1)
    assert named.log.texts == ("T; All Beauty",) and named.log.labels == (("All Beauty",),)


GOOD = old(("U", "A", 5.0, 1))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "neither a JSON object nor a Python dictionary"),
        ("[1]", "neither a JSON object"),
        (GOOD[:-5], "neither a JSON object"),
        ("{'asin': __import__('os').getcwd()}", "neither a JSON object"),  # a literal, and never code
        ("{'a': " + "[" * 3000, "neither a JSON object"),
        ("[" * 100_000, "neither a JSON object"),
        ("{'a': " + "-" * 100_000 + "1}", "neither a JSON object"),
        ("{'a': 1" + " + 1" * 50_000 + "}", "neither a JSON object"),
        (GOOD.replace("reviewerID", "reviewer"), "it has no reviewerID"),
        (GOOD.replace('"A"', "12"), "asin is no text"),
        (GOOD.replace('"A"', '" "'), "asin is no text"),
        (GOOD.replace("5.0", '"5.0"'), "overall is no number"),
        (GOOD.replace("5.0", "NaN"), "overall is no number"),
        (GOOD.replace("5.0", "true"), "overall is no number"),
        (GOOD.replace("5.0", "50"), "overall is no number from 0 to 5"),
        (GOOD.replace('Time": 1', 'Time": 1e999'), "unixReviewTime is no number"),
        (GOOD.replace('Time": 1', 'Time": 1' + "0" * 400), "unixReviewTime is no number"),
        (GOOD.replace('Time": 1', 'Time": null'), "unixReviewTime is no number"),
        (new(("U", "A", 5.0, 1)), "it has no reviewerID"),  # a form that changes within a file
        (old(("\ud83d", "A", 5.0, 1)), "reviewerID holds half a surrogate pair"),
        (old(("U", "A\udc00", 5.0, 1)), "asin holds half a surrogate pair"),
        (repr(json.loads(old(("\ud83d", "A", 5.0, 1)))), "reviewerID holds half a surrogate pair"),
    ],
)
def test_a_line_that_is_no_review_is_refused_with_file_and_line_or_counted(
    line: str, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "r.json", [GOOD, line, old(("V", "A", 5.0, 1))])
    with says(f"r.json line 2 reads .*{reason}.*correct or remove") as caught:
        amazon_reviews.read(path, core=1)
    assert "\n" not in str(caught.value)
    named = amazon_reviews.read(path, core=1, skipped=Skipped())
    assert len(named.log) == 2 and named.skipped.total == 1
    assert any(reason in note for note in named.notes)


def test_a_first_line_of_no_form_does_not_decide_the_form_of_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", ["{}", new(("U", "A", 5.0, 1)), new(("U", "B", 5.0, 1))])
    named = amazon_reviews.read(path, core=1, skipped=Skipped())
    assert len(named.log) == 2 and named.skipped.counts == {"it has no reviewerID": 1}


@pytest.mark.parametrize(
    "line",
    [
        '{"title": "no id"}',
        "{'asin': 'A', 'title': ",
        '{"asin": "A", "category": {"Beauty": 1}}',
        '{"asin": "A", "title": "half a \\ud83d"}',
        '{"asin": "A", "category": ["\\udfff"]}',
        '{"asin": "A", "brand": "\\ud800 and more"}',
    ],
)
def test_metadata_that_are_no_entry_are_refused_with_file_and_line_or_counted(line: str, tmp_path: Path) -> None:
    rows, meta = write(tmp_path / "r.json", [GOOD]), write(tmp_path / "m.json", [line])
    with says("m.json line 1 reads"):
        amazon_reviews.read(rows, meta, core=1)
    named = amazon_reviews.read(rows, meta, core=1, skipped=Skipped())
    assert named.log.texts == (NO_METADATA,) and named.skipped.total == 1


@given(
    st.lists(st.sampled_from([GOOD, "no review", "[1]", '{"asin": 1}', old(("V", "B", 1.0, 2))]), max_size=9),
    st.lists(st.sampled_from(["no entry", "[1]", '{"asin": "A"}', '{"asin": 1}', '{"asin": "Z"}']), max_size=9),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_reviews_of_the_log_and_those_left_out_are_all_lines_of_the_file_whatever_the_metadata_are(
    tmp_path: Path, reviews: list[str], entries: list[str]
) -> None:
    skipped = Skipped()
    rows, meta = write(tmp_path / "r.json", [GOOD, *reviews]), write(tmp_path / "m.json", entries)
    named = amazon_reviews.read(rows, meta, core=1, skipped=skipped)
    of_reviews = {reason: n for reason, n in skipped.counts.items() if not reason.startswith(IN_METADATA)}
    assert len(named.log) + sum(of_reviews.values()) == 1 + len(reviews)
    bad = sum(entry in ("no entry", "[1]", '{"asin": 1}') for entry in entries)
    twice = max(entries.count('{"asin": "A"}') - 1, 0)
    assert skipped.total - sum(of_reviews.values()) == bad + twice
    for reason, place in skipped.first.items():
        assert place.startswith(str(meta if reason.startswith(IN_METADATA) else rows))


def test_half_a_surrogate_pair_in_what_is_not_read_does_no_harm(tmp_path: Path) -> None:
    line = GOOD.replace("fine", "\\ud83d") + "\n" + old(("\U0001f600", "A", 5.0, 1))
    named = amazon_reviews.read(write(tmp_path / "r.json", [line]), core=1)
    assert named.user_ids == ("U", "\U0001f600")


def test_a_torn_or_wrongly_encoded_file_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json.gz", [old(("U", f"A{i}", 5.0, 1)) for i in range(2000)])
    path.write_bytes(path.read_bytes()[:-40])
    with says(r"r\.json\.gz line \d+: .*gzip"):
        amazon_reviews.read(path, core=1)
    with says("line 1: the last line has no line end"):
        amazon_reviews.read(_raw(tmp_path, GOOD.encode()), core=1)
    with says("line 2: byte 0xe9 is not UTF-8"):
        amazon_reviews.read(_raw(tmp_path, GOOD.encode() + b"\n{\xe9}\n"), core=1)
    with says("cannot be read"):
        amazon_reviews.read(tmp_path / "nowhere.json.gz")


def _raw(folder: Path, data: bytes) -> Path:
    (folder / "raw.json").write_bytes(data)
    return folder / "raw.json"


def test_a_core_that_leaves_nothing_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [old(row) for row in SQUARE])
    with says("has 4 reviews but none whose user and item have 5 each; give a lower core"):
        amazon_reviews.read(path)
    with says("has 0 reviews"):
        amazon_reviews.read(write(tmp_path / "empty.json", []), core=1)
    with pytest.raises(InputError, match="core is 0"):
        amazon_reviews.read(path, core=0)
