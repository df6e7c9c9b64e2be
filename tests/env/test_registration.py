"""The ways in: ids, entry points, saved specs, and what the package shows."""

import copy
import inspect
import json
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

import rerank_env
from rerank_env.data import Requests
from rerank_env.env import RerankEnv
from rerank_env.rewards.errors import InputError, UnknownNameError
from rerank_env.vector_env import RerankVectorEnv


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_make_works_in_a_fresh_interpreter_without_importing_the_package() -> None:
    code = (
        "import gymnasium as gym\n"
        "env = gym.make('rerank_env:Rerank-v0')\n"
        "env.reset(seed=0)\n"
        "print(env.step(env.action_space.sample())[2])\n"
        "envs = gym.make_vec('rerank_env:Rerank-v0', num_envs=3)\n"
        "print(type(envs).__name__)\n"
    )
    assert run(code).split() == ["True", "RerankVectorEnv"]


def test_importing_the_package_loads_no_library_beyond_the_core() -> None:
    code = (
        "import sys, rerank_env\n"
        "print([m for m in ('torch', 'scipy.stats', 'typer', 'hypothesis', 'rerank_env.env') if m in sys.modules])\n"
        "import rerank_env.env, rerank_env.vector_env, rerank_env.wrappers\n"
        "print([m for m in ('torch', 'typer', 'hypothesis', 'ray') if m in sys.modules])\n"
    )
    assert run(code).split() == ["[]", "[]"]


def test_importing_twice_registers_once() -> None:
    assert run("import rerank_env, importlib\nimportlib.reload(rerank_env)\nprint('quiet')").split() == ["quiet"]


def test_all_is_sorted_and_importable() -> None:
    assert rerank_env.__all__ == sorted(rerank_env.__all__)
    for name in rerank_env.__all__:
        assert getattr(rerank_env, name) is not None
    assert set(rerank_env.__all__) <= set(dir(rerank_env))


def test_subpackages_and_errors_are_reached_from_the_root_without_an_import_of_their_own() -> None:
    code = (
        "import sys, rerank_env\n"
        "print([m for m in sys.modules if m.startswith('rerank_env.') and m != 'rerank_env.lazy'])\n"
        "print(rerank_env.data.load.__name__, rerank_env.rewards.gain.__name__, rerank_env.agents.Random.__name__)\n"
        "try:\n"
        "    rerank_env.load('sinthetic')\n"
        "except rerank_env.errors.UnknownNameError as error:\n"
        "    print(type(error).__name__)\n"
    )
    assert run(code).split() == ["[]", "load", "gain", "Random", "UnknownNameError"]
    from rerank_env.rewards import errors

    assert rerank_env.errors is errors
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert all(name in rerank_env.__doc__ for name in raised)


def test_training_is_reached_from_the_root_where_torch_is_installed() -> None:
    pytest.importorskip("torch")
    assert rerank_env.training.__name__ == "rerank_env.training"


def test_the_root_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rerank_env.nothing


@pytest.mark.parametrize("form", [RerankEnv, RerankVectorEnv])
def test_registered_arguments_are_the_defaults_of_both_forms(form: type) -> None:
    registered = gym.spec("Rerank-v0").kwargs
    parameters = {
        name: list(p.default) if isinstance(p.default, tuple) else p.default
        for name, p in inspect.signature(form).parameters.items()
        if name not in ("num_envs", "render_mode")
    }
    assert registered == parameters


def test_a_spec_survives_json_and_makes_the_same_environment() -> None:
    env = gym.make("rerank_env:Rerank-v0", action="pick", reward="gr2(alpha=0.1)", kind="next_item", split="test")
    saved = env.unwrapped.spec.to_json()
    assert json.loads(saved)["kwargs"]["reward"] == "gr2(alpha=0.1)"
    again = gym.make(EnvSpec.from_json(saved))
    assert again.unwrapped.spec.kwargs == env.unwrapped.spec.kwargs
    assert str(again.unwrapped.task.reward) == str(env.unwrapped.task.reward)
    first, second = env.reset(seed=5)[0], again.reset(seed=5)[0]
    assert all((first[key] == second[key]).all() for key in first)


