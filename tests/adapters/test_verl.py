"""verl: the reward function alone, and through verl's own loader, data set and reward managers on the CPU."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import COMPLETIONS, REWARDS, Case, cases

from rerank_env.data import Requests, load
from rerank_env.rewards import FunctionReward, InputError, Ndcg, Slates, gain
from rerank_env.rewards.errors import DataError, UnknownNameError
from rerank_env.rewards.scoring import Scorer
from rerank_env.training.adapters.records import request_rows
from rerank_env.training.adapters.verl import VerlReward, to_verl

needs_verl = pytest.mark.skipif(
    find_spec("verl") is None, reason="needs the verl extra: pip install 'rerank-env[verl]'"
)
needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets: pip install datasets")

pytestmark = pytest.mark.filterwarnings("ignore:Ray state API is no longer experimental:DeprecationWarning")
"""verl imports it from where it was."""

RELEVANCE = [0.0, 2.0, 1.0]


def ones(rankings_BK: np.ndarray, slates: Slates) -> np.ndarray:
    return np.ones(len(slates))


OWN = FunctionReward(ones, name="always_one", low=0, high=1, invalid=-1)


# The reward function, which needs no peer.


def test_an_answer_earns_what_the_scorer_says_and_the_raw_metric_stands_beside_it() -> None:
    # Gains 2, 1, 0 in the ideal order: DCG 2 + 1/log2(3) = 2.63093. Incoming 0, 2, 1: 2/log2(3) + 1/2 = 1.76186.
    told = VerlReward("gain")("MovieLens", "[2, 3, 1]", RELEVANCE, {"size": 3, "index": 4, "num_turns": None})
    assert told["score"] == pytest.approx(0.33033, abs=1e-5)
    assert told["ndcg@10"] == 1.0
    assert (told["verdict"], told["valid"], told["identity"], told["near_identity"]) == ("ok", 1.0, 0.0, 1.0)
    echo = VerlReward("gain")("MovieLens", "[1, 2, 3]", RELEVANCE)
    assert (echo["score"], echo["identity"]) == (0.0, 1.0)
    assert echo["ndcg@10"] == pytest.approx(1.76186 / 2.63093, abs=1e-5)


def test_every_key_is_there_for_every_answer() -> None:
    reward = VerlReward("gr2", metric=Ndcg(k=3))
    told = [reward("d", text, np.array(RELEVANCE)) for text in ("[2, 3, 1]", "[1, 2, 3]", "", "no", "[1, 1, 2]")]
    assert all(answer.keys() == told[0].keys() for answer in told)
    assert "ndcg@3" in told[0] and "part/rank_promotion" in told[0]
    assert [answer["verdict"] for answer in told] == ["ok", "ok", "empty", "malformed", "duplicate"]


def test_what_is_missing_or_does_not_fit_is_named() -> None:
    reward = VerlReward("gain")
    with pytest.raises(DataError, match="relevance of request 0 is None"):
        reward("d", "[1, 2, 3]", None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="size of answer 0 is 4"):
        reward("d", "[1, 2, 3]", RELEVANCE, {"size": 4})
    with pytest.raises(InputError, match="asks for the text format 'json'"):
        reward("d", "[1, 2, 3]", RELEVANCE, {"text_format": "json"})
    with pytest.raises(InputError, match="in verl, .* needs step"):
        VerlReward("linear(start=0, end=1, steps=10)*ndcg")
    with pytest.raises(InputError, match="in verl, .* needs tokens"):
        VerlReward("gain + overlong(limit=9, buffer=2)")
    with pytest.raises(InputError, match="in verl, .* needs groups.*train with TrlReward"):
        VerlReward("gain + 0.1*consistency")
    with pytest.raises(InputError, match="raw metric, cites needs reasonings.*of the ranking alone"):
        VerlReward("gain", metric="cites")
    with pytest.raises(UnknownNameError, match="ndcg"):
        VerlReward("gain", metric="ndgc")


def test_a_reward_survives_pickling() -> None:
    reward = VerlReward("gr2(alpha=0.1)", "json", metric="recall@1")
    assert pickle.loads(pickle.dumps(reward)) == reward


@needs_datasets
def test_a_reward_of_ones_own_needs_the_module_that_registers_it(tmp_path: Path) -> None:
    requests = load("synthetic", requests=8)
    with pytest.raises(InputError, match="always_one is a reward of your own.*name that module in imports"):
        to_verl(requests, OWN, tmp_path)
    with pytest.raises(InputError, match="no name of a module"):
        to_verl(requests, "gain", tmp_path, imports=["os; print(1)"])
    with pytest.raises(InputError, match="'clicks' is missing"):
        to_verl(requests, "click_credit", tmp_path)
    assert not [*tmp_path.iterdir()]


# Through verl's own machinery.


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=8, slate_size=4, min_slate_size=2, history=2)


@pytest.fixture(scope="module")
def model_path(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer, where verl looks for that of the model."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def configured(model_path: Path) -> Callable[..., Any]:
    """verl's own configuration with overrides, as its command line makes it."""

    def configure(*overrides: str) -> Any:
        import verl.trainer.config
        from hydra import compose, initialize_config_dir
        from verl.experimental.reward_loop.reward_loop import migrate_legacy_reward_impl

        [folder] = verl.trainer.config.__path__
        with initialize_config_dir(config_dir=folder, version_base=None):
            config = compose("ppo_trainer", [f"actor_rollout_ref.model.path='{model_path}'", *overrides])
        return migrate_legacy_reward_impl(config)

    return configure


