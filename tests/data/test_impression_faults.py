"""Damaged logs of impressions: file, line and remedy, or a count of what was left out; never a row lost in silence."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the data extra")
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.data.readers import delimited, impression_requests
from rerank_env.data.readers.impression_log import ImpressionLog, read_log
from rerank_env.rewards.errors import DataError

HEADER = "request_id,user_id,item_id,position,click,propensity"
ROWS = [f"r{request},u{request % 3},i{place},{place},0,{1 / place}" for request in range(6) for place in (1, 2, 3)]
"""Six requests of three rows; row n of them is in line n + 2."""


def opened(folder: Path, rows: list[str] | bytes, *, packed: bool = False, **options: Any) -> ImpressionLog:
    data = rows if isinstance(rows, bytes) else "".join(f"{row}\n" for row in (HEADER, *rows)).encode()
    path = folder / "log.csv"
    path.write_bytes(gzip.compress(data) if packed else data)
    return read_log(path, propensity="examination", **options)


def kept(log: ImpressionLog) -> list[str]:
    """The requests that are left, each checked to be whole and what it was."""
    found = log.read()
    items = found.item_ids_I[found.items_N].tolist()
    users = found.user_ids_B[found.requests_N].tolist()
    ids = found.request_ids_B[found.requests_N].tolist()
    rows = zip(ids, users, items, found.positions_N.tolist(), found.propensities_N.tolist(), strict=True)
    known = {tuple(row.split(",")[:3]) for row in ROWS}
    for request, user, item, position, propensity in rows:
        assert (request, user, item) in known and item == f"i{position}" and propensity == 1 / position
    assert (found.sizes_B == 3).all()
    return [str(request) for request in found.request_ids_B]


def changed(row: int, text: str) -> list[str]:
    return [*ROWS[:row], text, *ROWS[row + 1 :]]


VALUES = {
    "a word for a number": ("r1,u1,i2,abc,0,0.5", "position is not a whole number from 1 but 'abc'"),
    "position 0": ("r1,u1,i2,0,0,0.5", "position is not a whole number from 1 but '0'"),
    "half a position": ("r1,u1,i2,1.5,0,0.5", "position is not a whole number from 1 but '1.5'"),
    "no position": ("r1,u1,i2,,0,0.5", "position is not a whole number from 1 but ''"),
    "another click": ("r1,u1,i2,2,2,0.5", "click is not 0 or 1 but '2'"),
    "a click in words": ("r1,u1,i2,2,yes,0.5", "click is not 0 or 1 but 'yes'"),
    "propensity 0": ("r1,u1,i2,2,0,0", "propensity is not a probability above 0 and at most 1 but '0'"),
    "propensity above 1": ("r1,u1,i2,2,0,1.01", "propensity is not a probability"),
    "propensity below 0": ("r1,u1,i2,2,0,-0.5", "propensity is not a probability"),
    "no propensity": ("r1,u1,i2,2,0,", "propensity is not a probability"),
    "propensity NaN": ("r1,u1,i2,2,0,NaN", "propensity is not a probability above 0 and at most 1 but 'NaN'"),
    "propensity infinite": ("r1,u1,i2,2,0,inf", "propensity is not a probability"),
    "underscores": ("r1,u1,i2,2,0,0_5", "propensity is not a probability"),
    "other digits": ("r1,u1,i2,٢,0,0.5", "position is not a whole number"),
    "no user": ("r1,,i2,2,0,0.5", "user_id is missing or is not UTF-8 text or a whole number but ''"),
    "no item": ("r1,u1,,2,0,0.5", "item_id is missing"),
    "another user": ("r1,u2,i2,2,0,0.5", "request 'r1': the request's rows name more than one user"),
    "a position twice": ("r1,u1,i2,1,0,0.5", "request 'r1': another row of the request has the same position"),
    "an item twice": ("r1,u1,i1,2,0,0.5", "request 'r1': another row of the request shows the same item"),
}


@pytest.mark.parametrize("fault", VALUES)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_a_wrong_value_is_refused_with_its_line_or_its_request_left_out(
    tmp_path: Path, fault: str, block_bytes: int
) -> None:
    text, says = VALUES[fault]
    rows = changed(4, text)
    with pytest.raises(DataError) as caught:
        kept(opened(tmp_path, rows, block_bytes=block_bytes))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'log.csv'} line 6: {says}") and "\n" not in message
    assert 'pass on_fault="skip"' in message
    log = opened(tmp_path, rows, block_bytes=block_bytes, on_fault="skip")
    assert kept(log) == ["r0", "r2", "r3", "r4", "r5"]
    skipped = log.survey.skipped
    reason = says.split(": ")[-1].split(" but ")[0]
    assert skipped.counts.pop("in a request with a fault") == 2 and skipped.total == 3
    (found,) = set(skipped.counts) - {"in a request with a fault"}
    assert found.startswith(reason) and skipped.first[found] == f"{tmp_path / 'log.csv'} line 6"
    assert log.survey.rows == 18 and log.survey.kept == 15
    for requests in log.requests(relevance="none"):
        assert requests.notes == skipped.notes() and len(requests.notes) == 2


LINES = {
    "too few fields": (b"r1,u1,i2,2,0", "the row has not as many fields as the header.*\\(5 fields, not 6"),
    "too many fields": (b"r1,u1,i2,2,0,0.5,7", "the row has not as many fields.*\\(7 fields, not 6"),
    "latin-1": ("r1,u1,ü,2,0,0.5".encode("latin-1"), "byte 0xfc is not UTF-8; convert the file"),
    "latin-1 in quotes": ('r1,u1,"ü",2,0,0.5'.encode("latin-1"), "byte 0xfc is not UTF-8"),
    "NUL": (b"r1,u1,i2,2,0,0.5\0\0\0", "a NUL byte"),
    "a lone quote": (b'r1,u1,"i2,2,0,0.5', "a quoted field has no end"),
    "text after a quote": (b'r1,u1,"i"2,2,0,0.5', "something follows the end of a quoted field"),
    "a lone carriage return": (b"r1,u1,i2\r,2,0,0.5", "a carriage return without a line feed"),
    "a carriage return beside quotes": (b'r1,"u1",i2\r,2,0,0.5', "a carriage return without a line feed"),
    "no request": (b",u1,i2,2,0,0.5", "request_id is missing"),
}


@pytest.mark.parametrize("fault", LINES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_cannot_be_read_is_named_or_left_out_with_its_request(
    tmp_path: Path, fault: str, packed: bool
) -> None:
    line, says = LINES[fault]
    before, after = ("".join(f"{row}\n" for row in rows).encode() for rows in ([HEADER, *ROWS[:4]], ROWS[5:]))
    data = before + line + b"\n" + after
    for block_bytes in (1, 40, 1 << 20):
        with pytest.raises(DataError, match=f"log.csv line 6: {says}"):
            kept(opened(tmp_path, data, packed=packed, block_bytes=block_bytes))
        log = opened(tmp_path, data, packed=packed, block_bytes=block_bytes, on_fault="skip")
        assert kept(log) == ["r0", "r2", "r3", "r4", "r5"]
        assert log.survey.rows == 18 and log.survey.skipped.total == 3
        assert f"{tmp_path / 'log.csv'} line 6" in log.survey.skipped.first.values()


def test_a_broken_line_between_two_requests_takes_both_because_it_may_belong_to_either(tmp_path: Path) -> None:
    log = opened(tmp_path, [*ROWS[:6], "r1,u1", *ROWS[6:]], on_fault="skip")
    assert kept(log) == ["r0", "r3", "r4", "r5"]
    assert log.survey.skipped.counts == {
        delimited.RAGGED: 1,
        "in a request with a fault": 4,
        "beside a row that could not be read, which may belong to the same request": 2,
    }


@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_last_line_is_named_or_left_out_with_its_request(tmp_path: Path, packed: bool) -> None:
    data = "".join(f"{row}\n" for row in (HEADER, *ROWS)).encode()
    for lost in (1, 5, 12):
        with pytest.raises(DataError, match="log.csv line 19: the last line has no line end, so it may be torn"):
            kept(opened(tmp_path, data[:-lost], packed=packed))
        log = opened(tmp_path, data[:-lost], packed=packed, on_fault="skip")
        assert kept(log) == ["r0", "r1", "r2", "r3", "r4"]
        assert log.survey.rows == 18 and log.survey.skipped.total == 3


def test_a_gzip_stream_that_ends_early_is_named_or_read_up_to_there(tmp_path: Path) -> None:
    rows = [f"r{n // 3},u,i{n * 7919 % 10007},{n % 3 + 1},0,1" for n in range(3_000)]
    opened(tmp_path, rows, packed=True)
    path = tmp_path / "log.csv"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"log.csv line \d+: the file ends inside its gzip stream.*; write it again"):
        read_log(path, propensity="examination").read()
    log = read_log(path, propensity="examination", on_fault="skip")
    found = log.read()
    assert len(found) > 300 and found.request_ids_B.tolist() == [f"r{n}" for n in range(len(found))]
    assert (found.sizes_B == 3).all() and 2 <= log.survey.skipped.total <= 4
    assert any("ends inside its gzip stream" in note for note in next(log.requests(relevance="none")).notes)


def test_a_request_that_comes_back_is_named_or_left_out_altogether(tmp_path: Path) -> None:
    rows = [*ROWS[:6], *ROWS[7:9], *ROWS[9:], ROWS[6]]  # the first row of r2 stands at the end
    for block_bytes in (1, 60, 1 << 20):
        with pytest.raises(DataError, match="line 19: request 'r2': the request comes back after others; sort"):
            kept(opened(tmp_path, rows, block_bytes=block_bytes))
        log = opened(tmp_path, rows, block_bytes=block_bytes, on_fault="skip")
        assert kept(log) == ["r0", "r1", "r3", "r4", "r5"]
        assert log.survey.rows == 18 and log.survey.kept == 15 and log.survey.requests == 5


@settings(max_examples=20)
@given(order=st.lists(st.integers(0, 40), min_size=1, max_size=60), block_bytes=st.integers(1, 300))
def test_a_request_is_kept_where_its_rows_stand_at_one_place_only(order: list[int], block_bytes: int) -> None:
    order = [number for place, number in enumerate(order) if number not in order[max(place - 1, 0) : place]]
    order.append(41)
    once = [f"q{number}" for number in order if order.count(number) == 1]
    rows = [f"q{number},u,i{place},{place},0,1" for number in order for place in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        log = opened(Path(folder), rows, on_fault="skip", block_bytes=block_bytes)
        assert log.read().request_ids_B.tolist() == once
        assert log.survey.requests == len(once) and log.survey.rows == len(rows)
        assert log.survey.skipped.total == len(rows) - 2 * len(once)


def test_one_candidate_is_named_or_left_out(tmp_path: Path) -> None:
    rows = [*ROWS[:4], *ROWS[6:]]
    with pytest.raises(DataError, match="line 5: request 'r1': the request has one candidate"):
        kept(opened(tmp_path, rows))
    log = opened(tmp_path, rows, on_fault="skip")
    assert kept(log) == ["r0", "r2", "r3", "r4", "r5"] and log.survey.skipped.total == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1: the file is empty; give a table that starts with the names"),
        (b"\n" + ROWS[0].encode() + b"\n", "line 1 is empty"),
        (HEADER.encode() + b"\n", "has no request to read: there are no rows below the header"),
        (HEADER.encode(), "has no request to read: there are no rows below the header"),
        (ROWS[0].encode() + b"\n", "line 1: column 'click' is missing; .*say which of"),
        (b"request_id,click,click\n", "line 1: column 'click' is there 2 times"),
        (f"{HEADER},\xfc\n".encode("latin-1"), "line 1: byte 0xfc is not UTF-8"),
        (f"{HEADER}\n{ROWS[0]}\n".encode("utf-16"), "is UTF-16 text; convert it with: iconv -f UTF-16 -t UTF-8"),
        (f'"{HEADER}\n'.encode(), "line 1: the header cannot be read"),
    ],
)
def test_a_file_without_a_usable_header_or_rows_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        kept(opened(tmp_path, data))
    assert "log.csv" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(DataError, match="log.csv"):
        kept(opened(tmp_path, data, on_fault="skip"))


def test_nothing_left_after_skipping_says_what_was_skipped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no request to read: .*skipped 1 row: click is not 0 or 1 .*line 3"):
        kept(opened(tmp_path, ["r1,u,a,1,0,1", "r1,u,b,2,7,1"], on_fault="skip"))


def test_a_wrong_column_of_requests_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impression_requests, "MOST_ROWS", 10)
    rows = [f"all,u,{n},{n},0,1" for n in range(1, 30)]
    with pytest.raises(DataError, match="request 'all' has more than 10 rows; name the column that tells requests"):
        kept(opened(tmp_path, rows, block_bytes=50))


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(tmp_path: Path) -> None:
    many = [f"q{n // 2},u,i{n},{n % 2 + 1},0,1" for n in range(4_000)]
    many[10] = 'q5,u,"i10,1,0,1'
    log = opened(tmp_path, many, on_fault="skip", block_bytes=1_000)
    assert log.survey.requests == 1_998 and log.survey.skipped.counts[delimited.QUOTE] == 1


UNREADABLE = (b'"', b'"""', b"r1", b"r1,u1,i2", b"\0", b"\xff\xfe", b",,,,,", b'r0,u0,"i,1,0,1', b"a,b,c,d,e,f,g")
"""Lines that may stand in the place of a row, which is then missing from its request in silence but for them."""

