"""Files that are no TREC run, judgements or texts: one sentence each, with file and line, or counted."""

from pathlib import Path

import pytest
from trec_files import QRELS, RUN, lists_of, says, write

from rerank_env.data.readers import trec
from rerank_env.data.readers.faults import Skipped


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("d.tsv", "d1 one", "not an id, a tab and a text"),
        ("d.tsv", "\tone", "not an id, a tab and a text"),
        ("d.jsonl", "{", "is no JSON object"),
        ("d.jsonl", "[" * 100_000, "is no JSON object"),
        ("d.jsonl", "[1]", "not an object with one of"),
        ("d.jsonl", '{"id": "d1"}', "not an object with one of"),
        ("d.jsonl", '{"id": true, "text": ""}', "not an object with one of"),
        ("d.jsonl", '{"text": "one"}', "not an object with one of"),
        ("d.jsonl", '{"id": "d1", "text": "\\ud83d"}', "holds half a surrogate pair"),
        ("d.jsonl", '{"id": "d1", "title": "\\udc00", "text": ""}', "holds half a surrogate pair"),
        ("d.jsonl", '{"id": "\\ud83d", "text": ""}', "holds half a surrogate pair"),
        ("d.jsonl", f'{{"id": {"1" * 5_000}, "text": ""}}', "is no JSON object"),
    ],
)
def test_texts_of_another_form_are_refused_with_file_and_line(name: str, row: str, reason: str, tmp_path: Path) -> None:
    paths = write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS)
    with says(f"{name} line 1.*{reason}"):
        trec.read(*paths, documents=write(tmp_path / name, row))
    with says("the text of 'd1' is 3"):
        trec.read(*paths, documents={"d1": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("", "not of the form `query Q0 document rank score tag`"),
        ("q1 Q0 d5 1 0.5", "not of the form"),
        ("q1 Q0 d5 1 0.5 tag more", "not of the form"),
        ("q1 Q0 d5 1.5 0.5 t", "not of the form"),
        ("q1 Q0 d5 1 high t", "not of the form"),
        ("q1 Q0 d5 1 nan t", "not of the form"),
        ("q1 Q0 d5 1 -inf t", "not of the form"),
        ("q1 Q0 d5 1 1e39 t", "not of the form"),  # not finite in single precision
        ("q1 Q0 d5 1_0 1 t", "not of the form"),
        ("q1 Q0 d5 1 1_0 t", "not of the form"),
        (f"q1 Q0 d5 {10**30} 1 t", "not of the form"),
        ("q1 Q0 d1 4 0.5 t", "the query has that document on an earlier line"),
    ],
)
def test_a_line_that_is_not_of_a_run_is_refused_with_file_and_line_or_counted(
    row: str, reason: str, tmp_path: Path
) -> None:
    run, qrels = write(tmp_path / "run", *RUN, row, "q2 Q0 d7 3 0.1 t"), write(tmp_path / "qrels", *QRELS)
    with says(f"run line 6 reads .*{reason}.*; correct or remove the line") as caught:
        trec.read(run, qrels)
    assert "\n" not in str(caught.value)
    named = trec.read(run, qrels, skipped=Skipped())
    assert named.requests.sizes_B.tolist() == [3, 3] and named.skipped.total == 1
    assert any(reason in note and "line 6" in note for note in named.requests.notes)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("q1 0 d1", "not of the form `query 0 document relevance`"),
        ("q1 0 d1 high", "not of the form"),
        ("q1 0 d1 nan", "not of the form"),
        ("q1 0 d1 1 1", "not of the form"),
        ("q1 0 d2 1", "an earlier line has another relevance"),
    ],
)
def test_a_line_that_is_no_judgement_is_refused_with_file_and_line_or_counted(
    row: str, reason: str, tmp_path: Path
) -> None:
    run, qrels = write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS, row)
    with says(f"qrels line 5 reads .*{reason}"):
        trec.read(run, qrels)
    named = trec.read(run, qrels, skipped=Skipped())
    assert lists_of(named)["q1"][2] == ("d2", -10.0, 2.0) and named.skipped.total == 1


def test_a_run_without_a_judged_list_is_refused(tmp_path: Path) -> None:
    qrels = write(tmp_path / "qrels", "q7 0 d1 1")
    with says("run has no judged query with 2 documents"):
        trec.read(write(tmp_path / "run", *RUN), qrels)
    with says("empty has no judged query with 2 documents"):
        trec.read(write(tmp_path / "empty"), qrels)
    with says("nowhere cannot be read"):
        trec.read(tmp_path / "nowhere", qrels)
    (tmp_path / "torn").write_text("q1 Q0 d1 1 1.0 t\nq1 Q0 d2 2")
    with says("torn line 2: the last line has no line end"):
        trec.read(tmp_path / "torn", qrels)