def answered(config: Any, tokenizer: Any, case: Case, data: Path) -> Any:
    """The rows as verl's data set reads them, with the completions as verl's rollouts leave them."""
    import torch
    from verl import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    config.data.filter_overlong_prompts = False
    dataset = RLHFDataset(str(data), tokenizer, config.data)
    batch = DataProto.from_single_dict(collate_fn([dataset[row] for row in case.rows]))
    told = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in case.completions]
    told = [[*ids, tokenizer.eos_token_id] for ids in told]
    width = max(map(len, told))
    responses = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in told])
    prompts = torch.full((len(told), 2), tokenizer.eos_token_id)
    mask = torch.tensor([[1] * (2 + len(ids)) + [0] * (width - len(ids)) for ids in told])
    generated = {"prompts": prompts, "responses": responses, "attention_mask": mask}
    return batch.union(DataProto.from_single_dict(generated))


@needs_verl
@pytest.mark.parametrize("reward", REWARDS)
def test_verl_reports_the_contracts_numbers(
    configured: Callable[..., Any], tokenizer: Any, tmp_path: Path, reward: str
) -> None:
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    compared = 0
    for case in cases():
        files = to_verl(case.requests, reward, tmp_path / case.text_format, text_format=case.text_format)
        config = configured(*files.overrides)
        worker = RewardLoopWorker(config)
        batch = answered(config, tokenizer, case, files.train)
        told = worker.loop.run_until_complete(worker.compute_score_batch(batch))
        expected = case.expected(reward)
        assert [answer["reward_score"] for answer in told] == expected.total_B.tolist(), case.text_format
        extra = [answer["reward_extra_info"] for answer in told]
        metric = config.algorithm.filter_groups.metric
        quality = Scorer("ndcg@10", case.text_format)(case.completions, case.slates).total_B
        assert [float(info[metric]) for info in extra] == quality.tolist()
        for name, part_B in expected.parts.items():
            assert [info[f"part/{name}"] for info in extra] == part_B.tolist()
        rm_scores = type(worker.reward_manager).assemble_rm_scores(batch, [answer["reward_score"] for answer in told])
        assert rm_scores.sum(dim=1).tolist() == expected.total_B.astype(np.float32).tolist()
        compared += len(told)
    assert compared == COMPLETIONS


