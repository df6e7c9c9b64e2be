"""The table of a recipe and its model card: numbers worked by hand, front matter read by the hub's own reader."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.training.fingerprints import requests_hash
from rerank_env.training.recipes.card import About, card
from rerank_env.training.recipes.folder import RunFolder
from rerank_env.training.recipes.tables import METRICS, SERVED, Kept, OrIncoming, markdown, table

ABOUT = About(
    title="A re-ranker",
    summary="It re-ranks.",
    papers={"2602.07774": "GR2"},
    headline="mine",
    usage="Load it.",
    limits="Few requests.",
)


class Fixed:
    """A policy that names candidates by their items' texts: "0" before "1" before "2", or a given list for some."""

    def __init__(self, order: list[int], invalid: tuple[int, ...] = ()) -> None:
        self.order, self.invalid, self.calls = order, invalid, 0

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        self.calls += 1
        places = np.argsort(np.argsort(self.order)[requests.candidates_BK], axis=1)
        places[[row for row, user in enumerate(requests.users_B.tolist()) if user in self.invalid]] = -1
        return places


@pytest.fixture
def requests() -> Requests:
    """Four users, candidates 0, 1, 2 as they come; the target is 0, 1, 2 and 2."""
    relevance = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    return Requests.of([[0, 1, 2]] * 4, relevance, history=[[3]] * 4, texts=["a", "b", "c", "d"])


def test_the_table_has_the_numbers_that_can_be_worked_out_by_hand(requests: Requests) -> None:
    found = table(requests, {"mine": [Fixed([2, 1, 0])], "rival": [Fixed([2, 0, 1])]}, rival="rival", asked=16)
    told = found.to_dict()
    # incoming ranks 1, 2, 3, 3; mine 3, 2, 1, 1; the rival's order c, a, b gives 2, 3, 1, 1
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    rows = told["rows"]
    assert rows["incoming"]["metrics"]["recall@1"]["value"] == 0.25
    assert rows["mine"]["metrics"]["recall@1"]["value"] == 0.5
    assert rows["mine"]["metrics"]["ndcg@5"]["value"] == pytest.approx((third + second + 1 + 1) / 4)
    assert rows["mine"]["relative"]["recall@1"]["value"] == pytest.approx(1.0)  # from 0.25 to 0.5
    gained = (third + second + 2) / 4 - (1 + second + 2 * third) / 4
    assert rows["mine"]["relative"]["ndcg@5"]["value"] == pytest.approx(gained / ((1 + second + 2 * third) / 4))
    assert rows["mine"]["over_rival"]["ndcg@5"]["value"] == pytest.approx((third + second - second - third) / 4)
    assert "over_rival" not in rows["rival"]
    assert told["listed"] == 0.25 and rows["mine"]["all_users"]["recall@1"]["value"] == pytest.approx(0.125)
    assert rows["mine"]["validity"] == 1.0 and rows["mine"]["identity_rate"] == 0.0
    assert rows["incoming"]["identity_rate"] == 1.0
    for row in rows.values():
        for metric in METRICS:
            interval = row["metrics"][metric]
            assert interval["low"] <= interval["value"] <= interval["high"]
            relative = row["relative"][metric]  # nobody can lose more than all
            assert -1.0 <= relative["low"] <= relative["value"] <= relative["high"]


def test_an_invalid_answer_scores_nothing_and_has_a_second_row_with_the_incoming_order(requests: Requests) -> None:
    rows = table(requests, {"mine": [Fixed([2, 1, 0], invalid=(0, 2))], "rival": [Fixed([2, 1, 0])]}).to_dict()["rows"]
    assert set(rows) == {"incoming", "random", "oracle", "mine", "mine" + SERVED, "rival"}
    assert rows["mine"]["validity"] == 0.5 and rows["mine" + SERVED]["validity"] == 1.0
    assert rows["mine"]["metrics"]["recall@1"]["value"] == 0.25  # user 3 alone
    assert rows["mine" + SERVED]["metrics"]["recall@1"]["value"] == 0.5  # and user 0, whose target came first
    assert rows["mine" + SERVED]["metrics"]["recall@3"]["value"] == 1.0


def test_what_replaces_an_invalid_answer_leaves_valid_ones_as_they_are(requests: Requests) -> None:
    policy = Fixed([2, 1, 0], invalid=(1,))
    answers = OrIncoming(policy).rank(requests, rng=np.random.default_rng(0))
    assert answers.tolist() == [[2, 1, 0], [0, 1, 2], [2, 1, 0], [2, 1, 0]]


