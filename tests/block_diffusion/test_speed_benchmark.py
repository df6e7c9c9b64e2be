"""The benchmark of speed: what ratios, saturation and advantage come to by hand, and a whole run on tiny policies."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")
pytest.importorskip("matplotlib")

import diffusion_speed  # noqa: E402
from speed_quality import METRIC, TEACHER, Asking, asking_of, draw, qualities  # noqa: E402
from speed_timing import READING, Machine, Wrote, alone, over_rounds, swept, timings, together  # noqa: E402
from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.block_diffusion import BlockDecoding, Blocks, convert, sampling  # noqa: E402
from rerank_env.agents.language import Decoding, LanguagePolicy, generation  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402

pytestmark = pytest.mark.torch

RULE = "threshold(0.5)"


@pytest.fixture(scope="module")
def machine() -> Machine:
    tokenizer = tiny_tokenizer()
    teacher = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=6))
    return Machine(teacher, [convert(teacher, blocks=Blocks(3), decoding=BlockDecoding(RULE, max_tokens=6))] * 2)


@pytest.fixture(scope="module")
def asking(machine: Machine) -> Asking:
    """Three requests, of which only the ends are read, to be quick about it."""
    made = asking_of(None, [machine.teacher, *machine.students], data="synthetic").first(3)
    return replace(made, prompts=[prompt[-40:] for prompt in made.prompts])


def wrote(tokens: int, forwards: int, seconds: float, reading: float = 0.0) -> Wrote:
    return Wrote([[7] * tokens], forwards, seconds, reading)


def test_ratios_are_made_per_round_and_rounds_are_averaged() -> None:
    rounds = [
        {
            TEACHER: [wrote(6, 5, 3.0, 1.0), wrote(10, 9, 5.0, 1.0)],
            RULE: [wrote(6, 2, 1.0, 0.5), wrote(6, 2, 2.0, 0.5)],
        },
        {TEACHER: [wrote(8, 7, 4.0, 1.0), wrote(8, 7, 4.0, 1.0)], RULE: [wrote(8, 3, 2.0, 0.5), wrote(8, 1, 2.0, 0.5)]},
    ]
    found = timings(rounds, RULE)
    # tokens/s of the rule 12 / 3 = 4 and 16 / 4 = 4, of the teacher 16 / 8 = 2 and 16 / 8 = 2
    assert found["tokens/s"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    # prompts left out: 12 / 2 = 6 and 16 / 3 over 16 / 6 = 8 / 3 in both: 9 / 4 and 2
    assert found["decoding tokens/s"] == pytest.approx({"value": (9 / 4 + 2) / 2, "low": 2.0, "high": 9 / 4})
    assert found["median latency"]["value"] == pytest.approx((1.5 / 4 + 2 / 4) / 2)
    assert found["p90 latency"]["value"] == pytest.approx((1.9 / 4.8 + 2 / 4) / 2)
    assert found["tokens an answer"]["value"] == 28 / 4
    assert found["forwards an answer"]["value"] == 8 / 4
    assert found["tokens a forward"]["value"] == 28 / 8
    assert timings(rounds, TEACHER)["tokens/s"]["value"] == 1.0


def test_an_interval_of_rounds_holds_their_mean_and_no_more_than_their_range() -> None:
    values = np.random.default_rng(0).random(9).tolist()
    found = over_rounds(values)
    assert found["value"] == pytest.approx(sum(values) / 9)
    assert min(values) < found["low"] < found["value"] < found["high"] < max(values)


def test_the_advantage_ends_at_the_first_batch_that_has_none_even_if_it_comes_back() -> None:
    teacher, rule = [10.0, 20.0, 40.0, 100.0, 101.0], [30.0, 39.0, 40.0, 110.0, 109.0]
    found = {
        size: [{TEACHER: (a, a / 5), RULE: (b, b / 4)}]
        for size, a, b in zip((1, 2, 4, 8, 16), teacher, rule, strict=True)
    }
    rows = {
        row["name"]: {name: number["value"] for name, number in row["metrics"].items()} for row in swept(found, RULE)
    }
    assert rows["batch 1"]["ratio of tokens/s"] == 3.0
    assert rows["batch 2"] == pytest.approx(
        {
            "ratio of tokens/s": 39 / 20,
            "ratio of requests/s": 39 / 20 * 5 / 4,
            "autoregressive tokens/s": 2.0,
            "autoregressive requests/s": 2.0,
            "block diffusion tokens/s": 3.9,
            "block diffusion requests/s": 3.9 * 5 / 4,
        }
    )
    assert rows["over batches"] == {
        "saturating batch, block diffusion": 8,  # 110 is the most
        "saturating batch, autoregressive": 8,  # 100 >= .95 * 101
        "ratio of the most tokens/s": 110 / 101,
        "last batch with an advantage": 2,  # 40 / 40 is none
    }
    assert swept({1: [{TEACHER: (2.0, 1.0), RULE: (1.0, 1.0)}]}, RULE)[-1]["metrics"][
        "last batch with an advantage"
    ]["value"] == 0  # fmt: skip


def test_quality_counts_invalid_answers_as_zero_and_is_averaged_over_students() -> None:
    asking = Asking([[1]] * 4, [[0.0, 1.0, 0.0]] * 4, [3] * 4, [0, 0, 1, 2], "list", None)
    right, wrong, invalid = "[2, 1, 3]", "[1, 2, 3]", "[2, 2, 3]"
    found = qualities(
        asking,
        {
            TEACHER: [[right, right, right, wrong]],
            RULE: [[right, invalid, wrong, wrong], [right, right, right, "I say"]],
        },
    )
    assert found[TEACHER][METRIC]["value"] == 3 / 4
    assert found[TEACHER][f"{METRIC} - teacher"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    own = {name: number["value"] for name, number in found[RULE].items()}
    assert own[METRIC] == (1 / 4 + 3 / 4) / 2  # `invalid` has the relevant one in front, and counts as 0
    assert own[f"{METRIC} - teacher"] == 1 / 2 - 3 / 4
    assert own["valid"] == (3 / 4 + 3 / 4) / 2
    assert own["unparseable"] == 1 / 8
    assert own["duplicates a list"] == (1 / 4 + 0) / 2
    assert own["dropped a list"] == (1 / 4 + 3 / 4) / 2
    assert found[RULE][METRIC]["low"] < own[METRIC] < found[RULE][METRIC]["high"]


def test_prompts_are_kept_and_read_back(machine: Machine, tmp_path: Path) -> None:
    made = asking_of(tmp_path / "asked.json", [machine.teacher], data="synthetic")
    assert asking_of(tmp_path / "asked.json", [], data="nothing is loaded") == made
    assert made.first(2).prompts == made.prompts[:2] and made.first(None) == made


def test_the_clock_stands_around_both_samplers_and_is_taken_away_again(machine: Machine, asking: Asking) -> None:
    before = generation.read_batch, sampling.read_batch
    for setting in (TEACHER, RULE):
        assert machine.write(setting, asking.prompts).reading == 0.0
        with machine.clocked():
            told = machine.write(setting, asking.prompts)
        assert 0 < told.reading < told.seconds
        assert len(told.completions) == 3 and told.tokens == sum(map(len, told.completions))
    assert before == (generation.read_batch, sampling.read_batch)
    assert machine.stopwatch.seconds[READING] > 0


def test_everybody_answers_every_request_of_a_round_once(machine: Machine, asking: Asking) -> None:
    rounds = alone(machine, [TEACHER, RULE], [asking.prompts[:2], asking.prompts[2:]])
    assert [[len(told[setting]) for setting in (TEACHER, RULE)] for told in rounds] == [[2, 2], [1, 1]]
    texts = machine.texts(RULE, asking.prompts, student=1, batch=2)
    one_by_one = [one.completions[0] for told in rounds for one in told[RULE]]
    assert machine.students[1].texts(one_by_one) == texts
    swept_over = together(machine, RULE, asking.prompts, [1, 32], repeats=2)
    assert [len(repeats) for repeats in swept_over.values()] == [2, 2]


def test_a_run_records_every_setting_and_draws_it(machine: Machine, asking: Asking, tmp_path: Path) -> None:
    options = Namespace(
        rounds=2, per_round=1, repeats=1, batches=(1, 2), quality_batch=2, data="synthetic", dry_run=False,
        directory=tmp_path,
    )  # fmt: skip
    diffusion_speed.compare(options, machine, asking)
    record = json.loads((tmp_path / "diffusion-speed.json").read_bytes())
    names = [row["name"] for row in record["rows"]]
    rules = [f"threshold({least})" for least in diffusion_speed.THRESHOLDS]
    rules += [f"static({rounds})" for rounds in diffusion_speed.STATIC]
    assert names == [TEACHER, *rules, "batch 1", "batch 2", "over batches"]
    assert all({"tokens/s", METRIC, "valid", "dropped a list"} <= set(row["metrics"]) for row in record["rows"][:-3])
    assert RULE in record["data"] and "blocks of 3" in record["data"]
    ratio = next(row for row in record["rows"] if row["name"] == RULE)["metrics"]["tokens/s"]["value"]
    assert record["met"] == (ratio >= diffusion_speed.LEAST_RATIO)  # all answers of random weights are invalid
    metrics = {row["name"]: row["metrics"] for row in record["rows"][:-3]}
    drawn = (tmp_path / "diffusion-speed.svg").read_bytes()
    draw(tmp_path / "diffusion-speed.svg", metrics, RULE)
    assert (tmp_path / "diffusion-speed.svg").read_bytes() == drawn
    assert b"t 0.95" in drawn and b"s 8" in drawn