@needs_verl
def test_the_older_managers_report_the_same_with_lists_of_batch_length(
    configured: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.workers.reward_manager import get_reward_manager_cls

    case = cases()[0]
    files = to_verl(case.requests, "gain", tmp_path, text_format=case.text_format)
    config = configured(*files.overrides)
    function = get_custom_reward_fn(config)
    for name in ("naive", "dapo"):
        manager = get_reward_manager_cls(name)(tokenizer, num_examine=0, compute_score=function)
        told = manager(answered(config, tokenizer, case, files.train), return_dict=True)
        expected = case.expected("gain")
        assert told["reward_tensor"].sum(dim=1).tolist() == expected.total_B.astype(np.float32).tolist()
        assert told["reward_extra_info"]["score"] == expected.total_B.tolist()
        assert {len(values) for values in told["reward_extra_info"].values()} == {len(case.completions)}


@needs_verl
def test_verl_summarises_the_numbers_and_leaves_the_verdict_out(requests: Requests) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    told = [VerlReward("gain")(requests.name, text, [1.0, 0.0]) for text in ("[1, 2]", "[2, 1]", "no")]
    infos = {name: [answer[name] for answer in told] for name in told[0]}
    summary = process_validation_metrics([requests.name] * 3, ["one"] * 3, infos)[requests.name]
    assert summary["valid"]["mean@3"] == pytest.approx(2 / 3)
    assert summary["ndcg@10"]["mean@3"] == pytest.approx((1 + 0.63093 + 0) / 3, abs=1e-5)  # 1/log2(3) for the second
    assert "verdict" not in summary


@needs_verl
def test_rows_reach_verl_as_they_were(
    configured: Callable[..., Any], tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    from verl.utils.dataset.rl_dataset import RLHFDataset

    folder = tmp_path / "it's = {a}, (folder) $x"  # nothing in it means anything to Hydra
    files = to_verl(requests, "gain", folder, validation=requests.take([1]))
    config = configured(*files.overrides, "data.max_prompt_length=2000")
    assert (config.data.train_files, config.data.val_files) == (str(files.train), str(files.validation))
    held_out = RLHFDataset(config.data.val_files, tokenizer, config.data)  # filters long prompts by the chat template
    [read], [row] = [*held_out], request_rows(requests.take([1]))
    assert [*read["raw_prompt"]] == row["prompt"]
    assert (read["data_source"], read["ability"]) == (requests.name, "reranking")
    assert read["reward_model"] == {"style": "rule", "ground_truth": row["relevance"]}
    assert read["extra_info"] == {"index": 0} | {
        name: value for name, value in row.items() if name not in ("prompt", "relevance")
    }


@needs_verl
def test_another_process_finds_a_reward_of_ones_own(requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "from rerank_env.rewards import FunctionReward, register_reward\n"
        "def first(rankings_BK, slates):\n"
        "    return (rankings_BK[:, 0] == 1) * 1.0\n"
        "register_reward('second_first', FunctionReward(first, name='second_first', low=0, high=1, invalid=-1))\n"
    )
    code = "import my_rewards; from pathlib import Path; from rerank_env.data import load\n"
    code += "from rerank_env.training.adapters.verl import to_verl\n"
    code += "requests = load('synthetic', requests=8, slate_size=2)\n"
    code += "to_verl(requests, '2*second_first', Path('files'), imports=['my_rewards'])\n"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300)
    code = "from verl.utils.import_utils import load_extern_object\n"
    code += "score = load_extern_object('files/reward.py', 'compute_score')\n"
    code += "print(score('d', '[2, 1]', [0.0, 1.0])['score'], score('d', '[1, 2]', [0.0, 1.0])['score'])\n"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=300, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["2.0", "0.0"]


@needs_verl
@pytest.mark.slow
def test_verls_workers_report_the_contracts_numbers(
    configured: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    import ray
    from verl.experimental.reward_loop.reward_loop import RewardLoopManager

    case = cases()[-1]
    files = to_verl(case.requests, "gain", tmp_path, text_format=case.text_format)
    config = configured(*files.overrides, "reward.num_workers=1")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        batch = answered(config, tokenizer, case, files.train)
        told = RewardLoopManager(config).compute_rm_score(batch)
    finally:
        ray.shutdown()
    assert told.batch["rm_scores"].sum(dim=1).tolist() == case.expected("gain").total_B.astype(np.float32).tolist()
    keys = told.meta_info["reward_extra_keys"]
    assert {"score", "ndcg@10", "verdict", "valid", f"part/{gain()}"} <= {*keys}
    assert {len(told.non_tensor_batch[key]) for key in keys} == {len(case.completions)}


def test_a_raw_metric_may_not_hide_what_else_verl_is_told():
    mine = FunctionReward(lambda rankings_BK, slates: [0.777] * len(slates), "score", low=0, high=1, invalid=0)
    with pytest.raises(InputError, match="the raw metric score has the name of something else verl is told"):
        VerlReward("gain", metric=mine)
