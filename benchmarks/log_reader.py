"""A log of 20 million impressions read in bounded memory, all rows accounted for, beside plain scans of the same files.

    python benchmarks/log_reader.py                          # writes docs/results/log-reader.json
    python benchmarks/log_reader.py --rows 100000 --dry-run  # a small run, prints only

A log is made in a temporary folder, once as gzipped CSV and once as Parquet in row groups of 200,000: ten candidates a
request, ids of text, and a known number of faults planted in it (values that are wrong, an item shown twice, requests
that come back, and in the CSV rows of too many fields and a torn end). Each reader has a process of its own, so that
peak memory is its own. They read the same seven columns:

- ours: `read_log(..., on_fault="skip")`, both readings, and all `Requests` made.
- scan: pyarrow in batches, types inferred, nothing checked and nothing made of the columns.
- pandas: `read_csv` in chunks of 100,000, where pandas is installed; it does not read Parquet in chunks.

The rivals do much less, so their ratios say what checking and building cost. Rates are by processor time of all
threads. Rows are accounted for where rows kept and rows skipped by ours add up to the rows written, and every planted
fault is counted under its reason, no more and no less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from record import finish, options_of, spread

from rerank_env.data.readers.delimited import RAGGED
from rerank_env.data.readers.faults import TORN
from rerank_env.data.readers.impression_columns import BESIDE, LATE, REASONS, REST, SAME_ITEM
from rerank_env.data.readers.impression_log import read_log

GOAL_MIB = 2_048.0
SEED = 0
SIZE = 10
ITEMS = 200_000
BLOCK = 20_000
"""Requests made at a time."""

PLANTED = 7
"""How often each fault is planted, but for the torn end, which is one."""

COLUMNS = ("request_id", "user_id", "item_id", "position", "click", "propensity", "score")
WRONG = "propensity is not a probability above 0 and at most 1"
READERS = ("ours", "scan", "pandas")

Counts = dict[str, int]


def log(requests: int) -> Iterator[pa.Table]:
    """Requests without a fault: users of some five requests each, skewed items, clicks that fall with the place."""
    rng = np.random.default_rng(SEED)
    items = pa.array([f"B{number:07d}" for number in range(ITEMS)])
    propensity_K = 1 / np.arange(1, SIZE + 1)
    for start in range(0, requests, BLOCK):
        count = min(BLOCK, requests - start)
        first_B1 = np.floor(ITEMS * rng.random((count, 1)) ** 2).astype(np.int64)
        items_BK = rng.permuted((first_B1 + 37 * np.arange(SIZE)) % ITEMS, axis=1)
        users = rng.integers(0, max(requests // 5, 1), count).tolist()
        yield rows_of(
            pa.array([f"request-{number:09d}" for number in range(start, start + count)]),
            pa.array([f"user-{user}" for user in users]),
            items.take(pa.array(items_BK.ravel())),
            propensities=np.tile(propensity_K, count),
            rng=rng,
        )


def rows_of(ids: Any, users: Any, items: Any, *, propensities: Any, rng: np.random.Generator) -> pa.Table:
    rows = pa.array(np.repeat(np.arange(len(ids)), SIZE))
    columns = (
        ids.take(rows),
        users.take(rows),
        items,
        np.tile(np.arange(1, SIZE + 1), len(ids)),
        (rng.random(len(rows)) < 0.2 * propensities).astype(np.int8),
        propensities,
        rng.normal(size=len(rows)).round(4),
    )
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def planted(name: str, number: int) -> pa.Table:
    """One request called `name-number`, with the fault of that name."""
    items, propensities = [f"B{item:07d}" for item in range(SIZE)], np.full(SIZE, 0.5)
    if name == "twice":
        items[5] = items[2]
    if name == "wrong":
        propensities[3] = 0.0
    ids, user = pa.array([f"{name}-{number}"]), pa.array(["user-0"])
    return rows_of(ids, user, pa.array(items), propensities=propensities, rng=np.random.default_rng(number))


def write(folder: Path, rows: int) -> dict[str, tuple[int, Counts]]:
    """Both files; for each how many rows it has, and how many of them have to be skipped by reason."""
    plain = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    written = Counter[str]()
    schema = planted("none", 0).schema
    with (
        gzip.open(folder / "log.csv.gz", "wb", compresslevel=1) as text,
        pa.parquet.ParquetWriter(folder / "log.parquet", schema) as packed,
    ):
        text.write(f"{','.join(COLUMNS)}\n".encode())

        def append(table: pa.Table) -> None:
            pa.csv.write_csv(table, text, plain)
            packed.write_table(table)
            written.update({"log.csv.gz": len(table), "log.parquet": len(table)})

        for table in log(rows // SIZE):
            append(table)
            if not written["blocks"]:
                for number in range(PLANTED):
                    for name in ("wrong", "twice", "late"):
                        append(planted(name, number))
            written["blocks"] += 1
        for number in range(PLANTED):
            append(planted("late", number))
            lines = csv_lines(planted("ragged", number), plain)
            lines[4] = lines[4].replace(b"\n", b",one more\n")
            text.writelines(lines)
            written["log.csv.gz"] += SIZE
        append(planted("good", 0))
        text.write(b"".join(csv_lines(planted("torn", 0), plain))[:-9])
        written["log.csv.gz"] += SIZE
    both = {WRONG: PLANTED, REASONS[SAME_ITEM]: PLANTED, REASONS[LATE]: 2 * SIZE * PLANTED}
    both[REASONS[REST]] = 2 * (SIZE - 1) * PLANTED
    broken = Counter(both)
    broken.update({RAGGED: PLANTED, REASONS[BESIDE]: 2 * PLANTED + 1, TORN: 1})
    broken[REASONS[REST]] += (SIZE - 3) * PLANTED + SIZE - 2
    return {"log.csv.gz": (written["log.csv.gz"], dict(broken)), "log.parquet": (written["log.parquet"], both)}


def csv_lines(table: pa.Table, options: Any) -> list[bytes]:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink, options)
    return bytes(sink.getvalue()).splitlines(keepends=True)


def ours(path: Path) -> dict[str, Any]:
    opened = read_log(path, propensity="examination", on_fault="skip")
    rows = clicks = 0
    for requests in opened.requests(relevance="clicks"):
        rows += int(requests.sizes_B.sum())
        clicks += int(requests.relevance_BK.sum())
    return {"rows": rows, "clicks": clicks, "skipped": opened.survey.skipped.counts}


def scan(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        batches = pa.parquet.ParquetFile(path, pre_buffer=False).iter_batches(columns=list(COLUMNS))
    else:
        batches = pa.csv.open_csv(path, parse_options=pa.csv.ParseOptions(invalid_row_handler=lambda _: "skip"))
    return {"rows": sum(batch.num_rows for batch in batches)}


def pandas(path: Path) -> dict[str, Any]:
    chunks = import_module("pandas").read_csv(path, usecols=list(COLUMNS), chunksize=100_000, on_bad_lines="skip")
    return {"rows": sum(map(len, chunks))}


def peak_mib() -> float:
    """The most memory that this process has held in MiB, as Linux counts it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) / 1024
    raise SystemExit("this system does not say how much memory a process has held; run the benchmark on Linux")