def test_seeds_are_averaged_and_without_rival_or_targets_nothing_is_said_of_them(requests: Requests) -> None:
    found = table(requests, {"mine": [Fixed([2, 1, 0]), Fixed([0, 1, 2])]})
    told = found.to_dict()
    assert told["rows"]["mine"]["seeds"] == 2
    assert told["rows"]["mine"]["metrics"]["recall@1"]["value"] == pytest.approx((0.5 + 0.25) / 2)
    assert told["listed"] is None and "all_users" not in told["rows"]["mine"]
    text = markdown(told)
    assert "all users" not in text.splitlines()[0] and "| mine | 0.3750 |" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_tables_that_cannot_be_are_refused(requests: Requests) -> None:
    with pytest.raises(InputError, match="4 requests cannot come from 3 targets"):
        table(requests, {"mine": [Fixed([0, 1, 2])]}, asked=3)
    with pytest.raises(InputError, match="rival 'other' is no row"):
        table(requests, {"mine": [Fixed([0, 1, 2])]}, rival="other")


def test_kept_answers_are_asked_for_once_and_other_requests_anew(requests: Requests, tmp_path: Path) -> None:
    policy, loaded = Fixed([2, 1, 0]), []
    kept = Kept(lambda: loaded.append(1) or policy, tmp_path / "mine")  # type: ignore[func-returns-value]
    rng = np.random.default_rng(0)
    first = kept.rank(requests, rng=rng)
    again = Kept(lambda: pytest.fail("asked again"), tmp_path / "mine").rank(requests, rng=rng)
    assert (first == again).all() and policy.calls == 1 and loaded == [1]
    shuffled = requests.reordered(np.array([[2, 0, 1]] * 4))
    assert requests_hash(shuffled) != requests_hash(requests)
    assert (kept.rank(shuffled, rng=rng) == policy.rank(shuffled, rng=rng)).all()


def finished(tmp_path: Path, requests: Requests) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.describe(
        {"recipe": "gr2", "data": "synthetic", "size": "tiny", "settings": {"seeds": [0, 1]}, "command": "rerank x"}
    )
    folder.begin("fit", "f", inputs={}, settings={"steps": 7})
    folder.begin("evaluate", "f", inputs={}, settings={"seeds": [4, 5]})
    told = table(requests, {"mine": [Fixed([2, 1, 0])]}, asked=16).to_dict()
    (folder.stage("evaluate") / "table.json").write_text(json.dumps(told))
    folder.finish("evaluate", {"ndcg@5": 0.75, "best": True, "of|rows": [1, {"a": None}]}, seconds=90.0)
    return folder


def test_a_card_is_read_by_the_hubs_own_reader_with_its_results(requests: Requests, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    text = card(finished(tmp_path, requests), ABOUT, stages=["fit", "evaluate"])
    read = hub.ModelCard(text)
    assert read.data.license == "apache-2.0" and read.data.library_name == "transformers"
    assert read.data.model_name == "gr2-synthetic-tiny"
    values = {result.metric_type: result.metric_value for result in read.data.eval_results}
    assert values["recall@1"] == 0.5 and set(values) == set(METRICS)
    assert read.content == text
    for part in (
        "| fit | | not finished |",
        "| evaluate | 1.5 | ndcg@5 0.75; best yes; of",
        "Made by `rerank x`",
        "numpy ",
        '    evaluate: {"seeds": [4, 5]}',
        "https://arxiv.org/abs/2602.07774",
        "of 16 targets (25.0% are listed)",
    ):
        assert part in text
    assert '"steps"' not in text and '"seeds": [0, 1]' not in text  # what was not finished, and what was asked last


def test_weights_made_from_a_base_name_it_and_state_no_licence(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder = RunFolder(tmp_path / "run")
    folder.describe({"recipe": "gr2", "data": "synthetic", "size": "small"})
    read = hub.ModelCard(card(folder, replace(ABOUT, base="someone/model"), stages=["evaluate"]))
    assert read.data.base_model == "someone/model" and read.data.get("license") is None


def test_a_card_before_the_evaluation_says_so(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder = RunFolder(tmp_path / "run")
    folder.describe({"recipe": "gr2", "data": "synthetic", "size": "tiny"})
    text = card(folder, ABOUT, stages=["evaluate"])
    assert "The evaluation is not finished." in text and hub.ModelCard(text).data.eval_results is None


def test_a_damaged_table_is_one_sentence(requests: Requests, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    folder = finished(tmp_path, requests)
    path = folder.stage("evaluate") / "table.json"
    path.write_bytes(b"{" * path.stat().st_size)
    with pytest.raises(CheckpointError, match="restart evaluate"):
        card(folder, ABOUT, stages=["evaluate"])
