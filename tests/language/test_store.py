"""Traces on the disk come back as they were written, and are gone on with only by those who began them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from rerank_env.data.catalog import Catalog
from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, PromptWriter, ask
from rerank_env.rewards.errors import CheckpointError, DataError, InputError
from rerank_env.rewards.rankings import Verdict, identity_rankings
from rerank_env.training.fingerprints import requests_hash
from rerank_env.training.language.traces import collect
from rerank_env.training.language.traces.journal import JOURNAL, Journal
from rerank_env.training.language.traces.manifest import MANIFEST, fingerprint
from rerank_env.training.language.traces.proposals import Proposal, read
from rerank_env.training.language.traces.store import SCHEMA, Trace, Traces, parts, write_part

WRITER = PromptWriter("tagged-list")
REQUESTS = Requests.of([[3, 1, 2], [0, 2], [1, 0, 3]], [[0, 1, 0], [1, 0], [0, 0, 2]], history=[[0], [], [2, 2]])


class First:
    """Names the shown places as they stand, or the target first where it is told one."""

    def __init__(self, name: str = "first", fingerprint: str = "") -> None:
        self.name, self.fingerprint, self.asked = name, fingerprint, 0

    def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
        self.asked += len(asked.prompts)
        texts = []
        for row, size in enumerate(asked.shown.sizes_B.tolist()):
            first = 0 if targets_B is None else int(targets_B[row])
            ranking = [first, *(place for place in range(size) if place != first)]
            names = [str(place + 1) if asked.answer_ids is None else asked.answer_ids[row][place] for place in ranking]
            texts.append(f"<think>Because {seeds_B[row]}.</think><answer>[{', '.join(names)}]</answer>")
        return read(asked, texts, [100] * len(texts), [10] * len(texts))


def trace(**changes: Any) -> Trace:
    made = Trace(
        request=4, target=2, incoming=3, order=(2, 0, 1), completion="<answer>[1, 3, 2]</answer>", reasoning="Up.",
        ranking=(0, 2, 1), tail="own", accepted=True, verdict="OK", tries=2, tokens_in=7, tokens_out=5, teacher="t",
        mode="rejection",
    )  # fmt: skip
    return replace(made, **changes)


def write_manifest(folder: Path, **fields: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "rows": 5, "requests": "none", **fields}))


def test_rows_come_back_as_they_were_written_in_the_order_of_the_requests(tmp_path: Path) -> None:
    rows = [
        trace(),
        trace(request=1, accepted=False, completion="", reasoning="", ranking=(), tail="", verdict="MISSING"),
    ]
    write_manifest(tmp_path)
    write_part(tmp_path, rows)
    write_part(tmp_path, [trace(request=0, reasoning='Ünïcode \n " \\ 字', order=(1, 0), ranking=(1, 0))])
    assert [path.name for path in parts(tmp_path)] == ["part-00000.parquet", "part-00001.parquet"]
    traces = Traces.load(tmp_path)
    assert traces.table.schema == SCHEMA
    read = list(traces)
    assert read[1:] == [{**vars(row), "order": [*row.order], "ranking": [*row.ranking]} for row in (rows[1], rows[0])]
    assert read[0]["reasoning"] == 'Ünïcode \n " \\ 字'
    assert traces.requests_T.tolist() == [0, 1, 4]
    assert traces.column("accepted") == [True, False, True]
    assert [row["request"] for row in traces.accepted()] == [0, 4]
    # Shown places 0, 2, 1 of the order 2, 0, 1 are the candidates 2, 1, 0.
    assert traces.rankings_TK().tolist() == [[0, 1, -1], [-1, -1, -1], [2, 1, 0]]
    assert traces.order_TK(4).tolist() == [[1, 0, -1, -1], [2, 0, 1, -1], [2, 0, 1, -1]]
    assert traces.column("tries") == [2, 2, 2]
    with pytest.raises(InputError, match="no column 'rank'; they have request, target"):
        traces.column("rank")


def test_prompts_come_back_as_the_teacher_saw_them_and_completions_answer_them(tmp_path: Path) -> None:
    traces = collect(REQUESTS, First(), WRITER, directory=tmp_path, seed=3)
    assert traces.requests_T.tolist() == [0, 1, 2]
    asked = traces.asked(REQUESTS, WRITER)
    parsed = asked.read(traces.column("completion"))
    assert parsed.rankings_BK.tolist() == traces.rankings_TK(3).tolist()
    assert parsed.reasonings == tuple(traces.column("reasoning"))
    assert parsed.rankings_BK[:, 0].tolist() == [1, 0, 2]  # the targets
    direct = traces.asked(REQUESTS, PromptWriter("list"))
    assert direct.read(direct.answers(traces.rankings_TK(3))).rankings_BK.tolist() == traces.rankings_TK(3).tolist()
    with pytest.raises(InputError, match="traces are of other requests than 'own data'"):
        traces.asked(REQUESTS.take([0, 1]), WRITER)


def test_the_manifest_says_what_traces_were_made_of(tmp_path: Path) -> None:
    found = collect(REQUESTS, First(fingerprint="abc"), WRITER, directory=tmp_path, mode="targeted", seed=5).manifest
    told = {
        key: found[key] for key in ("mode", "teacher", "teacher_fingerprint", "template", "text_format", "seed", "rows")
    }
    assert told == {
        "mode": "targeted", "teacher": "first", "teacher_fingerprint": "abc", "template": "3-index",
        "text_format": "tagged-list", "seed": 5, "rows": 3,
    }  # fmt: skip
    assert found["template_hash"] == WRITER.template.hash
    assert found["requests"] == fingerprint(REQUESTS)
    assert found["versions"]["numpy"] == np.__version__


OTHERS: dict[str, dict[str, Any]] = {
    "teacher": {"teacher": First("second")},
    "teacher_fingerprint": {"teacher": First(fingerprint="other weights")},
    "template": {"writer": PromptWriter("tagged-list", prompt="3-index-steps")},
    "template_hash": {"writer": PromptWriter("tagged-list", prompt=WRITER.template.primed("Soap follows shampoo."))},
    "text_format": {"writer": PromptWriter("tagged-json")},
    "prompts": {"writer": PromptWriter("tagged-list", semantic_ids=["<a_1>", "<a_2>", "<a_3>", "<a_4>"])},
    "requests": {"requests": replace(REQUESTS, relevance_BK=REQUESTS.relevance_BK * 2)},
    "mode": {"mode": "rejection"},
    "seed": {"seed": 1},
    "tries": {"tries": 2},
    "shuffle": {"shuffle": False},
}


@pytest.mark.parametrize("field", OTHERS)
def test_traces_of_another_kind_are_not_gone_on_with_and_stay_as_they_are(field: str, tmp_path: Path) -> None:
    def made(**changes: Any) -> Traces:
        given: dict[str, Any] = {"requests": REQUESTS, "teacher": First(), "writer": WRITER, "directory": tmp_path}
        given |= changes
        return collect(given.pop("requests"), given.pop("teacher"), given.pop("writer"), **given)

    before = made()
    with pytest.raises(InputError, match=rf"^{field} is .* but the traces in \S+ were begun with .*; restore it"):
        made(**OTHERS[field])
    assert Traces.load(tmp_path).table.equals(before.table)
    assert made(batch=1).table.equals(before.table)


def test_a_requests_fingerprint_changes_with_its_arrays_texts_and_remarks() -> None:
    remarks_BK = np.full(REQUESTS.candidates_BK.shape, "", dtype=object)
    remarks_BK[0, 0] = "near 1"
    logged_BK = np.where(np.arange(3) < REQUESTS.sizes_B[:, None], 1.0, 0.0)
    renamed = Catalog.of(["another", *REQUESTS.catalog.texts[1:]])
    others = [
        replace(REQUESTS, remarks_BK=remarks_BK),
        replace(REQUESTS, catalog=renamed),
        replace(REQUESTS, catalog=replace(REQUESTS.catalog, labels=(("Soap",),) * 4)),
        REQUESTS.take([1, 0, 2]),
        replace(REQUESTS, scores_BK=REQUESTS.scores_BK * 2.0),
        replace(REQUESTS, clicks_BK=logged_BK, propensities_BK=logged_BK),
        replace(REQUESTS, clicks_BK=logged_BK, propensities_BK=logged_BK / 2),
        replace(REQUESTS, clicks_BK=logged_BK, propensities_BK=logged_BK, predictions_BK=logged_BK),
        REQUESTS.reordered(identity_rankings(REQUESTS.sizes_B, 3)),
        replace(REQUESTS, origins_B=REQUESTS.origins + 1),
        replace(REQUESTS, catalog=replace(REQUESTS.catalog, popularity_I=REQUESTS.catalog.popularity_I + 1.0)),
    ]
    hashes = {requests_hash(requests) for requests in [REQUESTS, *others]}
    assert len(hashes) == len(others) + 1
    assert len({fingerprint(requests) for requests in [REQUESTS, *others]}) == len(hashes)
    assert requests_hash(replace(REQUESTS, name="another", notes=("read twice",))) == requests_hash(REQUESTS)
    assert fingerprint(REQUESTS.take([0, 1, 2])) == fingerprint(REQUESTS)


def test_a_folder_without_traces_or_with_damaged_ones_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="^there are no traces in"):
        Traces.load(tmp_path)
    collect(REQUESTS, First(), WRITER, directory=tmp_path)
    (path,) = parts(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"part-00000\.parquet cannot be read as a part of traces"):
        Traces.load(tmp_path)
    path.write_bytes(whole)
    path.with_name("part-00001.parquet").write_bytes(whole)
    with pytest.raises(DataError, match=r"request 0 is in \S+ twice; remove one of the parts"):
        Traces.load(tmp_path)
    path.with_name("part-00001.parquet").unlink()
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"has traces but no manifest\.json"):
        collect(REQUESTS, First(), WRITER, directory=tmp_path)
    for text, message in (
        ("{", "cannot be read"),
        ('{"format": 0}', "of another release"),
        ("[]", "of another release"),
    ):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(DataError, match=message):
            Traces.load(tmp_path)


def test_no_requests_leave_a_manifest_and_no_rows(tmp_path: Path) -> None:
    traces = collect(REQUESTS.take([]), First(), WRITER, directory=tmp_path, mode="rejection")
    assert len(traces) == 0
    assert traces.rankings_TK().shape == (0, 1)
    assert traces.statistics().acceptance == 0.0
    assert traces.asked(REQUESTS.take([]), WRITER).prompts == ()


def test_a_journal_is_read_back_up_to_the_line_that_was_cut_off(tmp_path: Path) -> None:
    one = Proposal("<answer>[1, 2]</answer>", (0, 1), Verdict.OK, "Up.", 5, 7)
    two = Proposal("Ünfinished \n", (), Verdict.MALFORMED, "", 5, 9)
    with Journal(tmp_path) as journal:
        journal.add(3, 0, one)
        journal.add(3, 1, two)
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes() + b'[4, 0, {"text": "cut o')
    with Journal(tmp_path) as journal:
        assert journal.known == {(3, 0): one, (3, 1): two}
        journal.add(5, 0, one)
    with Journal(tmp_path) as journal:
        assert journal.known == {(3, 0): one, (3, 1): two, (5, 0): one}
        journal.settle([3, 5])
    assert not path.exists()


def test_a_journal_is_not_read_where_its_lines_are_nothing_it_wrote(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b'nonsense\n[1, 2]\n[1, 0, {"text": "x"}]\n\xff\n')
    with Journal(tmp_path) as journal:
        assert journal.known == {}


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import test_store as here
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.rewards.errors import CheckpointError

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
requests = here.REQUESTS.take([0] * 200)
try:
    here.collect(requests, here.First(), here.WRITER, directory=sys.argv[2], batch=50)
except CheckpointError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_what_was_kept_is_gone_on_with(tmp_path: Path) -> None:
    # 10 kB hold the manifest and some fifty lines of the journal, then the disk is full.
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(Path(__file__).parent), str(tmp_path), "10000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "could not be written (File too large)" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    teacher = First()
    traces = collect(REQUESTS.take([0] * 200), teacher, WRITER, directory=tmp_path, batch=50)
    assert len(traces) == 200
    assert 0 < teacher.asked < 200


def test_two_processes_do_not_collect_into_one_folder(tmp_path: Path) -> None:
    from rerank_env import durable

    with durable.held(tmp_path), pytest.raises(CheckpointError, match="in use by another run"):
        collect(REQUESTS, First(), WRITER, directory=tmp_path)


def test_a_read_answer_keeps_its_pick_where_the_rest_is_no_ranking() -> None:
    requests = Requests.of([list(range(12))], [[1] + [0] * 11])
    asked = ask(requests, WRITER)
    cases = {
        "<think>A [9].</think><answer>[3, 1]</answer>": (2, Verdict.MISSING, "A [9]."),
        "<think>A.</think><answer>[3, 3, 1]</answer>": (2, Verdict.DUPLICATE, "A."),
        "<think>A.</think><answer>[12, 1": (11, Verdict.TRUNCATED, "A."),
        "<think>A.</think><answer>[1": (-1, Verdict.TRUNCATED, "A."),  # 1, or the beginning of 12
        "<think>A.</think><answer>[13, 1]</answer>": (-1, Verdict.UNKNOWN, "A."),
        "<think>[3] it is": (-1, Verdict.TRUNCATED, ""),
        "A.</think>Well: <answer>[4, 1]</answer> Yes.": (3, Verdict.MALFORMED, "A."),
        "[4, 1]": (-1, Verdict.TRUNCATED, ""),  # reasons may begin without their tag
        "": (-1, Verdict.EMPTY, ""),
        "x" * 20_001: (-1, Verdict.OVERLONG, ""),
    }
    for text, (pick, verdict, reasoning) in cases.items():
        (found,) = read(asked, [text])
        assert (found.pick, found.verdict, found.reasoning, found.ranking) == (pick, verdict, reasoning, ()), text
    json_asked = ask(requests, PromptWriter("json"))
    for text, expected in {
        '{"explanation": "A \\"b\\".", "ranking": [5, 5]}': (4, 'A "b".'),
        '{"explanation": "[2]", "ranking": ': (-1, "[2]"),
        'Sure! {"explanation": "bad \\x", "ranking": [5, 1]}': (4, ""),
    }.items():
        (found,) = read(json_asked, [text])
        assert (found.pick, found.reasoning) == expected, text
    writer = PromptWriter("tagged-json", prompt="3-id", semantic_ids=[f"<a_{item}>" for item in range(12)])
    (found,) = read(ask(requests, writer), ['<think>A.</think><answer>{"ranking": ["<a_7>", "<a_7>"]}</answer>'])
    assert (found.pick, found.verdict) == (7, Verdict.DUPLICATE)
    with pytest.raises(InputError, match="2 texts came for 1 prompts"):
        read(asked, ["", ""])


def test_traces_that_are_saved_leave_equal_files_and_replace_those_before(tmp_path: Path) -> None:
    rows = [trace(request=number) for number in range(4)]
    for name, places in (("one", [[0, 1, 2, 3]]), ("other", [[2], [3, 0], [1]])):
        folder = tmp_path / name
        folder.mkdir()
        write_manifest(folder, versions={"python": name})
        for part in places:
            write_part(folder, [rows[place] for place in part])
        Traces.load(folder).save(tmp_path / "saved" / name)
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / "saved" / name).iterdir()} for name in ("one", "other")
    )
    assert one == other and set(one) == {MANIFEST, "part-00000.parquet"}
    Traces.load(tmp_path / "one").save(tmp_path / "other")
    again = Traces.load(tmp_path / "other")
    assert again.requests_T.tolist() == [0, 1, 2, 3] and len(parts(tmp_path / "other")) == 1
    assert again.manifest == {"format": 1, "rows": 5, "requests": "none"}


def test_saving_that_is_killed_leaves_no_traces_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(tmp_path)
    for number in range(3):
        write_part(tmp_path, [trace(request=number)])
    whole = Traces.load(tmp_path)

    def killed(folder: Path, told: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rerank_env.training.language.traces.manifest.write", killed)
        with pytest.raises(KeyboardInterrupt):
            whole.save(tmp_path)
    with pytest.raises(DataError, match="there are no traces"):
        Traces.load(tmp_path)
    whole.save(tmp_path)
    assert Traces.load(tmp_path).table.equals(whole.table)
