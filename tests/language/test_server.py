"""A model behind a real server process on loopback: replies in order, bounded tries, and one sentence when it fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openai")
pytest.importorskip("pyarrow")

from rerank_env.agents.language.server import ServerModel, ServerPolicy
from rerank_env.agents.policy import Policy
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.errors import InputError, RerankError, ServerError
from rerank_env.training.language.traces import ServerTeacher, collect
from rerank_env.training.language.traces.prompting import HINT

HERE = Path(__file__).parent
Served = Callable[..., ServerModel]


def chats(count: int) -> list[list[dict[str, str]]]:
    """Chats whose last message has 1, 2, 3, ... characters."""
    return [[{"role": "user", "content": "x" * (row + 1)}] for row in range(count)]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Starts `replying_server` and gives the model behind it; ends it with the test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running: list[subprocess.Popen[str]] = []

    def start(behaviour: str = "ok", **settings: Any) -> ServerModel:
        command = [sys.executable, str(HERE / "replying_server.py"), str(tmp_path / "log"), behaviour]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        return ServerModel(f"http://127.0.0.1:{port}/v1", "tiny", **{"retries": 0, "timeout": 20.0, **settings})

    yield start
    for process in running:
        process.kill()
        process.communicate()


def requested(tmp_path: Path) -> list[dict[str, Any]]:
    """What the server was sent."""
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_replies_come_in_the_order_of_the_chats_however_late_they_are(served: Served, tmp_path: Path) -> None:
    server = served("late", concurrency=4, max_tokens=9, temperature=0.5, top_p=0.9, extra={"min_p": 0.1})
    replies = server.complete(chats(8), seeds=range(100, 108))
    assert [reply.text for reply in replies] == [f"{100 + row}:{row + 1}" for row in range(8)]
    assert {(reply.tokens_in, reply.tokens_out, reply.finished, reply.reasoning) for reply in replies} == {
        (11, 7, True, "")
    }
    sent = requested(tmp_path)
    assert {request["path"] for request in sent} == {"/v1/chat/completions"}
    fields = ("model", "max_tokens", "temperature", "top_p", "min_p")
    assert [sent[0][name] for name in fields] == ["tiny", 9, 0.5, 0.9, 0.1]
    assert max(request["at_once"] for request in sent) == 4


def test_no_key_is_sent_that_was_not_given(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not to be told")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/nowhere")
    server = served("ok")
    server.complete(chats(1))
    assert requested(tmp_path)[0]["key"] == "Bearer none"
    ServerModel(server.base_url, "tiny", api_key="mine").complete(chats(1))
    assert requested(tmp_path)[1]["key"] == "Bearer mine"
    assert "mine" not in repr(ServerModel(server.base_url, "tiny", api_key="mine"))
    assert "seed" not in requested(tmp_path)[0] or requested(tmp_path)[0]["seed"] is None


def test_reasons_that_a_server_takes_out_are_put_back_and_no_text_is_an_empty_one(served: Served) -> None:
    (thinking,) = served("thinking").complete(chats(1), seeds=[5])
    assert (thinking.text, thinking.reasoning) == ("5:1", "Hm.")
    assert thinking.completion("tagged-list") == "<think>Hm.</think>5:1"
    assert thinking.completion("list") == "5:1"
    (silent,) = served("silent", max_tokens=1).complete(chats(1))
    assert (silent.text, silent.completion("tagged-list"), silent.tokens_in, silent.tokens_out) == ("", "", 0, 0)
    assert not silent.finished


def test_what_passes_is_tried_again_and_what_lasts_is_not_tried_for_ever(served: Served, tmp_path: Path) -> None:
    replies = served("flaky", retries=3, concurrency=1).complete(chats(2))
    assert [reply.text for reply in replies] == ["None:1", "None:2"]
    assert len(requested(tmp_path)) == 4
    (tmp_path / "log").unlink()
    assert len(served("busy", retries=3).complete(chats(1))) == 1
    assert len(requested(tmp_path)) == 4
    (tmp_path / "log").unlink()
    with pytest.raises(ServerError, match=r"refuses with status 429 \('.*not today.*'\); see that it serves .*'tiny'"):
        served("busy", retries=1).complete(chats(1))
    assert len(requested(tmp_path)) == 2


def test_one_refused_chat_is_an_error_after_those_that_were_under_way_and_the_rest_is_not_sent(
    served: Served, tmp_path: Path
) -> None:
    server = served("refusing", retries=3, concurrency=2)
    asked = chats(30)
    asked[3] = [{"role": "user", "content": "poison"}]
    came = []
    with pytest.raises(ServerError, match="refuses with status 400"):
        for row, _ in server.stream(asked):
            came.append(row)
    assert {0, 1, 2} <= set(came)
    assert 3 not in came
    assert len(requested(tmp_path)) == len(came) + 1 < 30


def test_a_server_that_dies_in_the_middle_is_one_sentence_after_what_came(served: Served) -> None:
    server = served("dying", concurrency=1)
    came = []
    with pytest.raises(ServerError, match=r"did not answer in 1 tries \('.*'\); see that it runs") as caught:
        for row, reply in server.stream(chats(9)):
            came.append((row, reply.text))
    assert came == [(row, f"None:{row + 1}") for row in range(5)]
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, RerankError)
    assert isinstance(caught.value, ConnectionError)
    with pytest.raises(ServerError, match="did not answer"):
        server.check()


def test_a_server_that_hangs_is_given_up_after_the_time_for_one_try(served: Served) -> None:
    began = time.monotonic()
    with pytest.raises(ServerError, match="did not answer in 1 tries"):
        served("hanging", timeout=0.5).complete(chats(1))
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("behaviour", ["web", "nothing", "torn"])
def test_what_is_no_reply_is_an_error_and_not_an_empty_answer(served: Served, behaviour: str) -> None:
    with pytest.raises(ServerError, match=r"which is no reply to a chat|did not answer"):
        served(behaviour).complete(chats(1))


def test_content_in_parts_is_an_error_that_names_the_server() -> None:
    message = SimpleNamespace(content=[{"type": "text", "text": "[1, 2]"}])
    said = SimpleNamespace(choices=[SimpleNamespace(message=message, finish_reason="stop")])
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1/v1 said .* of type list, where a text"):
        ServerModel("http://127.0.0.1:1/v1", "m")._reply(said)


def test_who_stops_listening_sends_no_more(served: Served, tmp_path: Path) -> None:
    stream = served("ok", concurrency=1).stream(chats(200))
    next(stream)
    stream.close()
    assert len(requested(tmp_path)) < 200


def test_a_policy_behind_a_server_reads_answers_strictly(served: Served) -> None:
    policy = ServerPolicy(served("ok"), PromptWriter("list"))
    assert isinstance(policy, Policy)
    requests = Requests.of([[0, 1, 2], [0, 1]], [[0, 0, 1], [1, 0]])
    assert policy.rank(requests, rng=np.random.default_rng(0)).tolist() == [[-1] * 3] * 2


def test_a_server_that_dies_while_traces_are_collected_is_replaced_and_nothing_is_asked_twice(
    served: Served, tmp_path: Path
) -> None:
    requests, writer = Requests.of([[0, 1]] * 5, [[0, 1]] * 5), PromptWriter("tagged-list")
    given: dict[str, Any] = {"mode": "rejection", "tries": 2, "directory": tmp_path / "traces"}
    with pytest.raises(ServerError, match="did not answer"):
        collect(requests, ServerTeacher(served("dying", concurrency=1)), writer, **given)
    answered = requested(tmp_path)[:5]
    (tmp_path / "log").unlink()
    traces = collect(requests, ServerTeacher(served("ok", concurrency=3)), writer, **given)
    seeds = [request["seed"] for request in answered + requested(tmp_path)]
    assert len(seeds) == len(set(seeds)) == traces.statistics().calls == 10
    assert traces.statistics().tokens_in == 110
    assert {request["messages"][0]["role"] for request in answered} == {"system"}


@pytest.mark.parametrize("mode", ["rejection", "targeted"])
def test_only_a_targeted_server_is_told(served: Served, tmp_path: Path, mode: str) -> None:
    requests = Requests.of([[0, 1]] * 2, [[0, 1]] * 2)
    teacher = ServerTeacher(served("thinking"), name="big")
    traces = collect(requests, teacher, PromptWriter("tagged-list"), mode=mode, tries=1, directory=tmp_path / "traces")
    assert [HINT in request["messages"][-1]["content"] for request in requested(tmp_path)] == [mode == "targeted"] * 2
    assert traces.column("teacher") == ["big"] * 2
    others = [ServerModel("http://127.0.0.1:9", "tiny", temperature=0.5), ServerModel("http://127.0.0.1:9", "tiny2")]
    assert len({teacher.fingerprint, *(ServerTeacher(other).fingerprint for other in others)}) == 3
    assert ServerTeacher(ServerModel("http://127.0.0.1:9", "tiny")).fingerprint == teacher.fingerprint


def test_no_chats_need_no_server_and_wrong_seeds_are_refused() -> None:
    nowhere = ServerModel("http://127.0.0.1:9/v1", "tiny")
    assert nowhere.complete([]) == []
    with pytest.raises(InputError, match="2 chats came with 1 seeds"):
        nowhere.complete(chats(2), seeds=[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": "127.0.0.1:8000"}, {"base_url": ""}, {"model": ""}, {"concurrency": 0}, {"retries": -1},
        {"timeout": 0}, {"temperature": -0.1}, {"top_p": 0}, {"top_p": 1.5}, {"max_tokens": 0}, {"timeout": "long"},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=str(next(iter(changes)))):
        ServerModel(**{"base_url": "http://127.0.0.1:9", "model": "tiny", **changes})


@pytest.mark.slow
def test_a_model_served_by_transformers_answers_and_its_traces_are_collected(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("torch")
    from tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(tmp_path / "model")]
    options = ["--port", str(port), "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen([*command, *options], stdout=said, stderr=said, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, tmp_path / "said")
        server = ServerModel(
            f"http://127.0.0.1:{port}/v1", str(tmp_path / "model"), max_tokens=8, temperature=0.0, concurrency=2
        )
        first, second = server.complete([chats(3)[2], chats(3)[2]], seeds=[1, 1])
        assert first == second
        ids = tokenizer.apply_chat_template(chats(3)[2], add_generation_prompt=True, return_dict=True)["input_ids"]
        assert first.tokens_in == len(ids)
        assert 0 < first.tokens_out <= 8
        assert first.text == greedy(model, tokenizer, ids, 8)
        requests = Requests.of([[0, 1]] * 3, [[0, 1]] * 3)
        traces = collect(
            requests, ServerTeacher(server), PromptWriter("tagged-list"), mode="rejection", tries=2,
            directory=tmp_path / "traces",
        )  # fmt: skip
        assert traces.column("tries") == [2] * 3  # a random model answers nothing
        assert min(traces.column("tokens_out")) > 0
        with pytest.raises(ServerError, match="refuses with status 4"):
            ServerModel(server.base_url, "no/such-model", retries=0).check()
    finally:
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], said: Path, seconds: float = 600.0) -> None:
    """Until the server answers; what it said where it does not."""
    until = time.monotonic() + seconds
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until and process.poll() is None:
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(said.read_text()[-2000:])


def greedy(model: Any, tokenizer: Any, ids: list[int], tokens: int) -> str:
    """What the model writes by the likeliest token, one at a time."""
    import torch

    written: list[int] = []
    with torch.no_grad():
        while len(written) < tokens:
            token = int(model(torch.tensor([[*ids, *written]])).logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            written.append(token)
    return str(tokenizer.decode(written, skip_special_tokens=True))
