"""verifiers 0.4: requests as a taskset, found by the real loader, played and scored by the real machinery."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verifiers", reason="needs the verifiers extra")

import verifiers.v1 as vf
from contract import REWARDS, Case, cases
from pydantic import ValidationError

from rerank_env.data import Requests
from rerank_env.rewards import FunctionReward, InputError, Slates, Verdict, register_reward
from rerank_env.rewards.scoring import Scored
from rerank_env.training.adapters.records import request_rows, signals
from rerank_env.training.adapters.verifiers import RerankConfig, RerankData, RerankTask, RerankTaskConfig, RerankTaskset

ID = "rerank-env"
PLAYED = 34
"""How many completions of each text format go through whole episodes: the 17 kinds in turn, and as many drawn."""

TWO = Requests.of([[0, 1, 2], [2, 1, 0]], [[0, 0, 1], [2, 0, 1]])
"""Request 0 is best answered [3, ...], request 1 [1, 3, 2]."""


class OwnTaskset(RerankTaskset):
    """Requests that no name stands for."""

    def requests(self) -> Requests:
        return TWO


def config_of(case: Case, reward: str) -> vf.TasksetConfig:
    """The configuration, as a file or a command line gives it, that makes the requests of the case."""
    options = {"requests": len(case.requests), "slate_size": 9, "min_slate_size": 2, "history": 4}
    given = {"id": ID, "data_options": options, "task": {"reward": reward, "text_format": case.text_format}}
    return vf.taskset_config_type(ID).model_validate(given)


def own_task(row: int = 0, **settings: Any) -> RerankTask:
    """One of the two requests as a task."""
    return list(OwnTaskset(RerankConfig(task=RerankTaskConfig(**settings))))[row]


def trace_of(task: vf.Task, reply: str | None) -> vf.Trace:
    """The trace of a model that replied so, or not at all."""
    told = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    said = [vf.SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
    said.append(vf.UserMessage(content=task.data.prompt))
    nodes = [vf.MessageNode(parent=i - 1 if i else None, message=message) for i, message in enumerate(said)]
    if reply is not None:
        nodes.append(vf.MessageNode(parent=len(said) - 1, message=vf.AssistantMessage(content=reply), sampled=True))
    return vf.Trace(task=told, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=nodes)


def score(task: vf.Task, reply: str | None) -> vf.Trace:
    """The trace after scoring."""
    trace = trace_of(task, reply)
    asyncio.run(task.score(trace))
    return trace


def check(case: Case, expected: Scored, traces: Sequence[vf.Trace]) -> None:
    """Exact equality with the core path: the total, every part, and every flag."""
    assert [trace.rewards["total"].score for trace in traces] == expected.total_B[: len(traces)].tolist()
    assert [trace.reward for trace in traces] == expected.total_B[: len(traces)].tolist()
    flags = signals(expected, case.slates)
    assert all(trace.metrics.keys() == flags.keys() for trace in traces)
    for name, values_B in flags.items():
        assert [trace.metrics[name] for trace in traces] == values_B[: len(traces)].tolist()
    read = [verdict is Verdict.OK for verdict in case.verdicts[: len(traces)]]
    assert [bool(trace.metrics["valid"]) for trace in traces] == read


def test_the_loader_finds_the_taskset_by_the_name_of_the_distribution() -> None:
    case = cases()[0]
    taskset = vf.load_taskset(config_of(case, "gr2"))
    assert type(taskset) is RerankTaskset
    tasks = list(taskset)
    assert vf.task_type(ID) is RerankTask
    assert [task.data.idx for task in tasks] == list(range(len(case.requests)))
    rows = request_rows(case.requests, text_format=case.text_format)
    asked = [[("system", task.data.system_prompt), ("user", task.data.prompt)] for task in tasks]
    assert [[tuple(message.values()) for message in row.pop("prompt")] for row in rows] == asked
    assert [task.data.row for task in tasks] == rows
    assert len({task.key for task in tasks}) == len(tasks)
    assert [task.data.idx for task in taskset.include(idx=["5:7"])] == [5, 6]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.text_format)
def test_every_completion_earns_what_it_earns_in_the_core(case: Case) -> None:
    for reward in REWARDS:
        tasks = list(vf.load_taskset(config_of(case, reward)))

        async def scored(row: int, completion: str, tasks: list[vf.Task] = tasks) -> vf.Trace:
            trace = trace_of(tasks[row], completion)
            await tasks[row].score(trace)
            return trace

        async def scored_all(scored: Callable[[int, str], Any] = scored) -> list[vf.Trace]:
            return await asyncio.gather(*map(scored, case.rows, case.completions))

        check(case, case.expected(reward), asyncio.run(scored_all()))


@contextmanager
def model(completions: Sequence[str]) -> Iterator[vf.EvalClientConfig]:
    """An endpoint on this machine where the model called "7" replies with completion 7."""

    class Replies(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = {"role": "assistant", "content": completions[int(asked["model"])]}
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            reply = {"id": "0", "object": "chat.completion", "created": 0, "model": asked["model"]}
            body = json.dumps({**reply, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield vf.EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="RERANK_TEST_KEY")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def played(config: vf.TasksetConfig, rows: Sequence[int], client: vf.EvalClientConfig) -> list[vf.Episode]:
    """One whole episode an answer, several at once, through the harness, the interception and the scoring."""
    agent = {"harness": {"id": "direct-harness"}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(vf.resolve_env_config({"taskset": config.model_dump(), "agent": agent}))
    tasks, at_once = list(env.taskset), asyncio.Semaphore(8)
    async with env.serving():
        episodes = (
            env.run_slot(env.slots(tasks[row])[0], vf.ModelContext(model=str(answer), client=client), at_once)
            for answer, row in enumerate(rows)
        )
        return list(await asyncio.gather(*episodes))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.text_format)
def test_whole_episodes_earn_what_the_core_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_TEST_KEY", "none")
    reward = REWARDS[cases().index(case) % len(REWARDS)]
    with model(case.completions) as client:
        episodes = asyncio.run(played(config_of(case, reward), case.rows[:PLAYED], client))
    assert [error.message for episode in episodes for trace in episode.traces for error in trace.errors] == []
    assert all(episode.ok and len(episode.traces) == 1 for episode in episodes)
    check(case, case.expected(reward), [episode.traces[0] for episode in episodes])
    saved = [vf.WireEpisode.model_validate(json.loads(json.dumps(episode.to_record()))) for episode in episodes]
    check(case, case.expected(reward), [episode.traces[0] for episode in saved])


def test_a_length_in_tokens_is_that_of_the_models_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_TEST_KEY", "none")
    case = cases()[0]
    for reward, earned in [("length(most=7)", 1.0), ("length(most=6)", 0.0)]:  # the model reports 7 tokens
        with model(case.completions) as client:
            (episode,) = asyncio.run(played(config_of(case, reward), case.rows[:1], client))
        assert episode.traces[0].reward == earned


def test_a_saved_trace_scores_the_same_and_may_be_scored_under_another_reward() -> None:
    trace = score(own_task(reward="gr2"), "[3, 1, 2]")
    # The one relevant candidate rises from place 2 to place 0 of 3, and the bonus of 0.2 is paid.
    assert trace.reward == 2 / 3 + 0.2
    record = json.loads(trace.model_dump_json())
    data = RerankData.model_validate(record["task"]["data"])
    assert score(RerankTask(data, RerankTaskConfig(reward="gr2")), "[3, 1, 2]").reward == 2 / 3 + 0.2
    assert score(RerankTask(data, RerankTaskConfig(reward="gain")), "[3, 1, 2]").reward == 0.5  # NDCG from 1/2 to 1
    asked_otherwise = RerankTask(data, RerankTaskConfig(text_format="arrows"))
    with pytest.raises(vf.TaskError, match="asks for the text format 'list' but the reward reads 'arrows'"):
        score(asked_otherwise, "[3] > [1] > [2]")


def test_blanks_around_a_reply_are_read_as_they_were_written() -> None:
    trace = score(own_task(), "\u00a0[3, 1, 2]")  # a no-break space is no blank, though str.strip takes it away
    assert trace.last_reply == "[3, 1, 2]"
    assert trace.metrics["verdict/malformed"] == 1.0
    assert trace.reward == -1.1


def test_the_reply_of_the_root_agent_comes_before_the_last_message() -> None:
    task = own_task()
    trace = trace_of(task, "[1, 2, 3]")
    trace.root_reply = "[3, 1, 2]"
    asyncio.run(task.score(trace))
    assert trace.reward == 0.5


def test_a_trace_without_a_reply_is_an_error_and_stays_unscored() -> None:
    task = own_task()
    trace = trace_of(task, None)
    with pytest.raises(vf.TaskError, match="no reply of the model"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"total": None}
    assert trace.metrics == {"signals": None}


def ratio_of_the_tests(rankings_BK: Any, slates: Slates) -> Any:
    """Fails on every answer that puts candidate 0 first."""
    if (rankings_BK[:, 0] == 0).any():
        raise ZeroDivisionError("first")
    return np.ones(len(slates))


@pytest.mark.parametrize("on_error", ["raise", "isolate"])
def test_a_fault_of_the_reward_is_an_error_of_the_task_and_never_a_number(on_error: Any) -> None:
    name = f"ratio_of_the_tests_{on_error}"
    register_reward(name, FunctionReward(ratio_of_the_tests, name, 0.0, 1.0, -1.0, on_error=on_error))
    task = own_task(reward=name)
    assert score(task, "[3, 1, 2]").reward == 1.0
    trace = trace_of(task, "[1, 2, 3]")
    with pytest.raises(vf.TaskError, match=rf"RewardError: .*{name}.*ZeroDivisionError"):
        asyncio.run(task.score(trace))
    assert trace.rewards == {"total": None}


def test_a_reward_that_has_no_place_here_is_refused_at_construction() -> None:
    for settings, complaint in [
        ({"reward": "ndcg@10 + 0.5*consistency"}, "in verifiers, .* needs groups.*train with TrlReward"),
        ({"reward": "ndcg@10*linear(start=1, end=0, steps=10)"}, "in verifiers, .* needs step"),
        ({"reward": "gian"}, "did you mean 'gain'"),
        ({"text_format": "lists"}, "did you mean 'list'"),
        ({"max_chars": 0}, "max_chars"),
    ]:
        with pytest.raises(ValidationError, match=complaint):
            RerankTaskConfig(**settings)
        with pytest.raises(ValidationError, match=complaint):
            vf.taskset_config_type(ID).model_validate({"id": ID, "task": settings})


def test_a_reward_that_needs_a_log_is_refused_before_the_first_task() -> None:
    needs_clicks = OwnTaskset(RerankConfig(task=RerankTaskConfig(reward="click_credit")))
    with pytest.raises(InputError, match="the column 'clicks' is missing"):
        list(needs_clicks)


def test_importing_the_training_package_does_not_load_the_peer() -> None:
    code = "import sys, rerank_env.training, rerank_env.training.adapters; print('verifiers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_without_the_peer_the_adapter_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['verifiers'] = None\n"
        "from rerank_env.rewards.errors import MissingExtraError\n"
        "try: import rerank_env.training.adapters.verifiers\n"
        "except MissingExtraError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "rerank-env[verifiers]"' in ran.stdout
