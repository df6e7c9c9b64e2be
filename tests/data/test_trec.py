"""TREC runs and judgements as requests, rankings as runs again: orders, gains, counts, and another reader."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trec_files import QRELS, RUN, lists_of, says, write

from rerank_env.data import Catalog, Requests
from rerank_env.data.readers import trec
from rerank_env.data.readers.documents import NO_TEXT, TWICE
from rerank_env.data.readers.faults import Skipped
from rerank_env.data.readers.named import NamedRequests
from rerank_env.rewards.errors import CheckpointError, InputError, RankingError
from rerank_env.rewards.rankings import identity_rankings, random_rankings


def test_lists_come_in_the_order_of_scores_with_the_gains_of_the_judgements(tmp_path: Path) -> None:
    named = trec.read(write(tmp_path / "run.txt", *RUN), write(tmp_path / "qrels.gz", *QRELS))
    assert lists_of(named) == {
        "q2": [("d9", 0.75, 1.0), ("d1", 0.5, 0.0)],
        "q1": [("d1", 9.5, 0.0), ("d3", 7.0, 0.0), ("d2", -10.0, 2.0)],
    }
    assert named.request_ids == ("q2", "q1") == named.user_ids  # as the run first names them
    assert sorted(map(str, named.item_ids)) == ["d1", "d2", "d3", "d9"]
    assert named.requests.users_B.tolist() == [0, 1] and named.requests.history_BH.tolist() == [[-1], [-1]]
    assert named.requests.name == "TREC run run.txt" and named.skipped.total == 0
    assert named.requests.notes == (
        "2 of 3 relevant documents of the requests are candidates",
        "2 of 5 candidates are not judged, which counts as a gain of 0",
    )


def test_documents_are_numbered_with_the_seed_and_not_by_their_names(tmp_path: Path) -> None:
    rows = [f"q Q0 d{place:03} {place + 1} {-place} t" for place in range(200)]
    paths = write(tmp_path / "run", *rows), write(tmp_path / "qrels", "q 0 d000 1")
    one, again, other = (trec.read(*paths, seed=seed) for seed in (1, 1, 2))
    assert one.item_ids == again.item_ids != other.item_ids
    assert lists_of(one) == lists_of(other)
    assert (np.diff(one.requests.candidates_BK[0]) == 1).sum() < 10


def test_ties_go_by_the_rank_and_then_by_the_file_where_trec_eval_goes_by_name_backwards(tmp_path: Path) -> None:
    rows = ("q Q0 a 3 1.0 t", "q Q0 b 2 1.0 t", "q Q0 c 2 1.0 t", "q Q0 d 4 2.0 t", "p Q0 x 1 2 t", "p Q0 y 2 1 t")
    named = trec.read(write(tmp_path / "run", *rows), write(tmp_path / "qrels", "q 0 a 1", "p 0 x 1"))
    assert [document for document, _, _ in lists_of(named)["q"]] == ["d", "b", "c", "a"]  # trec_eval: d, c, b, a
    assert named.requests.notes[:2] == (
        "1 queries (the first on line 3) have equal scores, ordered by the rank column here and by document id in "
        "trec_eval",
        "1 queries (the first on line 2) have ranks that contradict their scores; the scores are followed",
    )


def test_what_is_in_one_file_only_is_counted_and_negative_relevance_is_no_gain(tmp_path: Path) -> None:
    rows = (*RUN, "only-run Q0 d1 1 2 t", "only-run Q0 d2 2 1 t", "short Q0 d1 1 1 t")
    judged = (*QRELS[:1], "q1 0 d1 -2", *QRELS[2:], QRELS[3], "only-qrels 0 d1 1", "short 0 d1 1")
    named = trec.read(write(tmp_path / "run", *rows), write(tmp_path / "qrels", *judged))
    assert set(named.request_ids) == {"q1", "q2"} and lists_of(named)["q1"][0] == ("d1", 9.5, 0.0)
    assert named.skipped.counts == {
        "an earlier line is the same judgement": 1, trec.UNJUDGED: 2, trec.TOO_FEW: 1
    }  # fmt: skip
    assert named.skipped.first[trec.UNJUDGED] == f"{tmp_path / 'run'} line 6"
    notes = " | ".join(named.requests.notes)
    assert "1 of 4 queries of the run have no judgements and are left out" in notes
    assert "1 of 4 judged queries are not in the run and are no requests; trec_eval -c counts them as 0" in notes
    assert "1 of 5 candidates have negative relevance, which counts as a gain of 0" in notes
    assert "2 of 3 relevant documents of the requests are candidates" in notes
    assert f"skipped 1 row: {trec.TOO_FEW} (first: {tmp_path / 'run'} line 8)" in notes


def test_only_the_first_of_each_list_are_kept_where_that_is_asked_for_and_the_rest_are_counted(tmp_path: Path) -> None:
    paths = write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS)
    named = trec.read(*paths, top=2)
    assert [document for document, _, _ in lists_of(named)["q1"]] == ["d1", "d3"]
    assert sorted(map(str, named.item_ids)) == ["d1", "d3", "d9"]  # nothing of what was cut
    assert named.skipped.counts == {"the document is below the first 2 of its query, as was asked for": 1}
    assert lists_of(trec.read(*paths, top=99)) == lists_of(trec.read(*paths))
    with pytest.raises(InputError, match="top is 1; give a whole number of at least 2"):
        trec.read(*paths, top=1)


@pytest.mark.parametrize("form", ["mapping", "tsv", "tsv.gz", "beir", "pyserini"])
def test_texts_of_documents_and_queries_come_from_any_form_and_a_query_is_the_history(
    form: str, tmp_path: Path
) -> None:
    texts = {"d1": "one\u2028line", "d2": "zwei", "d3": "", "d7": "of no list"}
    asked = {"q1": "what is 1?", "q9": "?"}

    def source(name: str, known: dict[str, str]) -> Any:
        if form == "mapping":
            return known
        if form.startswith("tsv"):
            return write(tmp_path / f"{name}.{form}", *(f"{key}\t{text}" for key, text in known.items()))
        keys = ("_id", "text") if form == "beir" else ("id", "contents")
        rows = [json.dumps(dict(zip(keys, entry, strict=True)) | {"title": ""}) for entry in known.items()]
        return write(tmp_path / f"{name}.jsonl", *rows)

    named = trec.read(
        write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS),
        documents=source("documents", texts), queries=source("queries", asked),
    )  # fmt: skip
    requests = named.requests
    shown = {named.item_ids[i]: requests.catalog.texts[i] for i in range(4)}
    assert shown == {"d1": "one line", "d2": "zwei", "d3": NO_TEXT, "d9": NO_TEXT}
    assert [requests.catalog.texts[i] for i in requests.history_BH[:, 0]] == [NO_TEXT, "what is 1?"]
    assert [named.item_ids[i] for i in requests.history_BH[:, 0]] == ["q2", "q1"]
    assert requests.feedback_BH.tolist() == [[1], [1]]
    assert {"2 of 4 documents have no text", "1 of 2 queries have no text"} <= set(requests.notes)


def test_a_title_stands_before_the_text_and_a_second_text_of_an_id_is_counted(tmp_path: Path) -> None:
    rows = ['{"_id": "d1", "title": "Soap", "text": "It foams."}', '{"_id": "d1", "text": "again"}']
    named = trec.read(
        write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS), documents=write(tmp_path / "d.jsonl", *rows)
    )
    assert named.requests.catalog.texts[named.item_ids.index("d1")] == "Soap It foams."
    assert named.skipped.counts == {TWICE: 1}


def test_rankings_are_written_with_the_names_they_were_read_with(tmp_path: Path) -> None:
    named = trec.read(write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS))
    path = trec.write_run(tmp_path / "new", named, [[1, 0, -1], [2, 0, 1]], tag="ours")
    assert path.read_text() == (
        "q2 Q0 d1 1 2 ours\nq2 Q0 d9 2 1 ours\n"
        "q1 Q0 d2 1 3 ours\nq1 Q0 d1 2 2 ours\nq1 Q0 d3 3 1 ours\n"
    )  # fmt: skip
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(RankingError, match="row 1 is no ranking"):
        trec.write_run(tmp_path / "bad", named, [[1, 0, -1], [2, 2, 1]])
    with pytest.raises(InputError, match="1 rankings were given for 2 requests"):
        trec.write_run(tmp_path / "bad", named, [[1, 0, -1]])
    with pytest.raises(InputError, match="'my tag' is no single word"):
        trec.write_run(tmp_path / "bad", named, [[1, 0, -1], [2, 0, 1]], tag="my tag")
    spaced = NamedRequests(named.requests, ("q 2", "q1"), (0, 1), named.item_ids, named.skipped)
    with pytest.raises(InputError, match="'q 2' is no single word"):
        trec.write_run(tmp_path / "bad", spaced, [[1, 0, -1], [2, 0, 1]])
    assert not (tmp_path / "bad").exists()


def test_scores_that_are_equal_in_single_precision_are_ties_as_in_trec_eval(tmp_path: Path) -> None:
    # 1 + 2**-25 and 1 - 2**-26 are 1 in single precision, 1e-50 and -1e-60 are 0: the rank column decides
    rows = (
        "q1 Q0 a 3 1.0000000298023224 t", "q1 Q0 b 1 1 t", "q1 Q0 c 2 0.9999999850988388 t",
        "q2 Q0 a 2 1e-50 t", "q2 Q0 b 1 -1e-60 t",
    )  # fmt: skip
    qrels = write(tmp_path / "qrels", "q1 0 a 1", "q2 0 a 1")
    named = trec.read(write(tmp_path / "run", *rows), qrels)
    assert [[document for document, _, _ in listed] for listed in lists_of(named).values()] == [
        ["b", "c", "a"],
        ["b", "a"],
    ]
    assert any(note.startswith("2 queries (the first on line 3) have equal scores") for note in named.requests.notes)
    assert not any("contradict" in note for note in named.requests.notes)


def test_a_run_is_written_whole_with_its_folder_or_refused_in_one_sentence(tmp_path: Path) -> None:
    named = trec.read(write(tmp_path / "run", *RUN), write(tmp_path / "qrels", *QRELS))
    path = trec.write_run(tmp_path / "deep" / "down" / "new", named, [[1, 0, -1], [2, 0, 1]])
    assert len(path.read_text().splitlines()) == 5 and [p.name for p in path.parent.iterdir()] == ["new"]
    for refused in (tmp_path / "run" / "new", tmp_path / "deep"):  # a file is no folder, a folder no file
        with pytest.raises(CheckpointError, match="could not be written") as caught:
            trec.write_run(refused, named, [[1, 0, -1], [2, 0, 1]])
        assert "\n" not in str(caught.value)
    torn = NamedRequests(named.requests, ("q\ud83d", "q1"), (0, 1), named.item_ids, named.skipped)
    with pytest.raises(InputError, match="is no single word of UTF-8"):
        trec.write_run(tmp_path / "bad", torn, [[1, 0, -1], [2, 0, 1]])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "qrels", "run"]


words = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=6)
scores = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(st.tuples(words, words, st.integers(0, 9), scores), unique_by=lambda row: row[:2], max_size=40),
    st.dictionaries(st.tuples(st.integers(0, 39), st.integers(0, 39)), st.integers(-1, 3), max_size=60),
    st.integers(2, 5),
    st.integers(0, 5),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_files_are_read_as_a_plain_loop_reads_them_and_the_written_run_is_read_back(
    tmp_path: Path,
    rows: list[tuple[str, str, int, float]],
    drawn: dict[tuple[int, int], int],
    top: int,
    seed: int,
) -> None:
    judged = {(rows[q][0], rows[d][1]): gain for (q, d), gain in drawn.items() if max(q, d) < len(rows)}
    run = write(tmp_path / "run", *(f"{q} Q0 {d} {rank} {score!r} t" for q, d, rank, score in rows))
    qrels = write(tmp_path / "qrels", *(f"{q} 0 {d} {gain}" for (q, d), gain in judged.items()))
    by_query: dict[str, list[tuple[float, int, int, str]]] = defaultdict(list)
    for line, (query, document, rank, score) in enumerate(rows):
        by_query[query].append((-score, rank, line, document))
    expected = {
        query: [(d, -minus, max(judged.get((query, d), 0), 0)) for minus, _, _, d in sorted(listed)[:top]]
        for query, listed in by_query.items()
        if len(listed) >= 2 and any(query == judged_query for judged_query, _ in judged)
    }
    if not expected:
        with says("nothing to re-rank"):
            trec.read(run, qrels, top=top)
        return
    named = trec.read(run, qrels, top=top, seed=seed)
    assert lists_of(named) == expected and list(expected) == list(named.request_ids)
    answers = random_rankings(
        named.requests.sizes_B, named.requests.candidates_BK.shape[1], np.random.default_rng(seed)
    )
    again = trec.read(trec.write_run(tmp_path / "new", named, answers), qrels, seed=seed + 1)
    assert again.request_ids == named.request_ids
    answered = named.requests.reordered(answers)
    assert again.requests.relevance_BK.tolist() == answered.relevance_BK.tolist()
    assert [again.item_ids[i] for i in again.requests.candidates_BK[again.requests.candidates_BK >= 0]] == [
        named.item_ids[i] for i in answered.candidates_BK[answered.candidates_BK >= 0]
    ]


def test_any_requests_can_be_written_as_a_run_by_giving_them_names(tmp_path: Path) -> None:
    requests = Requests.of([[0, 1, 2]], [[0, 1, 0]], catalog=Catalog.of(["a", "b", "c"]))
    named = NamedRequests(requests, (17,), (17,), (5, 6, 7), Skipped())
    assert list(trec.run_lines(named, identity_rankings(requests.sizes_B, 3))) == [
        "17 Q0 5 1 3 rerank_env", "17 Q0 6 2 2 rerank_env", "17 Q0 7 3 1 rerank_env"
    ]  # fmt: skip


def test_ir_measures_reads_a_written_run_in_the_order_that_was_meant(tmp_path: Path) -> None:
    ir_measures = pytest.importorskip("ir_measures", reason="needs the metrics extra")
    rng = np.random.default_rng(5)
    rows = [f"q{q} Q0 d{d} {d + 1} {float(rng.random()):.1f} t" for q in range(20) for d in range(12)]
    qrels = write(tmp_path / "qrels", *(f"q{q} 0 d{d} {rng.integers(0, 3)}" for q in range(20) for d in range(12)))
    named = trec.read(write(tmp_path / "run", *rows), qrels)
    answers = random_rankings(named.requests.sizes_B, 12, rng)
    path = trec.write_run(tmp_path / "new", named, answers)
    measured = {
        found.query_id: found.value
        for found in ir_measures.iter_calc(
            [ir_measures.RR], list(ir_measures.read_trec_qrels(str(qrels))), list(ir_measures.read_trec_run(str(path)))
        )
    }
    gains = np.take_along_axis(named.requests.relevance_BK, answers, axis=1)
    for query, gains_K in zip(named.request_ids, gains, strict=True):
        assert measured[query] == pytest.approx(1 / (1 + int(np.argmax(gains_K > 0))) if (gains_K > 0).any() else 0)
