"""Text as it comes: lines with their numbers, every fault with its place, every skip counted."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data.readers import faults
from rerank_env.data.readers.faults import Skipped, chunks, lines
from rerank_env.rewards.errors import DataError


def written(folder: Path, data: bytes, *, packed: bool = False, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])), max_size=8),
    packed=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    marked=st.booleans(),
)
def test_lines_are_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], packed: bool, end: str, marked: bool
) -> None:
    mark = "\ufeff" if marked else ""
    texts = [text.lstrip("\ufeff") for text in texts]
    data = (mark + "".join(text + end for text in texts)).encode()
    path = written(tmp_path_factory.mktemp("lines"), data, packed=packed)
    assert list(lines(path)) == list(enumerate(texts, start=1))


def test_lines_do_not_depend_on_where_the_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "one\r\ntwö\n\nfour\n".encode() * 3
    path = written(tmp_path, data, packed=True)
    expected = list(lines(path))
    for size in (1, 2, 3, 7):
        assert b"".join(chunks(path, size=size)) == data
        monkeypatch.setattr(faults.chunks, "__kwdefaults__", {"size": size, "at": None})
        assert list(lines(path)) == expected


def test_a_gzip_file_of_several_members_with_padding_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n") + b"\0" * 512)
    assert list(lines(path)) == [(1, "a"), (2, "bc")]


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"a\nb\nc", 3, "no line end, so it may be torn"),
        (b"a\nf\xfcr\nc\n", 2, "byte 0xfc is not UTF-8"),
        (b"a\n\xe2\x82\nc\n", 2, "byte 0xe2 is not UTF-8"),
        (b"a\n\0\0\0\nc\n", 2, "NUL"),
    ],
)
def test_a_line_with_a_fault_is_refused_or_counted_and_its_neighbours_kept(
    tmp_path: Path, data: bytes, line: int, says: str
) -> None:
    for packed in (False, True):
        path = written(tmp_path, data, packed=packed)
        read = []
        with pytest.raises(DataError, match=f"log.txt line {line}: .*{says}") as caught:
            read.extend(lines(path))
        assert "\n" not in str(caught.value)
        skipped = Skipped()
        kept = list(lines(path, skipped=skipped))
        assert [number for number, _ in kept] == [number for number in (1, 2, 3) if number != line]
        assert skipped.total == 1 and f"(first: {path} line {line})" in skipped.notes()[0]


@pytest.mark.parametrize("lost", [1, 8, 9, 20])
def test_a_gzip_file_that_was_cut_gives_all_whole_lines_and_says_where_it_ends(tmp_path: Path, lost: int) -> None:
    texts = [f"{number} {number * number}" for number in range(1, 50)]
    path = written(tmp_path, "".join(f"{text}\n" for text in texts).encode(), packed=True)
    path.write_bytes(path.read_bytes()[:-lost])
    read = []
    with pytest.raises(DataError, match="ends inside its gzip stream") as caught:
        for number, text in lines(path):
            read.append(text)
            assert text == texts[number - 1]
    assert f"line {len(read) + 1}:" in str(caught.value)
    assert len(read) >= 30  # eight bytes of trailer and a little of the stream are missing
    skipped = Skipped()
    assert [text for _, text in lines(path, skipped=skipped)] == read
    assert skipped.total == 1


def test_a_gzip_file_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"a\nb\n"))
    packed[-6] ^= 1
    path = tmp_path / "log.gz"
    path.write_bytes(packed)
    with pytest.raises(DataError, match="cannot be unpacked from here on"):
        list(lines(path))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("a\nb\n".encode("utf-16"), "UTF-16 text; convert it with: iconv"),
        (b"\xfe\xff\0a\0\n", "UTF-16"),
        (b"PK\x03\x04....", "zip archive"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"\xfd7zXZ\x00....", "xz"),
        (b"BZh9....", "bzip2"),
        (b"PAR1....", "Parquet"),
    ],
)
def test_a_file_that_is_no_text_is_named_with_what_to_do(tmp_path: Path, data: bytes, says: str) -> None:
    path = written(tmp_path, data)
    for skipped in (None, Skipped()):
        with pytest.raises(DataError, match=says) as caught:
            list(lines(path, skipped=skipped))
        assert str(path) in str(caught.value)


def test_utf_16_inside_gzip_is_found_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="UTF-16"):
        list(lines(written(tmp_path, "a\n".encode("utf-16"), packed=True)))


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert list(lines(written(tmp_path, b""))) == []
    assert list(lines(written(tmp_path, b"", packed=True))) == []


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(DataError, match="cannot be read") as caught:
            list(lines(path))
        assert str(path) in str(caught.value)


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "LONGEST_LINE", 100)
    path = written(tmp_path, b"short\n" + b"x" * 1_000)
    with pytest.raises(DataError, match="line 2 is longer than 100 bytes"):
        list(lines(path))


def test_the_bytes_read_so_far_are_told_and_end_at_the_size(tmp_path: Path) -> None:
    path = written(tmp_path, os.urandom(5_000).hex().encode(), packed=True)
    told: list[int] = []
    list(chunks(path, size=512, at=told.append))
    assert told == sorted(told) and told[-1] == path.stat().st_size


def test_skips_are_counted_by_reason_with_the_first_place() -> None:
    skipped = Skipped()
    assert skipped.total == 0 and skipped.notes() == ()
    skipped.add("torn", "a.csv", 4)
    skipped.add("late", "b.parquet", 7, rows=1_200, unit="row")
    skipped.add("torn", "a.csv", 9)
    assert skipped.total == 1_202 and skipped.counts == {"torn": 2, "late": 1_200}
    assert skipped.first == {"torn": "a.csv line 4", "late": "b.parquet row 7"}
    assert skipped.notes() == (
        "skipped 2 rows: torn (first: a.csv line 4)",
        "skipped 1,200 rows: late (first: b.parquet row 7)",
    )


@given(st.permutations([("b", 2), ("b", 10), ("a", 30), ("a", 4), ("c", 1)]))
def test_reasons_stand_in_the_order_of_their_first_places_however_they_were_met(places: list[tuple[str, int]]) -> None:
    skipped, whole = Skipped(), Skipped()
    for path, line in places:
        skipped.add("even" if line % 10 else "odd", path, line)
    whole.include(skipped, "in: ")
    assert list(skipped.first.items()) == [("even", "a line 4"), ("odd", "a line 30")]
    assert list(whole.counts.items()) == [("in: even", 3), ("in: odd", 2)] and whole.total == 5
