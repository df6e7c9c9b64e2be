"""The language policy: what it answers, that nothing is repaired, and that a folder gives the same policy again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import taught_model, tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents import Evidence, Policy  # noqa: E402
from rerank_env.agents.evidence.remarks import EvidenceRemarks  # noqa: E402
from rerank_env.agents.language import AnswerConstraint, Decoding, LanguagePolicy, Repaired  # noqa: E402
from rerank_env.data import Requests, load  # noqa: E402
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.prompts import Budget, PromptWriter, TokensOf, ask, template_of  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError  # noqa: E402
from rerank_env.rewards.formats import FORMATS  # noqa: E402
from rerank_env.rewards.rankings import Verdict, verdicts  # noqa: E402
from rerank_env.semantic_ids import SemanticIds  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),  # PEFT looks for a nameless base
]


SHORT = replace(
    template_of("2"), version="short", opening="Rank.", answers=dict.fromkeys(FORMATS, "Order:"), seen="- {item}"
)
"""A prompt that a model of some thousand weights can be taught to answer."""

WRITER = PromptWriter(prompt=SHORT)


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=8, slate_size=3, history=2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def taught(tokenizer: Any, requests: Requests) -> Any:
    """A model that answers most requests with a list of three in any order."""
    rng = np.random.default_rng(0)
    asked = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter()).ask(requests)
    prompts = [
        tokenizer.apply_chat_template(prompt.chat, tokenize=False, add_generation_prompt=True)
        for prompt in asked.prompts
    ]
    return taught_model(tokenizer, prompts * 6, [str((1 + rng.permutation(3)).tolist()) for _ in prompts * 6])


@pytest.fixture
def policy(taught: Any, tokenizer: Any) -> LanguagePolicy:
    return LanguagePolicy(taught, tokenizer, WRITER, decoding=Decoding(max_tokens=16))


def test_it_is_a_policy_and_names_what_it_wrote(policy: LanguagePolicy, requests: Requests) -> None:
    assert isinstance(policy, Policy)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    rankings = policy.rank(requests, rng=rng)
    assert rng.bit_generator.state == before  # greedy draws nothing
    answers = policy.answers(requests)
    read, codes = answers.read()
    np.testing.assert_array_equal(read[:, 0], rankings)
    np.testing.assert_array_equal(
        verdicts(np.where(rankings < 0, 9, rankings), requests.sizes_B) == 0, codes[:, 0] == 0
    )
    for (text,), ranking, (code,) in zip(answers.texts, rankings.tolist(), codes.tolist(), strict=True):
        if code == Verdict.OK:
            assert json.loads(text) == [one + 1 for one in ranking]
        else:
            assert ranking == [-1, -1, -1]
    assert (codes == Verdict.OK).mean() > 0.5


def test_an_answer_that_is_no_ranking_is_not_repaired_unless_it_is_served(tokenizer: Any, requests: Requests) -> None:
    raw = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=8))
    rng = np.random.default_rng(0)
    assert (raw.rank(requests, rng=rng) == -1).all()
    served = Repaired(raw).rank(requests, rng=rng)
    assert (verdicts(served, requests.sizes_B) == Verdict.OK).all()


def test_constrained_answers_are_rankings_of_slates_of_any_size(tokenizer: Any) -> None:
    requests = Requests.of([[0, 1, 2], [3, 4], [5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 11]], [[1, 0, 0], [1, 0], [1] + [0] * 10])
    decoding = Decoding(max_tokens=90, temperature=1.0, constrained=True)
    for text_format in ("list", "tagged-json"):
        raw = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(text_format), decoding=decoding)
        answers, codes = raw.answers(requests, n=3, rng=np.random.default_rng(0)).read()
        assert (codes == Verdict.OK).all()
        assert (answers[1, :, 2:] == -1).all()


def test_samples_come_from_the_generator_and_logprobs_are_exact(policy: LanguagePolicy, requests: Requests) -> None:
    hot = Decoding(max_tokens=16, temperature=1.0)
    one = policy.answers(requests, n=4, rng=np.random.default_rng(3), decoding=hot)
    same = policy.answers(requests, n=4, rng=np.random.default_rng(3), decoding=hot)
    other = policy.answers(requests, n=4, rng=np.random.default_rng(4), decoding=hot)
    assert one.texts == same.texts != other.texts
    assert [len(texts) for texts in one.texts] == [4] * len(requests)
    with torch.no_grad():
        exact = policy.log_prob(requests, [ids[1] for ids in one.ids_BN])
    for logprobs, reference in zip(one.logprobs_BN, exact, strict=True):
        assert logprobs[1] == pytest.approx(reference.tolist(), abs=1e-4)


def test_a_text_is_scored_with_its_end(policy: LanguagePolicy, requests: Requests) -> None:
    two = requests.take([0, 1])
    ids = policy.tokenizer("[2, 1, 3]", add_special_tokens=False)["input_ids"]
    by_text = policy.log_prob(two, ["[2, 1, 3]", "[1]"])
    by_ids = policy.log_prob(two, [[*ids, policy.eos_ids[0]], policy.completion_ids("[1]")])
    assert by_text[0].shape == (len(ids) + 1,)
    for a, b in zip(by_text, by_ids, strict=True):
        assert torch.equal(a, b)
    assert by_text[0].requires_grad


def test_shuffled_prompts_are_read_back_in_the_incoming_order(policy: LanguagePolicy, requests: Requests) -> None:
    asked = policy.ask(requests, rng=np.random.default_rng(0))
    rankings, codes = policy.respond(asked).read()
    straight = asked.read([texts[0] for texts in policy.respond(asked).texts])
    np.testing.assert_array_equal(rankings[:, 0], straight.rankings_BK)
    shown = policy.answers(asked.shown).read()[0]
    moved = np.where(codes[:, 0, None] == 0, np.take_along_axis(asked.order_BK, np.maximum(shown[:, 0], 0), 1), -1)
    np.testing.assert_array_equal(rankings[:, 0], moved)


def test_other_messages_can_be_asked_in_place_of_the_prompts(policy: LanguagePolicy, requests: Requests) -> None:
    asked = policy.ask(requests)
    chats = [prompt.chat for prompt in asked.prompts]
    assert policy.respond(asked, chats=chats).texts == policy.respond(asked).texts
    assert policy.prompt_ids(chats) == policy.prompt_ids(asked.prompts)
    with pytest.raises(InputError, match="1 chats came with 8 prompts"):
        policy.respond(asked, chats=chats[:1])


def test_without_a_chat_template_prompts_are_plain(tokenizer: Any, requests: Requests) -> None:
    plain = tiny_tokenizer(chat_template="")
    policy = LanguagePolicy(tiny_model(plain), plain, PromptWriter())
    asked = policy.ask(requests.take([0]))
    assert plain.decode(policy.prompt_ids(asked.prompts)[0]) == asked.prompts[0].text
    assert policy.prompt_ids([asked.prompts[0].chat]) == policy.prompt_ids(asked.prompts)
    assert policy.prompt_ids([]) == []


def test_no_requests_have_no_answers(policy: LanguagePolicy, requests: Requests) -> None:
    assert policy.rank(requests.take([]), rng=np.random.default_rng(0)).shape == (0, 3)


def test_sampling_without_a_generator_and_models_without_an_end_are_refused(
    policy: LanguagePolicy, requests: Requests
) -> None:
    with pytest.raises(InputError, match="pass rng"):
        policy.answers(requests, decoding=Decoding(temperature=1.0))
    endless = tiny_tokenizer()
    model = tiny_model(endless)
    model.generation_config.eos_token_id = endless.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        LanguagePolicy(model, endless, PromptWriter())


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
    taught: Any, tokenizer: Any, requests: Requests, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    import copy

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(copy.deepcopy(taught), config)
    policy = LanguagePolicy(model, tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))
    plain = LanguagePolicy(taught, tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))
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
        ({"version": 2}, "version 2"),
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
        LanguagePolicy.from_pretrained(tmp_path / "nowhere", writer=PromptWriter())


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


def test_the_constraint_of_a_policy_is_the_one_of_its_requests(policy: LanguagePolicy, requests: Requests) -> None:
    constraint = AnswerConstraint(policy.tokenizer, "list", [3], max_tokens=16, eos_ids=policy.eos_ids)
    assert constraint.allowed(constraint.start(0)).tolist()
    decoding = Decoding(max_tokens=16, constrained=True)
    assert (policy.answers(requests, decoding=decoding).read()[1] == Verdict.OK).all()