WRONG = (b"r0,u0,i1,1,0,1", b"r4,u2,i9,9,1,0.5", b'"r2","u9","i\n7",7,0,1', b"r3,u0,i1,x,0,1", b"r4,u1,i1,1,0,2")
"""Lines that can be read but do not go with their request wherever they stand."""

EMPTY = (b"", b"\r")


@settings(max_examples=30)
@given(
    damage=st.dictionaries(
        st.integers(0, len(ROWS) - 7), st.sampled_from([*UNREADABLE, *WRONG, *EMPTY]), min_size=1, max_size=4
    ),
    replacing=st.booleans(),
    packed=st.booleans(),
    block_bytes=st.integers(1, 400),
)
def test_whatever_the_damage_every_row_is_kept_or_counted_and_no_request_is_kept_in_part(
    damage: dict[int, bytes], replacing: bool, packed: bool, block_bytes: int
) -> None:
    if replacing:
        damage = {number: line for number, line in damage.items() if line not in WRONG}
    lines = [HEADER.encode()]
    spoiled = set()
    for number, row in enumerate(ROWS):
        if number in damage:
            lines.append(damage[number])
            spoiled |= {f"r{near // 3}" for near in (number - 1, number, number + 1)}  # what it may belong to
            spoiled.add(damage[number].decode("latin-1").split(",")[0].strip('"'))
        if not (replacing and damage.get(number) in UNREADABLE):
            lines.append(row.encode())
    data = b"".join(line + b"\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        log = opened(Path(folder), data, packed=packed, on_fault="skip", block_bytes=block_bytes)
        rows = sum(bool(line.strip(b"\r")) for line in data.split(b"\n")[1:-1])
        survey = log.survey
        assert survey.kept + survey.skipped.total == survey.rows
        in_two_lines = sum(b"\n" in line for line in damage.values())
        assert rows - in_two_lines <= survey.rows <= rows
        left = kept(log)
        assert len(left) == survey.requests and set(left) >= {f"r{n}" for n in range(6)} - spoiled
        whole = opened(Path(folder), data, packed=packed, on_fault="skip").survey
        assert (whole.rows, whole.kept, whole.items) == (survey.rows, survey.kept, survey.items)
        assert whole.skipped.notes() == survey.skipped.notes()  # in order, with the first place of each reason
