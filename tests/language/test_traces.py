"""Collecting asks until every request is settled, counts what it drops, pays nothing twice, and copies no order.

Longer than other files because all of it collects with the same counting teachers, which killed processes import, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from rerank_env.data.requests import Requests
from rerank_env.prompts import Asked, PromptWriter
from rerank_env.rewards.errors import InputError, ServerError, UnknownNameError
from rerank_env.rewards.rankings import Verdict, random_rankings
from rerank_env.training.language.traces import Traces, collect, settling
from rerank_env.training.language.traces.drawing import Purpose, gumbel, keys, orders, seeds, uniform
from rerank_env.training.language.traces.prompting import best
from rerank_env.training.language.traces.proposals import Proposal, read
from rerank_env.training.language.traces.rules import RuleTeacher

WRITER = PromptWriter("tagged-list")


def requests_of(count: int, size: int = 4) -> Requests:
    """Requests whose target is in place 0, 1, 2, 3, 0, ..."""
    relevance = [[float(place == row % size) for place in range(size)] for row in range(count)]
    return Requests.of([list(range(size))] * count, relevance, history=[[0]] * count)


class Saying:
    """Says the same text to every request, or what `texts` has for each try, and remembers what it was asked."""

    name = "saying"

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.asked: list[Asked] = []
        self.targets: list[Any] = []
        self.seeds: list[int] = []

    def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
        text = self.texts[min(len(self.asked), len(self.texts) - 1)]
        self.asked.append(asked)
        self.targets.append(targets_B)
        self.seeds += seeds_B.tolist()
        count = len(asked.prompts)
        return read(asked, [text] * count, [100] * count, [len(text)] * count)


class Levels:
    """Levels that depend on the item and the user."""

    names = ("near", "text")

    def levels_of(self, requests: Requests) -> Any:
        items_BK, users_B1 = requests.candidates_BK, requests.users_B[:, None]
        return np.stack([(items_BK * 3 + users_B1) % 5, (items_BK * 5 + users_B1 * 2) % 7], axis=2)


def rows_of(traces: Traces) -> list[SimpleNamespace]:
    return [SimpleNamespace(**row) for row in traces]


def test_rejection_asks_again_until_the_pick_is_the_target_and_counts_what_it_drops(tmp_path: Path) -> None:
    # Unshuffled, so the pick "1" is the target of requests 0 and 4 only, at the first try; then "2" of request 1.
    teacher = Saying(
        *[f"<think>Try {n}.</think><answer>[{n}, {', '.join(r)}]</answer>" for n, r in (("1", "234"), ("2", "134"))]
    )
    traces = collect(requests_of(5), teacher, WRITER, mode="rejection", tries=3, directory=tmp_path, shuffle=False)
    rows = rows_of(traces)
    assert [row.accepted for row in rows] == [True, True, False, False, True]
    assert [row.tries for row in rows] == [1, 2, 3, 3, 1]
    assert [len(asked.prompts) for asked in teacher.asked] == [5, 3, 2]
    assert teacher.targets == [None] * 3
    assert (rows[1].ranking, rows[1].reasoning, rows[1].tail) == ([1, 0, 2, 3], "Try 2.", "own")
    assert (rows[2].completion, rows[2].ranking, rows[2].tail, rows[2].verdict) == ("", [], "", "OK")
    assert [row.incoming for row in rows] == [1, 2, 3, 4, 1]
    assert rows[2].tokens_in == 300
    found = traces.statistics()
    assert (found.asked, found.accepted, found.first, found.own, found.calls) == (5, 3, 2, 3, 10)
    assert found.by_incoming == {1: (2, 2), 2: (1, 1), 3: (1, 0), 4: (1, 0)}
    assert found.dropped == (2, 3)
    assert found.acceptance == 0.6
    assert found.numbers()["acceptance/incoming_3"] == 0.0
    assert found.tokens_in == 1000


def test_imitation_takes_any_ranking_with_reasons_right_or_wrong_and_nothing_else(tmp_path: Path) -> None:
    said = "<think>So.</think><answer>[1, 2, 3, 4]</answer>"
    requests = requests_of(5)
    blank = Requests.of([[0, 1, 2, 3]], [[0.0] * 4], history=[[0]])  # nobody is told a target, so none is needed
    for number, (asked, text, accepted) in enumerate(
        [
            (requests, said, True),
            (blank, said, True),
            (requests, "<think>So.</think><answer>[1, 1, 3, 4]</answer>", False),  # its pick is not enough
            (requests, "<think></think><answer>[1, 2, 3, 4]</answer>", False),
        ]
    ):
        teacher = Saying(text)
        traces = collect(
            asked, teacher, WRITER, mode="imitation", tries=1, directory=tmp_path / str(number), shuffle=False
        )
        assert traces.column("accepted") == [accepted] * len(asked)
        assert teacher.targets == [None]
        if accepted:
            assert [row.ranking for row in rows_of(traces)] == [[0, 1, 2, 3]] * len(asked)
            assert set(traces.column("tail")) == {"own"}


def test_targeted_tells_the_shown_place_of_the_target_once_and_accepts_only_its_name(tmp_path: Path) -> None:
    teacher = Saying("<think>Up.</think><answer>[1, 2, 3, 4]</answer>")
    requests = requests_of(40)
    traces = collect(requests, teacher, WRITER, tries=2, directory=tmp_path, seed=9)
    first = teacher.targets[0]
    assert [teacher.asked[0].order_BK[row, first[row]] for row in range(40)] == [row % 4 for row in range(40)]
    assert traces.column("accepted") == (first == 0).tolist()
    assert traces.column("tries") == [1 if told == 0 else 2 for told in first]
    assert 0 < traces.statistics().accepted < 40
    assert traces.accepted().rankings_TK()[:, 0].tolist() == [row % 4 for row in np.flatnonzero(first == 0)]


def test_a_teacher_by_rule_explains_every_target_and_is_rejected_by_chance(tmp_path: Path) -> None:
    requests = requests_of(60)
    told = collect(requests, RuleTeacher(Levels()), WRITER, directory=tmp_path / "targeted")
    assert all(told.column("accepted"))
    assert told.rankings_TK()[:, 0].tolist() == [row % 4 for row in range(60)]
    asked = told.asked(requests, WRITER)
    assert (asked.read(told.column("completion")).verdicts_B == Verdict.OK).all()
    free = collect(requests, RuleTeacher(Levels()), WRITER, mode="rejection", tries=2, directory=tmp_path / "free")
    assert 0 < free.statistics().accepted < 60
    assert max(free.column("tries")) == 2


def test_a_pick_without_a_ranking_gets_a_random_tail_that_does_not_know_the_order(tmp_path: Path) -> None:
    requests = requests_of(400)
    teacher = Saying("<think>Cut.</think><answer>[1, 1]</answer>")
    traces = collect(requests, teacher, WRITER, mode="rejection", tries=1, directory=tmp_path, shuffle=False).accepted()
    assert len(traces) == 100
    assert set(traces.column("tail")) == {"random"}
    assert set(traces.column("verdict")) == {"DUPLICATE"}
    tails = Counter(tuple(ranking[1:]) for ranking in traces.column("ranking"))
    assert {ranking[0] for ranking in traces.column("ranking")} == {0}
    # All 6 orders of the other three, each about 100 / 6 = 16.7 times; 4 standard deviations are 14.9.
    assert len(tails) == 6
    assert max(tails.values()) < 16.7 + 14.9
    assert traces.column("completion")[0].startswith("<think>Cut.</think><answer>[1, ")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<answer>[1, 2, 3, 4]</answer>", "OK"),  # right, but for no reason
        ("<think> \n</think><answer>[1, 2, 3, 4]</answer>", "OK"),
        ("", "EMPTY"),
        ("<think>Up.</think><answer>[", "TRUNCATED"),
        (f"<think>{'long ' * 4000}</think><answer>[1, 2, 3, 4]</answer>", "OVERLONG"),
        ("<think>[1]</think>", "TRUNCATED"),
    ],
)
def test_what_has_no_reasons_or_no_pick_is_not_accepted(text: str, verdict: str, tmp_path: Path) -> None:
    traces = collect(requests_of(1), Saying(text), WRITER, mode="rejection", tries=2, directory=tmp_path, shuffle=False)
    (row,) = rows_of(traces)
    assert (row.accepted, row.verdict, row.tries, row.tail) == (False, verdict, 2, "")


def test_reasons_that_cannot_stand_in_an_answer_are_cleaned(tmp_path: Path) -> None:
    class Odd(Saying):
        def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
            return [Proposal("x", (0, 1, 2, 3), Verdict.OK, " A</thi</think>nk> \ud800b ", 1, 1)] * len(asked.prompts)

    traces = collect(requests_of(1), Odd(), WRITER, mode="rejection", directory=tmp_path, shuffle=False)
    assert traces.column("completion") == ["<think>A b</think><answer>[1, 2, 3, 4]</answer>"]


def test_requests_without_a_target_are_asked_about_by_nobody_and_counted(tmp_path: Path) -> None:
    requests = Requests.of([[0, 1], [0, 1, 2], [0, 1]], [[0, 0], [2, 2, 2], [0, 3]])
    teacher = Saying("<think>Up.</think><answer>[2, 1]</answer>")
    traces = collect(requests, teacher, WRITER, mode="rejection", directory=tmp_path, shuffle=False)
    assert len(teacher.asked[0].prompts) == 1
    assert [(row.verdict, row.tries, row.target, row.incoming) for row in rows_of(traces)] == [
        ("NO_TARGET", 0, -1, 0), ("NO_TARGET", 0, -1, 0), ("OK", 1, 1, 2),
    ]  # fmt: skip
    assert traces.statistics().no_target == 2
    assert traces.statistics().acceptance == 1.0


def test_any_of_several_best_candidates_is_right_and_one_of_them_is_told(tmp_path: Path) -> None:
    requests = Requests.of([[0, 1, 2]] * 60, [[0, 2, 2]] * 60)
    assert best(requests)[0].tolist() == [False, True, True]
    two = Saying("<think>Up.</think><answer>[2, 1, 3]</answer>")
    traces = collect(requests, two, WRITER, mode="rejection", tries=1, directory=tmp_path / "a", shuffle=False)
    assert all(traces.column("accepted"))
    assert set(traces.column("target")) == {1}
    teacher = Saying("<think>Up.</think><answer>[2, 1, 3]</answer>")
    collect(requests, teacher, WRITER, tries=1, directory=tmp_path / "b", shuffle=False)
    assert set(teacher.targets[0].tolist()) == {1, 2}


def test_the_incoming_place_is_that_of_the_first_stage_where_requests_came_shuffled(tmp_path: Path) -> None:
    shuffled = requests_of(8).reordered(np.array([[3, 2, 1, 0]] * 8))
    traces = collect(shuffled, RuleTeacher(Levels()), WRITER, directory=tmp_path)
    assert traces.column("incoming") == [1, 2, 3, 4, 1, 2, 3, 4]
    assert traces.column("target") == [3, 2, 1, 0, 3, 2, 1, 0]


@pytest.mark.parametrize("mode", ["rejection", "targeted"])
def test_neither_batches_nor_an_earlier_stop_change_a_trace(mode: str, tmp_path: Path) -> None:
    requests, teacher = requests_of(23), RuleTeacher(Levels())
    made: list[Any] = []
    told: list[int] = []
    for batch in (1, 4, 100):
        folder = tmp_path / str(batch)
        traces = collect(requests, teacher, WRITER, mode=mode, directory=folder, batch=batch, on_progress=told.append)
        made.append(traces.table)
    assert made[0].equals(made[1])
    assert made[1].equals(made[2])
    assert told[:2] == [0, 1]
    assert told[-2:] == [0, 23]
    again: list[int] = []
    assert collect(requests, teacher, WRITER, mode=mode, directory=folder, on_progress=again.append).table.equals(
        made[2]
    )
    assert again == [23]


def test_shuffled_orders_are_drawn_for_each_request_and_other_seeds_draw_others(tmp_path: Path) -> None:
    requests, teacher = requests_of(300), RuleTeacher(Levels())
    orders_of = {
        seed: collect(requests, teacher, WRITER, directory=tmp_path / str(seed), seed=seed).column("order")
        for seed in (0, 1)
    }
    assert len({tuple(order) for order in orders_of[0]}) == 24  # of 4 candidates, 300 draws
    assert sum(a == b for a, b in zip(orders_of[0], orders_of[1], strict=True)) < 40  # 12.5 expected
    plain = collect(requests, teacher, WRITER, directory=tmp_path / "plain", shuffle=False)
    assert plain.column("order") == [[0, 1, 2, 3]] * 300


def test_every_try_of_every_request_has_a_seed_of_its_own_in_the_range_of_servers(tmp_path: Path) -> None:
    teacher = Saying("no")
    collect(requests_of(50), teacher, WRITER, mode="rejection", tries=3, directory=tmp_path)
    assert len(set(teacher.seeds)) == 150
    assert 0 <= min(teacher.seeds) <= max(teacher.seeds) < 2**31
    assert seeds(0, np.arange(3), 1).tolist() == seeds(0, np.arange(9), 1)[:3].tolist()


def test_drawn_numbers_are_uniform_and_orders_are_all_equally_likely() -> None:
    drawn = uniform(keys(7, Purpose.NOISE, np.arange(20_000)), 3)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 4 / np.sqrt(12 * 60_000)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4 / np.sqrt(20_000)
    assert abs(gumbel(keys(7, Purpose.NOISE, np.arange(20_000)), 3).mean() - np.euler_gamma) < 4 * 1.2826 / np.sqrt(
        60_000
    )
    sizes_B = np.array([3, 2] * 6_000)
    found = orders(keys(1, Purpose.ORDER, np.arange(12_000)), sizes_B, 4)
    assert (found[sizes_B == 2, 2:] == -1).all()
    counts = Counter(map(tuple, found[sizes_B == 3, :3].tolist()))
    assert len(counts) == 6
    assert max(abs(count - 1000) for count in counts.values()) < 4 * np.sqrt(6000 * 5 / 36)


class Dying:
    """A server that dies: the first `answers` proposals come, then an error."""

    name = "dying"

    def __init__(self, answers: float) -> None:
        self.left, self.asked = answers, 0

    def stream(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> Iterator[tuple[int, Proposal]]:
        for row in reversed(range(len(asked.prompts))):
            if self.left <= 0:
                raise ServerError("the server is dead")
            self.left -= 1
            self.asked += 1
            first = 1 + int(seeds_B[row]) % 4
            rest = ", ".join(str(place) for place in range(1, 5) if place != first)
            text = f"<think>{seeds_B[row]}</think><answer>[{first}, {rest}]</answer>"
            yield row, read(settling.some(asked, [row]), [text], [3], [2])[0]

    def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
        raise AssertionError("a teacher that streams is asked to")


@pytest.mark.parametrize("answers", [0, 1, 7, 8, 13, 30])
def test_a_dead_teacher_is_its_own_error_and_what_it_said_is_kept(answers: int, tmp_path: Path) -> None:
    requests = requests_of(20)
    given: dict[str, Any] = {"mode": "rejection", "batch": 8, "tries": 5}
    whole = collect(requests, unharmed := Dying(np.inf), WRITER, directory=tmp_path / "whole", **given)
    with pytest.raises(ServerError, match="^the server is dead$"):
        collect(requests, Dying(answers), WRITER, directory=tmp_path / "dead", **given)
    second = Dying(np.inf)
    traces = collect(requests, second, WRITER, directory=tmp_path / "dead", **given)
    assert traces.table.equals(whole.table)
    assert second.asked == unharmed.asked - answers


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_traces as here

class Killed(here.Dying):
    def stream(self, asked, **given):
        for row, proposal in super().stream(asked, **given):
            with open(sys.argv[3], "a") as file:
                file.write(f"{given['seeds_B'][row]}\\n")
            yield row, proposal
            self.count = getattr(self, "count", 0) + 1
            if self.count == int(sys.argv[4]):
                os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[5] == "parts":
    from rerank_env.training.language.traces import collecting
    collecting.SECONDS_BETWEEN = 0.0
teacher, given = Killed(float("inf")), {"mode": "rejection", "batch": 8, "tries": 4}
here.collect(here.requests_of(40), teacher, here.WRITER, directory=sys.argv[2], **given)
"""