def test_the_wrapped_spec_and_the_vector_spec_survive_json_too() -> None:
    env = gym.make("rerank_env:Rerank-v0")
    assert EnvSpec.from_json(env.spec.to_json()).id == "Rerank-v0"
    envs = gym.make_vec("rerank_env:Rerank-v0", num_envs=4, action="scores")
    again = gym.make_vec(EnvSpec.from_json(envs.spec.to_json()))
    assert again.num_envs == 4
    assert again.task.action == "scores"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"action": "rankings"}, "unknown action kind 'rankings'; did you mean 'ranking'"),
        ({"data": "movielens100k"}, "did you mean 'movielens-100k'"),
        ({"split": "tset"}, "did you mean 'test'"),
        ({"kind": "next-item"}, "did you mean 'next_item'"),
        ({"ties": "rnadom"}, "did you mean 'random'"),
        ({"text_format": "jsn"}, "did you mean 'json'"),
        ({"reward": "gian"}, "did you mean 'gain'"),
        ({"metrics": ["ndgc@10"]}, "did you mean 'ndcg"),
        ({"data_options": {"slate_sise": 5}}, "did you mean 'slate_size'"),
    ],
)
@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
def test_an_unknown_name_is_one_sentence_with_the_nearest_name(make, arguments: dict, sentence: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        make("rerank_env:Rerank-v0", **arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"metrics": "ndcg@10"},
        {"metrics": 3},
        {"metrics": [3]},
        {"reward": 3},
        {"data": 3},
        {"data": None},
        {"split": ["train"]},
        {"kind": 3},
        {"action": ["ranking"]},
        {"text_format": None},
        {"data_options": 3},
        {"data_options": {5: 5}},
        {"data_options": {"split": "test"}},
        {"data_options": {"name": "synthetic"}},
        {"data_options": {"slate_size": [5]}},
        {"data_options": {"seed": -1}},
    ],
)
def test_an_argument_of_the_wrong_type_is_an_input_error(arguments: dict) -> None:
    with pytest.raises(InputError):
        gym.make("rerank_env:Rerank-v0", **arguments)


@pytest.mark.parametrize("arguments", [{"split": "test"}, {"kind": "next_item"}, {"data_options": {"seed": 1}}])
def test_requests_come_without_the_arguments_that_choose_some(arguments: dict, requests: Requests) -> None:
    [name] = arguments
    with pytest.raises(InputError, match=f"{name} came with Requests.*leave it out"):
        RerankEnv(requests, **arguments)


def test_an_unknown_render_mode_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ansi'"):
        RerankEnv(render_mode="ansy")


@pytest.mark.parametrize("num_envs", [0, -1, 2.5, True, "4"])
def test_a_vector_form_needs_a_whole_number_of_environments(num_envs: object) -> None:
    with pytest.raises(InputError, match="num_envs"):
        RerankVectorEnv(num_envs=num_envs)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [RerankEnv, RerankVectorEnv])
def test_data_without_a_request_is_refused_and_said_why(requests, form: type) -> None:
    empty = replace(requests.take([]), notes=("6 of 6 slates left out",))
    with pytest.raises(InputError, match=r"holds no requests \(6 of 6 slates left out\)"):
        form(data=empty)


def test_a_spec_shares_the_data_it_was_made_with(requests) -> None:
    env = gym.make("rerank_env:Rerank-v0", data=requests)
    envs = gym.make_vec("rerank_env:Rerank-v0", num_envs=2, data=requests)
    for spec in (env.spec, env.unwrapped.spec, envs.spec, gym.wrappers.TransformReward(env, abs).spec):
        assert spec.kwargs["data"] is requests
    assert copy.deepcopy(requests) is requests
    assert copy.deepcopy(requests.catalog) is requests.catalog
