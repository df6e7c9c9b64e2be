"""A policy is converted weight by weight, and models that cannot be are told why."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.block_diffusion import BlockDecoding, Blocks, check_convertible, convert  # noqa: E402
from rerank_env.agents.block_diffusion.conversion import MASK  # noqa: E402
from rerank_env.agents.language import Decoding, LanguagePolicy  # noqa: E402
from rerank_env.agents.language.scratch import build_model, build_tokenizer  # noqa: E402
from rerank_env.agents.language.vocabulary import tables  # noqa: E402
from rerank_env.data import load  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
]

BASE = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = BASE | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}


def of(family: str, kind: str = "ForCausalLM", **settings: Any) -> Any:
    """A tiny random model of a family."""
    torch.manual_seed(0)
    return getattr(transformers, family + kind)(getattr(transformers, f"{family}Config")(**settings)).eval()


@pytest.fixture
def policy() -> LanguagePolicy:
    tokenizer = tiny_tokenizer()
    return LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=12))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_every_weight_is_the_same_bit_for_bit_and_the_mask_token_is_the_mean(tied: bool, in_place: bool) -> None:
    tokenizer = build_tokenizer(["a red lip colour", "a brush"], vocab_size=400)
    model = build_model(tokenizer, width=16, layers=1, heads=2, seed=0, tied=tied)
    policy = LanguagePolicy(model, tokenizer, PromptWriter("arrows"), decoding=Decoding(max_tokens=9, batch_size=3))
    before, known = copy.deepcopy(model.state_dict()), len(tokenizer)
    made = convert(policy, blocks=Blocks(4), in_place=in_place)
    assert (made.model is model, made.tokenizer is tokenizer) == (in_place, in_place)
    assert (made.blocks, made.writer, made.mask_id) == (Blocks(4), policy.writer, known)
    assert (made.decoding.max_tokens, made.decoding.batch_size) == (9, 3)
    assert len(made.tokenizer) == known + 1
    assert len(tables(made.model)) == (1 if tied else 2)
    after = made.model.state_dict()
    assert after.keys() == before.keys()
    for name, weights in before.items():
        grown = after[name][:known] if weights.shape != after[name].shape else after[name]
        assert torch.equal(grown, weights), name
    for table in tables(made.model):
        assert len(table) == known + 1
        torch.testing.assert_close(table[known], table[:known].mean(dim=0))
    assert made.model.config.vocab_size == known + 1
    if not in_place:
        assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())
        assert (len(tokenizer), tokenizer.mask_token) == (known, None)


def test_the_bias_of_an_output_gets_its_mean_too(policy: LanguagePolicy) -> None:
    known = len(policy.tokenizer)
    policy.model = of("Phi", **GROUPED | {"vocab_size": known})
    with torch.no_grad():
        policy.model.lm_head.bias.copy_(torch.arange(known))
    made = convert(policy, blocks=Blocks(4))
    assert made.model.lm_head.bias[known].item() == pytest.approx((known - 1) / 2)


def test_rows_that_a_vocabulary_was_padded_with_come_first(policy: LanguagePolicy) -> None:
    known = len(policy.tokenizer)
    policy.model.resize_token_embeddings(known + 5, mean_resizing=False)
    with torch.no_grad():
        policy.model.lm_head.weight[known:] = 100.0  # what is in them does not count
    before = copy.deepcopy(policy.model.state_dict())
    made = convert(policy)
    assert made.blocks == Blocks(32)
    for table in tables(made.model):
        assert len(table) == known + 5
        torch.testing.assert_close(table[known], table[:known].mean(dim=0))
    for name, weights in made.model.state_dict().items():
        changed = (weights != before[name]).nonzero()[:, 0].unique().tolist() if weights.ndim else []
        assert changed in ([], [known])


def test_a_token_that_is_there_is_taken_by_name_only(policy: LanguagePolicy) -> None:
    before = copy.deepcopy(policy.model.state_dict())
    made = convert(policy, mask_token="<tool_call>")
    assert made.mask_id == policy.tokenizer.get_vocab()["<tool_call>"]
    assert all(torch.equal(weights, before[name]) for name, weights in made.model.state_dict().items())
    policy.tokenizer, policy.model = made.tokenizer, made.model
    with pytest.raises(InputError, match="has the token '<tool_call>' already; take it by mask_token='<tool_call>'"):
        convert(policy)
    assert convert(policy, mask_token="<tool_call>").mask_id == made.mask_id
    other = tiny_tokenizer(whole=(MASK,))
    with pytest.raises(InputError, match="has the token .* already"):
        convert(LanguagePolicy(tiny_model(other), other, PromptWriter()))
    for name, said in (("<mask>", "is no token"), ("<|im_end|>", "ends or pads"), ("<|endoftext|>", "ends or pads")):
        with pytest.raises(InputError, match=f"mask_token .* {said}"):
            convert(policy, mask_token=name)


def test_texts_are_read_as_before_and_the_mask_is_one_token(policy: LanguagePolicy) -> None:
    made = convert(policy)
    text = "<think>1. Über 42 | near 9</think>\n[2, 1]"
    assert made.tokenizer(text)["input_ids"] == policy.tokenizer(text)["input_ids"]
    assert made.tokenizer(MASK, add_special_tokens=False)["input_ids"] == [made.mask_id]
    assert (made.eos_ids, made.pad_id) == (policy.eos_ids, policy.pad_id)


def test_with_blocks_of_one_token_the_converted_policy_writes_what_the_causal_one_does(policy: LanguagePolicy) -> None:
    requests = load("synthetic", requests=6, slate_size=3, history=2)
    made = convert(policy, blocks=Blocks(1), decoding=BlockDecoding("static(1)", max_tokens=12))
    one, other = made.answers(requests), policy.answers(requests)
    assert one.ids_BN == other.ids_BN
    for blocked, straight in zip(one.logprobs_BN, other.logprobs_BN, strict=True):
        # the mask token is one more that the causal model might write, and the converted one cannot
        assert blocked[0] == pytest.approx(straight[0], abs=1e-4)


def test_an_adapter_is_merged_first(policy: LanguagePolicy) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    policy.model = peft.get_peft_model(policy.model, config)
    check_convertible(policy.model)  # one that is trained later is no obstacle
    with pytest.raises(InputError, match=r"policy\.model = policy\.model\.merge_and_unload\(\)"):
        convert(policy)
    policy.model = policy.model.merge_and_unload()
    assert convert(policy).mask_id == len(policy.tokenizer)


def test_a_model_of_other_tokens_is_refused(policy: LanguagePolicy) -> None:
    policy.model = of("Qwen3", **GROUPED, head_dim=8)
    with pytest.raises(InputError, match=f"has {len(policy.tokenizer)} tokens but the model has 40 rows"):
        convert(policy)


FINE: dict[str, Any] = {
    "Qwen3": GROUPED | {"head_dim": 8}, "Llama": GROUPED, "Mistral": GROUPED | {"sliding_window": None},
    "Gemma": GROUPED | {"head_dim": 8}, "Phi": GROUPED, "GPTNeoX": BASE, "Olmo2": GROUPED, "OPT": BASE | {
        "ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
}  # fmt: skip


@pytest.mark.parametrize("family", FINE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_common_families_can_be_converted(family: str, dtype: str) -> None:
    model = of(family, **FINE[family]).to(getattr(torch, dtype))
    state = torch.random.get_rng_state()
    check_convertible(model.train())
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)


MIXED = GROUPED | {"head_dim": 8}


@pytest.mark.parametrize(
    ("family", "kind", "settings", "said"),
    [
        ("Mistral", "ForCausalLM", GROUPED | {"sliding_window": 16}, "does not keep every token of every layer"),
        ("Gemma2", "ForCausalLM", GROUPED | {"head_dim": 8}, "does not keep every token of every layer"),
        ("Lfm2", "ForCausalLM", GROUPED | {"layer_types": ["conv", "full_attention"]}, "does not .* states or convol"),
        ("Mamba", "ForCausalLM", {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
         "does not take .*position_ids"),
        ("Bloom", "ForCausalLM", {"vocab_size": 40, "hidden_size": 16, "n_layer": 1, "n_head": 4},
         "does not take position_ids, so noisy copies cannot stand where their blocks do"),
        ("T5", "ForConditionalGeneration", {"vocab_size": 40, "d_model": 16, "num_layers": 1, "num_heads": 2},
         "has an encoder beside its decoder"),
        ("GPTNeo", "ForCausalLM", {"vocab_size": 40, "hidden_size": 16, "num_layers": 1, "num_heads": 4,
         "attention_types": [[["global"], 1]], "max_position_embeddings": 64},
         "does not look at what comes later in a block .* causal whatever it is told"),
        ("Bert", "LMHeadModel", BASE, "does not say what it says as a causal model"),
        ("Llama", "Model", GROUPED, "cannot be asked who sees whom"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_converted_is_refused_with_the_reason(
    family: str, kind: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=f"{family}{kind}.* {said}"):
        check_convertible(of(family, kind, **settings))


def test_positions_that_are_numbered_have_an_end_and_relative_ones_have_none() -> None:
    numbered = of("GPT2", "LMHeadModel", **GPT2)
    check_convertible(numbered, tokens=64)
    for limit in (64, 8):
        numbered.config.max_position_embeddings = limit  # of any number of tokens that it is tried with
        with pytest.raises(InputError, match=f"only {limit} of them, but rows of 65 tokens"):
            check_convertible(numbered, tokens=65)
    check_convertible(of("Llama", **GROUPED, max_position_embeddings=64), tokens=65)


def test_virtual_tokens_before_a_prompt_are_refused() -> None:
    peft = pytest.importorskip("peft")
    model = of("Llama", **GROUPED)
    prompted = peft.get_peft_model(model, peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with pytest.raises(InputError, match="puts virtual tokens before the prompt"):
        check_convertible(prompted)


def test_a_decoding_that_is_longer_than_positions_go_is_refused(policy: LanguagePolicy) -> None:
    policy.model = of("GPT2", "LMHeadModel", **GPT2 | {"vocab_size": len(policy.tokenizer)})
    with pytest.raises(InputError, match="only 64 of them, but rows of 101 tokens .* fewer max_tokens"):
        convert(policy, decoding=BlockDecoding(max_tokens=100))
    assert convert(policy, decoding=BlockDecoding(max_tokens=20)).blocks == Blocks()