@pytest.mark.parametrize(("keeping", "kills"), [("journal", (3, 17)), ("parts", (31,))])
def test_killed_in_the_middle_nothing_is_paid_for_twice_and_traces_are_those_of_a_run_that_was_not(
    keeping: str, kills: tuple[int, ...], tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    given: dict[str, Any] = {"mode": "rejection", "batch": 8, "tries": 4}
    for kill_after in kills:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / "killed"), str(calls),
             str(kill_after), keeping],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == -9, done.stderr
    paid = calls.read_text().split()
    assert len(paid) == len(set(paid)) == sum(kills)
    last = Dying(np.inf)
    traces = collect(requests_of(40), last, WRITER, directory=tmp_path / "killed", **given)
    whole = collect(requests_of(40), unharmed := Dying(np.inf), WRITER, directory=tmp_path / "whole", **given)
    assert traces.table.equals(whole.table)
    assert len(paid) + last.asked == unharmed.asked == whole.statistics().calls
    assert (len(list((tmp_path / "killed").glob("part-*"))) > 1) == (keeping == "parts")


def test_a_teacher_that_answers_too_few_or_twice_is_an_error(tmp_path: Path) -> None:
    class Short(Saying):
        def propose(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> list[Proposal]:
            return super().propose(asked, targets_B=targets_B, seeds_B=seeds_B)[1:]

    class Twice(Dying):
        def stream(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> Iterator[tuple[int, Proposal]]:
            yield from [*super().stream(asked, targets_B=targets_B, seeds_B=seeds_B)][:1] * 2

    class Silent(Dying):
        def stream(self, asked: Asked, *, targets_B: Any, seeds_B: Any) -> Iterator[tuple[int, Proposal]]:
            yield from ()

    for place, (teacher, message) in enumerate(
        (
            (Short("x"), "gave 2 proposals for 3 prompts"),
            (Twice(9), "answered row 2 twice or unasked"),
            (Silent(9), "gave no answer to row 0"),
        )
    ):
        with pytest.raises(InputError, match=message):
            collect(requests_of(3), teacher, WRITER, directory=tmp_path / str(place))


def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    def asked(**changes: Any) -> Traces:
        given = {"writer": WRITER, **changes}
        return collect(requests_of(2), Saying("x"), given.pop("writer"), directory=tmp_path / "none", **given)

    with pytest.raises(UnknownNameError, match="did you mean 'rejection'"):
        asked(mode="rejecting")
    with pytest.raises(UnknownNameError, match="unknown engine"):
        asked(engine="spark")
    for changes in ({"tries": 0}, {"batch": 0}, {"seed": -1}, {"writer": PromptWriter("list")}):
        with pytest.raises(InputError):
            asked(**changes)
    assert not (tmp_path / "none").exists()


def test_remarks_are_put_on_while_collecting_and_stay_with_their_candidates(tmp_path: Path) -> None:
    def remarked(requests: Requests) -> Requests:
        words = np.vectorize(lambda item: f"near {item}", otypes=[object])(requests.candidates_BK)
        return replace(requests, remarks_BK=words)

    teacher = Saying("no")
    writer = PromptWriter("tagged-list", prompt="evidence")
    collect(requests_of(5), teacher, writer, directory=tmp_path, mode="rejection", tries=1, prepare=remarked)
    for row, prompt in enumerate(teacher.asked[0].prompts):
        for place, item in enumerate(teacher.asked[0].order_BK[row].tolist(), start=1):
            (line,) = [line for line in prompt.user.splitlines() if line.startswith(f"{place}. ")]
            assert f"item {item}" in line
            assert f"near {item}" in line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::ResourceWarning", "ignore::FutureWarning:ray")
def test_collecting_on_ray_gives_the_same_traces(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)  # so that there is one worker
    requests, teacher = requests_of(30), RuleTeacher(Levels())
    here = collect(requests, teacher, WRITER, mode="rejection", directory=tmp_path / "local")
    there = collect(requests, teacher, WRITER, mode="rejection", directory=tmp_path / "ray", engine="ray", batch=7)
    assert there.table.equals(here.table)
    given: dict[str, Any] = {"mode": "rejection", "batch": 7}
    whole = collect(requests, unharmed := Dying(np.inf), WRITER, directory=tmp_path / "whole", **given)
    with pytest.raises(ServerError, match="^the server is dead$"):
        collect(requests, Dying(9), WRITER, directory=tmp_path / "dead", engine="ray", **given)
    last = Dying(np.inf)
    assert collect(requests, last, WRITER, directory=tmp_path / "dead", **given).table.equals(whole.table)
    assert last.asked == unharmed.asked - 9
    ray.shutdown()


def test_a_random_order_of_the_library_and_of_the_rows_agree_in_law() -> None:
    sizes_B = np.full(6_000, 3)
    ours = Counter(map(tuple, orders(keys(0, Purpose.TAIL, np.arange(6_000)), sizes_B, 3).tolist()))
    theirs = Counter(map(tuple, random_rankings(sizes_B, 3, np.random.default_rng(0)).tolist()))
    assert max(abs(ours[order] - theirs[order]) for order in theirs) < 4 * np.sqrt(2 * 6000 * 5 / 36)


def test_a_policy_of_this_process_teaches_at_a_temperature_and_is_told_the_target_in_the_prompt(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tiny import tiny_model, tiny_tokenizer

    from rerank_env.agents.language.decoding import Decoding
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.training.language.traces import LocalTeacher
    from rerank_env.training.language.traces.prompting import shown, targeted

    requests, tokenizer = requests_of(3, 2), tiny_tokenizer()
    model = tiny_model(tokenizer)
    policy = LanguagePolicy(model, tokenizer, WRITER, decoding=Decoding(max_tokens=24, constrained=True))
    teacher = LocalTeacher(policy, name="tiny")
    assert teacher.decoding == Decoding(max_tokens=24, constrained=True, temperature=1.0)
    asked = shown(requests, np.array([[0, 1]] * 3), WRITER)
    seeds_B, targets_B = np.array([4, 5, 6]), np.array([1, 0, 1])
    said = teacher.propose(asked, targets_B=targets_B, seeds_B=seeds_B)
    assert [proposal.verdict for proposal in said] == [Verdict.OK] * 3  # a random model, but constrained
    assert said == teacher.propose(asked, targets_B=targets_B, seeds_B=seeds_B)
    assert said != teacher.propose(asked, targets_B=targets_B, seeds_B=seeds_B + 1)
    for told in (None, targets_B):
        prompts = asked.prompts if told is None else targeted(asked, told).prompts
        counts = [len(ids) for ids in policy.prompt_ids(prompts)]
        assert [p.tokens_in for p in teacher.propose(asked, targets_B=told, seeds_B=seeds_B)] == counts
    assert all(0 < proposal.tokens_out <= 24 for proposal in said)
    traces = collect(requests, teacher, WRITER, mode="rejection", directory=tmp_path, tries=2)
    assert traces.column("teacher") == ["tiny"] * 3
    assert traces.manifest["teacher_fingerprint"] == teacher.fingerprint
    others = [LocalTeacher(policy, decoding=Decoding()), LocalTeacher(policy, name="other")]
    assert len({teacher.fingerprint, *(other.fingerprint for other in others)}) == 3
    before = teacher.fingerprint
    model.lm_head.weight.data.mul_(1.5)
    assert teacher.fingerprint != before