def measured(reader: str, path: Path) -> dict[str, Any]:
    """What a reader found, its processor time and its peak memory, from a process of its own."""
    command = [sys.executable, __file__, "--reader", reader, "--path", str(path)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    print(f"{path.name:12s} {reader:7s} {found['rows']:>12,} rows, {found['rows'] / found['seconds']:>10,.0f} a second,"
          f" peak {found['peak_mib']:,.0f} MiB", flush=True)  # fmt: skip
    return found


def report(path: Path, written: int, expected: Counts, found: dict[str, dict[str, Any]]) -> tuple[list[Any], bool]:
    """The rows of the result for one file, and whether the goal is met on it."""
    rows = []
    rates = {reader: result["rows"] / result["seconds"] for reader, result in found.items()}
    for reader, result in found.items():
        numbers = {"rows": result["rows"], "rows_per_second": rates[reader], "peak_mib": result["peak_mib"]}
        if reader == "ours":
            skipped = sum(result["skipped"].values())
            numbers |= {"rows_written": written, "rows_skipped": skipped, "clicks": result["clicks"]}
            numbers["rows_unaccounted"] = abs(written - result["rows"] - skipped)
            numbers |= {f"ratio_to_{rival}": rates["ours"] / rates[rival] for rival in rates if rival != "ours"}
        rows.append({"name": f"{path.name}: {reader}", "metrics": {key: spread([v]) for key, v in numbers.items()}})
    counted = found["ours"]["skipped"]
    for reason in sorted({*expected, *counted}):
        numbers = {"planted": expected.get(reason, 0), "skipped": counted.get(reason, 0)}
        rows.append(
            {
                "name": f"{path.name}: {reason.partition(';')[0]}",
                "metrics": {k: spread([v]) for k, v in numbers.items()},
            }
        )
        print(f"{path.name:12s} {numbers['planted']:4d} planted, {numbers['skipped']:4d} skipped: {reason}")
    accounted = found["ours"]["rows"] + sum(counted.values()) == written and counted == expected
    return rows, accounted and found["ours"]["peak_mib"] < GOAL_MIB


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000, help="without the planted ones; ten a request")
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        began = time.process_time()
        found = {"ours": ours, "scan": scan, "pandas": pandas}[options.reader](options.path)
        print(json.dumps(found | {"seconds": time.process_time() - began, "peak_mib": peak_mib()}))
        return

    rows: list[Any] = []
    met = True
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), options.rows)
        for name, (written, expected) in files.items():
            readers = [r for r in READERS if r != "pandas" or (find_spec("pandas") and name != "log.parquet")]
            found = {reader: measured(reader, Path(folder) / name) for reader in readers}
            more, good = report(Path(folder) / name, written, expected, found)
            rows, met = rows + more, met and good
    print("met" if met else "missed")
    finish(
        options,
        "log-reader",
        command="python benchmarks/log_reader.py" + (f" --rows {options.rows}" if options.rows != 20_000_000 else ""),
        data=f"a made log of impressions, {SIZE} candidates a request, {ITEMS:,} items, as gzipped CSV and as Parquet",
        n=options.rows,
        seeds=[SEED],
        rows=rows,
        goal=f"both files read end to end with a peak of less than {GOAL_MIB:,.0f} MiB, every row kept or counted as "
        "skipped, and the planted faults counted exactly; one run, rates by processor time",
        met=met,
    )


if __name__ == "__main__":
    main()
