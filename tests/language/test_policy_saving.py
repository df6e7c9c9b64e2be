"""A folder gives the same policy again, and says so where it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents import Evidence  # noqa: E402
from rerank_env.agents.evidence.remarks import EvidenceRemarks  # noqa: E402
from rerank_env.agents.language import Decoding, LanguagePolicy  # noqa: E402
from rerank_env.agents.language.saving import FIELDS  # noqa: E402
from rerank_env.data import Requests, load  # noqa: E402
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.prompts import Budget, PromptWriter, TokensOf, ask  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError  # noqa: E402
from rerank_env.semantic_ids import SemanticIds  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),  # PEFT looks for a nameless base
]


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=8, slate_size=3, history=2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture
def policy(tokenizer: Any) -> LanguagePolicy:
    return LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))


def test_a_folder_gives_the_same_answers_byte_for_byte(
    policy: LanguagePolicy, requests: Requests, tmp_path: Path
) -> None:
    policy.writer = PromptWriter("list", prompt_budget=Budget(4000, TokensOf(policy.tokenizer), keep=1))
    policy.save_pretrained(tmp_path / "policy")
    again = LanguagePolicy.from_pretrained(tmp_path / "policy")
    assert again.decoding == policy.decoding
    assert again.writer.template == policy.writer.template
    assert again.writer.budget is not None
    assert (again.writer.budget.limit, again.writer.budget.keep) == (4000, 1)
    assert again.answers(requests).ids_BN == policy.answers(requests).ids_BN
    hot = Decoding(max_tokens=9, temperature=1.0)
    replaced = LanguagePolicy.from_pretrained(tmp_path / "policy", writer=PromptWriter("arrows"), decoding=hot)
    assert (replaced.writer.text_format, replaced.decoding) == ("arrows", hot)
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")  # anybody's transformers reads it
    assert torch.equal(plain.lm_head.weight, policy.model.lm_head.weight)


def test_semantic_ids_and_remarks_come_back(tokenizer: Any, requests: Requests, tmp_path: Path) -> None:
    items = len(requests.catalog)
    codes = np.stack([np.arange(items) // 8, np.arange(items) % 8], axis=1)
    ids = SemanticIds.of(codes, [items, 8], texts=requests.catalog.texts, method="by hand")
    model = tiny_model(tokenizer)
    LanguagePolicy(model, tokenizer, PromptWriter("json", prompt="3-id", semantic_ids=ids)).save_pretrained(tmp_path)
    again = LanguagePolicy.from_pretrained(tmp_path)
    assert (
        again.ask(requests).answer_ids
        == ask(requests, PromptWriter("json", prompt="3-id", semantic_ids=ids)).answer_ids
    )
    texts = [f"ID_{item}" for item in range(items)]
    LanguagePolicy(model, tokenizer, PromptWriter("json", prompt="3-id", semantic_ids=texts)).save_pretrained(tmp_path)
    assert LanguagePolicy.from_pretrained(tmp_path).ask(requests).answer_ids[0][0].startswith("ID_")


def test_remarks_are_put_on_requests_that_have_none(
    tokenizer: Any, remarks: EvidenceRemarks, requests: Requests, tmp_path: Path
) -> None:
    policy = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter("list", prompt="compact"), remarks=remarks)
    bare = policy.ask(requests)
    assert [p.text for p in bare.prompts] == [p.text for p in policy.ask(remarks.on(requests)).prompts]
    policy.save_pretrained(tmp_path)
    again = LanguagePolicy.from_pretrained(tmp_path)
    assert [p.text for p in again.ask(requests).prompts] == [p.text for p in bare.prompts]
    policy.remarks = None
    policy.save_pretrained(tmp_path)  # what only the policy before had is gone
    assert not (tmp_path / "remarks" / "config.json").exists()
    with pytest.raises(InputError, match="remarks"):
        LanguagePolicy.from_pretrained(tmp_path).ask(requests)


@pytest.fixture
def remarks(requests: Requests) -> EvidenceRemarks:
    items = requests.history_BH[requests.history_BH >= 0]
    count, texts = len(items), requests.catalog.texts
    log = Interactions(
        np.arange(count) // 2, items, np.ones(count), np.arange(count) + 0.0, texts,
        np.zeros((len(texts), 0), dtype=np.float32), (), (),
    )  # fmt: skip
    evidence = Evidence.fit(log, np.ones(count, dtype=bool))
    return EvidenceRemarks.fit(evidence, requests, features=("score_z",), levels=4)


def test_an_adapter_is_saved_with_its_base_and_can_be_put_on_another(
    tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    base = tiny_model(tokenizer)
    import copy

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(copy.deepcopy(base), config)
    policy = LanguagePolicy(model, tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))
    plain = LanguagePolicy(base, tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))
    with torch.no_grad():
        expected = torch.cat(policy.log_prob(requests, ["[2, 1, 3]"] * len(requests)))
        assert not torch.allclose(expected, torch.cat(plain.log_prob(requests, ["[2, 1, 3]"] * len(requests))))

    def same(other: LanguagePolicy) -> bool:
        with torch.no_grad():
            found = torch.cat(other.log_prob(requests, ["[2, 1, 3]"] * len(requests)))
        return torch.allclose(found, expected, atol=1e-5) and other.answers(requests).texts == texts

    texts = policy.answers(requests).texts
    policy.save_pretrained(tmp_path / "adapted")
    again = LanguagePolicy.from_pretrained(tmp_path / "adapted")
    assert same(again)
    assert any(weights.requires_grad for name, weights in again.model.named_parameters() if "lora" in name)
    plain.save_pretrained(tmp_path / "plain")
    on_top = LanguagePolicy.from_pretrained(tmp_path / "plain", adapter=tmp_path / "adapted")
    assert same(on_top)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "plain")
    policy.save_pretrained(tmp_path / "alone", with_base=False)
    assert not (tmp_path / "alone" / "base").exists()
    assert same(LanguagePolicy.from_pretrained(tmp_path / "alone"))
    model.peft_config["default"].base_model_name_or_path = ""
    with pytest.raises(InputError, match="with_base=True"):
        policy.save_pretrained(tmp_path / "nameless", with_base=False)


def test_torn_and_foreign_folders_are_told(policy: LanguagePolicy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "good")

    def broken(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tmp_path / "good", folder)
        return folder

    with (broken("torn") / "model.safetensors").open("ab") as file:
        file.write(b"more")
    (broken("edited") / "tokenizer_config.json").write_text("{}")
    (broken("gone") / "config.json").unlink()
    (broken("no json") / "policy.json").write_text("{")
    (broken("no record") / "policy.json").write_text("[]")
    for name in ("torn", "edited", "gone"):
        with pytest.raises(CheckpointError, match="not saved together"):
            LanguagePolicy.from_pretrained(tmp_path / name)
    for name in ("no json", "no record"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            LanguagePolicy.from_pretrained(tmp_path / name)
    record = json.loads((tmp_path / "good" / "policy.json").read_text())
    for change, said in (
        ({"kind": "token"}, "'token' policy"),
        ({"version": 3}, "version 3"),
        ({"decoding": {"beams": 4}}, "the decoding in .* does not make sense"),
        ({"template_hash": "0"}, "pass a writer"),
        ({"text_format": "lst"}, "does not make sense"),
    ):
        (tmp_path / "good" / "policy.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(CheckpointError, match=said):
            LanguagePolicy.from_pretrained(tmp_path / "good")
    (tmp_path / "good" / "policy.json").unlink()
    with pytest.raises(InputError, match="pass writer"):
        LanguagePolicy.from_pretrained(tmp_path / "good")
    assert LanguagePolicy.from_pretrained(tmp_path / "good", writer=PromptWriter()).decoding == Decoding()
    with pytest.raises(CheckpointError, match="cannot be read"):
        (tmp_path / "empty").mkdir()
        LanguagePolicy.from_pretrained(tmp_path / "empty", writer=PromptWriter())


def test_a_name_that_leads_to_no_policy_says_why_and_what_to_give(policy: LanguagePolicy, tmp_path: Path) -> None:
    for writer in (None, PromptWriter()):
        with pytest.raises(InputError, match="nowhere does not exist"):
            LanguagePolicy.from_pretrained(tmp_path / "nowhere", writer=writer)
    with pytest.raises(InputError, match="nobody/nothing does not exist; .* a hub id and a writer"):
        LanguagePolicy.from_pretrained("nobody/nothing")
    policy.save_pretrained(tmp_path / "seed-0" / "policy")
    with pytest.raises(InputError, match="holds a policy in a folder of its own; give .*seed-0/policy"):
        LanguagePolicy.from_pretrained(tmp_path / "seed-0")


@pytest.mark.parametrize("wrong", [{"dtype": "foo"}, {"dtype": 3}, {"device": "foo"}, {"device": "cuda:99"}])
def test_a_dtype_or_device_that_there_is_not_is_one_sentence(
    policy: LanguagePolicy, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    policy.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is .*; give"):
        LanguagePolicy.from_pretrained(tmp_path, **wrong)


def test_completions_of_which_each_request_has_several_are_told_from_one_each(policy: LanguagePolicy) -> None:
    requests = load("synthetic", requests=8, slate_size=3, history=2).take(np.arange(2))
    with pytest.raises(InputError, match=r"completion 0 is a list of 2 completions; give one a request"):
        policy.log_prob(requests, [["[1, 2, 3]", "[2, 1, 3]"]] * 2)  # type: ignore[list-item]


def test_a_record_of_an_earlier_release_is_read_where_it_says_all_and_named_where_it_does_not(
    policy: LanguagePolicy, tmp_path: Path
) -> None:
    policy.save_pretrained(tmp_path)
    path = tmp_path / "policy.json"
    record = json.loads(path.read_text())
    assert set(record) == {"kind", "version", *FIELDS}
    path.write_text(json.dumps({**record, "version": 1}))
    assert LanguagePolicy.from_pretrained(tmp_path).decoding == policy.decoding
    for name in FIELDS:
        for version in (1, record["version"]):
            path.write_text(json.dumps({key: v for key, v in record.items() if key != name} | {"version": version}))
            with pytest.raises(CheckpointError, match=rf"{tmp_path}.* says nothing of {name}, .*use that release"):
                LanguagePolicy.from_pretrained(tmp_path)


def test_saving_again_keeps_what_others_put_there(policy: LanguagePolicy, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a card")
    policy.save_pretrained(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}")
    policy.save_pretrained(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == "{}"
    assert (tmp_path / "README.md").read_text() == "a card"
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))


def test_a_place_that_cannot_be_written_is_one_sentence(policy: LanguagePolicy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        policy.save_pretrained(tmp_path / "file" / "policy")


def test_what_cannot_be_saved_is_said(policy: LanguagePolicy, tmp_path: Path) -> None:
    policy.writer = PromptWriter(prompt_budget=Budget(4000, lambda text: len(text.split())))
    with pytest.raises(InputError, match="budget"):
        policy.save_pretrained(tmp_path)

    class Table:
        def text(self, item: int) -> str:
            return str(item)

    policy.writer = PromptWriter(prompt="3-id", semantic_ids=Table())
    with pytest.raises(InputError, match="Table"):
        policy.save_pretrained(tmp_path)
