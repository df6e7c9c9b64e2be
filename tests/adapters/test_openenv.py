"""OpenEnv 0.10: the environment in process and over a socket, and rewards as rubrics."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("openenv", reason="needs the openenv extra")

import uvicorn
from contract import REWARDS, Case, cases, every
from openenv.core import Action
from openenv.core.rubrics import Gate, Rubric, WeightedSum

from rerank_env.data import Requests
from rerank_env.episodes import EpisodeError
from rerank_env.rewards import FunctionReward, InputError, Ndcg, Reward, Slates, UnknownNameError, Verdict, testing
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.training.adapters.openenv import (
    RerankAction,
    RerankClient,
    RerankEnvironment,
    RerankObservation,
    application,
)
from rerank_env.training.adapters.openenv_rubrics import HEAVIEST, Branch, Number, Part, RewardRubric

SESSIONS = 8

TWO = Requests.of([[0, 1, 2], [2, 1, 0]], [[0, 0, 1], [2, 0, 1]])
"""Request 0 is best answered [3, ...], request 1 [1, 3, 2]."""


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of a real server of `app` on a free port of this machine, in a thread."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


async def answered(address: str, rows: Sequence[int], completions: Sequence[str]) -> list[RerankObservation]:
    """What `SESSIONS` clients at once get for the answers, each client taking every `SESSIONS`th of them."""

    found: list[RerankObservation] = [RerankObservation.model_construct()] * len(rows)

    async def session(first: int) -> None:
        async with RerankClient(address) as client:
            for answer in range(first, len(rows), SESSIONS):
                await client.reset(request=rows[answer])
                result = await client.step(RerankAction(completion=completions[answer]))
                assert (result.reward, result.done) == (result.observation.reward, True)
                found[answer] = result.observation

    await asyncio.gather(*(session(first) for first in range(SESSIONS)))
    return found


def check(case: Case, expected: Scored, observations: list[RerankObservation]) -> None:
    """Exact equality with the core path, part by part, and the flags that the answers deserve."""
    assert [observation.request for observation in observations] == list(case.rows)
    assert [observation.reward for observation in observations] == expected.total_B.tolist()
    for name, values_B in expected.parts.items():
        assert [observation.parts[name] for observation in observations] == values_B.tolist()
    assert [observation.verdict for observation in observations] == [verdict.name for verdict in case.verdicts]
    for observation, ranking, verdict in zip(observations, expected.rankings_BK.tolist(), case.verdicts, strict=True):
        valid = verdict is Verdict.OK
        assert observation.ranking == (ranking[: observation.size] if valid else [])
        assert observation.identity == (valid and ranking[: observation.size] == list(range(observation.size)))


@pytest.mark.parametrize("number", range(len(cases())), ids=[case.text_format for case in cases()])
def test_every_completion_earns_over_the_wire_what_it_earns_in_the_core(number: int) -> None:
    case, reward = cases()[number], REWARDS[number % len(REWARDS)]
    app = application(case.requests, reward=reward, text_format=case.text_format, sessions=SESSIONS)
    with serving(app) as address:
        observations = asyncio.run(answered(address, case.rows, case.completions))
    check(case, case.expected(reward), observations)


def test_every_completion_earns_in_process_what_it_earns_in_the_core() -> None:
    for case, reward in every():
        env = RerankEnvironment(case.requests, reward=reward, text_format=case.text_format)
        observations = []
        for row, completion in zip(case.rows, case.completions, strict=True):
            env.reset(request=row)
            observations.append(env.step(RerankAction(completion=completion)))
        check(case, case.expected(reward), observations)


def test_sessions_do_not_mix() -> None:
    with (
        serving(application(TWO, sessions=2)) as address,
        RerankClient(address).sync() as one,
        RerankClient(address).sync() as other,
    ):
        prompts = [client.reset(request=row).observation.prompt for row, client in enumerate((one, other))]
        assert prompts[0] != prompts[1]
        with pytest.raises(RuntimeError, match="request 2 does not exist"):
            other.reset(request=2)  # leaves both episodes as they are
        # The best order of request 0, for both: its gain of 1 moves from place 3 (discount 1/2) to place 1, 1 - 1/2.
        best, worse = (client.step(RerankAction(completion="[3, 1, 2]")) for client in (one, other))
        assert best.reward == 0.5
        assert worse.reward < 0
        assert [best.observation.request, worse.observation.request] == [0, 1]
        states = [one.state(), other.state()]
        assert [state.request for state in states] == [0, 1]
        assert [state.step_count for state in states] == [1, 1]
        assert states[0].episode_id != states[1].episode_id


def test_a_step_before_reset_or_after_the_end_is_a_clear_error_and_the_session_lives_on() -> None:
    with serving(application(TWO)) as address, RerankClient(address).sync() as client:
        answer = RerankAction(completion="[1, 2, 3]")
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"no request has been asked in this session.*call reset"):
                client.step(answer)
            client.reset()
            assert client.step(answer).done


class Numbers(Action):
    """Not what the server expects."""

    completion: list[int]


def test_an_answer_that_is_no_text_is_refused_by_the_schema() -> None:
    with serving(application(TWO)) as address, RerankClient(address).sync() as client:
        client.reset()
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.step(Numbers(completion=[1, 2, 3]))
        assert client.step(RerankAction(completion="[1, 2, 3]")).reward == 0.0


def test_the_command_serves_the_data_and_the_reward_it_is_given(
    start: Callable[[list[Any]], subprocess.Popen[str]],
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = "rerank_env.training.adapters.openenv"
    server = start([sys.executable, "-m", module, "--data", "synthetic", "--reward", "gr2", "--port", str(port)])
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert server.poll() is None, server.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with RerankClient(f"http://127.0.0.1:{port}").sync() as client:
        size = client.reset(seed=0).observation.size
        result = client.step(RerankAction(completion=json.dumps([*range(1, size + 1)])))
        # Echoing promotes nothing; the bonus of 0.2 is paid where the first candidate was worth being first.
        assert result.reward in (0.0, 0.2)
        assert result.observation.identity
        assert client.state().reward == "rank_promotion + 0.2*valid_format.when(improved | kept_first)"
    server.send_signal(signal.SIGINT)
    server.wait(timeout=20)


def test_a_server_that_could_not_play_is_refused_before_it_starts() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'synthetic'"):
        application("synthetik")
    with pytest.raises(UnknownNameError, match="unknown split"):
        application("synthetic", split="trian")
    with pytest.raises(InputError, match="split came with Requests"):
        application(TWO, split="test")


def test_the_same_seed_asks_the_same_requests_and_no_seed_goes_on() -> None:
    env, again = RerankEnvironment(), RerankEnvironment()
    asked = [env.reset(seed=3).request] + [env.reset().request for _ in range(5)]
    assert asked == [again.reset(seed=3).request] + [again.reset().request for _ in range(5)]
    assert len(set(asked)) > 1


def test_reset_refuses_what_it_does_not_know() -> None:
    env = RerankEnvironment(TWO)
    for arguments, complaint in [
        ({"request": 2}, "request 2 does not exist; the data has requests 0..1"),
        ({"request": -1}, "request is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"row": 1}, r"reset was given \['row'\]"),
    ]:
        with pytest.raises(InputError, match=complaint):
            env.reset(**arguments)
    with pytest.raises(EpisodeError):
        env.step(RerankAction(completion="[1, 2, 3]"))


def test_what_was_handed_out_cannot_change_the_episode() -> None:
    env = RerankEnvironment(TWO)
    observation, state = env.reset(request=0, episode_id="mine"), env.state
    observation.request = 1
    assert env.step(RerankAction(completion="[3, 1, 2]")).reward == 0.5  # that of request 0, as derived above
    assert (state.episode_id, state.step_count, env.state.step_count) == ("mine", 0, 1)


def test_an_observation_says_nothing_of_the_labels_before_the_answer() -> None:
    shown = RerankEnvironment(TWO).reset(request=0).model_dump()
    empty = {"reward": None, "verdict": None, "identity": None, "ranking": None, "parts": None}
    asked = {"prompt", "messages", "dropped", "shortened", "request", "size", "step", "done", "metadata", "failures"}
    assert shown.items() >= empty.items()
    assert shown.keys() == empty.keys() | asked


def test_a_schedule_follows_the_step_that_reset_is_told() -> None:
    env = RerankEnvironment(TWO, reward="ndcg@10*linear(start=1.0, end=0.0, steps=10)")
    env.reset(request=0, step=5)
    assert env.step(RerankAction(completion="[3, 1, 2]")).reward == 0.5  # NDCG 1, half way to 0
    env.reset(request=0)
    with pytest.raises(InputError, match="needs step.*pass step to reset"):
        env.step(RerankAction(completion="[3, 1, 2]"))


def test_a_length_in_tokens_comes_with_the_action() -> None:
    env = RerankEnvironment(TWO, reward="length(most=4)")
    for tokens, earned in [(4, 1.0), (5, 0.0)]:
        env.reset(request=0)
        assert env.step(RerankAction(completion="[3, 1, 2]", tokens=tokens)).reward == earned
    env.reset(request=0)
    with pytest.raises(InputError, match="needs tokens.*give the action its length"):
        env.step(RerankAction(completion="[3, 1, 2]"))


def ratio_of_the_tests(rankings_BK: Any, slates: Slates) -> Any:
    """Fails on every answer that puts candidate 0 first."""
    if (rankings_BK[:, 0] == 0).any():
        raise ZeroDivisionError("first")
    return np.ones(len(slates))


def test_a_fault_is_an_error_or_where_it_is_isolated_the_declared_score_and_said() -> None:
    bounds = {"name": "ratio_of_the_tests", "low": 0.0, "high": 1.0, "invalid": -1.0}
    raising = RerankEnvironment(TWO, reward=FunctionReward(ratio_of_the_tests, **bounds))
    with serving(application(TWO, reward=raising.rubric.reward)) as address, RerankClient(address).sync() as client:
        client.reset(request=0)
        with pytest.raises(RuntimeError, match="ratio_of_the_tests"):
            client.step(RerankAction(completion="[1, 2, 3]"))
    isolating = FunctionReward(ratio_of_the_tests, **bounds, on_error="isolate")
    env = RerankEnvironment(TWO, reward=0.5 * isolating + 0.25 * Ndcg())
    env.reset(request=0)
    failed = env.step(RerankAction(completion="[1, 2, 3]"))
    assert failed.reward == -0.5  # 0.5 * -1 + 0.25 * 0, the invalid scores
    assert failed.verdict == "OK"
    assert len(failed.failures) == 1
    assert "ratio_of_the_tests" in failed.failures[0]
    env.reset(request=0)
    assert env.step(RerankAction(completion="[3, 1, 2]")).reward == 0.75


def test_a_reward_that_has_no_place_here_is_refused_at_construction() -> None:
    with pytest.raises(InputError, match="in OpenEnv, .* needs groups.*train with TrlReward"):
        RerankEnvironment(TWO, reward="ndcg@10 + 0.5*consistency")
    with pytest.raises(InputError, match="needs clicks, which is not known here"):
        RerankEnvironment(TWO, reward="click_credit")


def rubrics_of(reward: str | Reward, completion: str) -> dict[str, Rubric]:
    """The named rubrics after that answer to request 0, the root under the empty name."""
    env = RerankEnvironment(TWO, reward=reward)
    env.reset(request=0)
    env.step(RerankAction(completion=completion))
    return {"": env.rubric, **dict(env.rubric.named_rubrics())}


def test_the_rubrics_of_gr2_show_its_parts() -> None:
    rubrics = rubrics_of("gr2", "[3, 1, 2]")
    # The one relevant candidate rises from place 2 to place 0 of 3: 2/3. It improved, so the bonus 0.2 is paid.
    assert {name: (repr(rubric), rubric.last_score) for name, rubric in rubrics.items() if type(rubric) is Part} == {
        "valid.rubric": ("<(1).when(valid)>", 1.0),
        "total.rubric_0": ("<rank_promotion>", 2 / 3),
        "total.rubric_1.gate.rubric": ("<(1).when(improved | kept_first)>", 1.0),
        "total.rubric_1.then": ("<valid_format>", 1.0),
    }
    assert isinstance(rubrics["total"], WeightedSum)
    assert rubrics["total"].weights == pytest.approx([1.0, 0.2, -0.2])
    assert isinstance(rubrics["total.rubric_1"], Branch)
    assert repr(rubrics["total.rubric_1"]) == "<valid_format.when(improved | kept_first)>"
    assert isinstance(rubrics["valid"], Gate)
    assert isinstance(rubrics["total.rubric_1.gate"], Gate)
    assert isinstance(rubrics["total.rubric_2"], Number)  # takes the rest of the weight, and scores 0
    assert rubrics[""].last_score == rubrics["total"].last_score == 2 / 3 + 0.2


def test_a_part_that_an_answer_did_not_reach_has_no_score() -> None:
    rubrics = rubrics_of("gr2", "[1, 2, 3]")  # echoes, and the first candidate is not relevant: no bonus
    assert rubrics["total.rubric_1"].last_score == 0.0
    assert rubrics["total.rubric_1.otherwise"].last_score == 0.0
    assert rubrics["total.rubric_1.then"].last_score is None
    rubrics = rubrics_of("gain", "prose")
    assert rubrics[""].last_score == -1.1
    assert rubrics["valid"].last_score == 0.0
    assert rubrics["total"].last_score is None


def test_reset_forgets_the_scores_of_the_last_answer() -> None:
    env = RerankEnvironment(TWO, reward="gr2")
    env.reset(request=0)
    env.step(RerankAction(completion="[3, 1, 2]"))
    env.reset(request=0)
    assert {rubric.last_score for _, rubric in env.rubric.named_rubrics()} == {None}


def test_a_sum_with_weights_too_large_for_openenv_stays_whole() -> None:
    reward = HEAVIEST * Ndcg() + 0.25
    rubrics = rubrics_of(reward, "[3, 1, 2]")
    assert type(rubrics["total"]) is Part
    assert rubrics[""].last_score == HEAVIEST + 0.25


def test_rubrics_work_inside_a_running_event_loop() -> None:
    async def scored() -> object:
        env = RerankEnvironment(TWO, reward="gr2")
        env.reset(request=0)
        return env.step(RerankAction(completion="[3, 1, 2]")).reward

    assert asyncio.run(scored()) == 2 / 3 + 0.2


@settings(max_examples=60)
@given(st.data())
def test_the_rubric_of_any_reward_gives_its_total_to_the_last_bit(data: st.DataObject) -> None:
    reward = data.draw(testing.rewards())
    slates = data.draw(testing.slates(max_requests=3))
    rankings_BK = data.draw(testing.rankings_of(slates, invalid=True))
    texts = [str([int(candidate) + 1 for candidate in ranking if candidate >= 0]) for ranking in rankings_BK]
    expected_B = Scorer(reward)(texts, slates).total_B
    rubric = RewardRubric(reward, slates)
    for row, text in enumerate(texts):
        asked = RerankObservation(prompt="", request=row, size=int(slates.sizes_B[row]))
        assert rubric(RerankAction(completion=text), asked) == expected_B[row]


def test_without_the_peer_the_adapter_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['openenv'] = None\n"
        "import rerank_env.training\n"
        "from rerank_env.rewards.errors import MissingExtraError\n"
        "for module in ('openenv', 'openenv_rubrics'):\n"
        "    try: __import__(f'rerank_env.training.adapters.{module}')\n"
        "    except MissingExtraError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.count('pip install "rerank-env[openenv]"') == 2
