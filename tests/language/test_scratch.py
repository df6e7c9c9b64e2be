"""A tokenizer from texts that loses nothing, and models of any size that go with it."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from rerank_env.agents.language.automaton import TAGS
from rerank_env.agents.language.scratch import CHAT_TEMPLATE, build_model, build_tokenizer
from rerank_env.rewards import parse
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids import SemanticIds

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
]

IDS = SemanticIds.of([[0, 1], [1, 0], [2, 2]], (3, 3), texts=["a", "b", "c"])
RNG = np.random.default_rng(0)
REMARKS = [
    "\n".join(
        f"{place}. next {RNG.integers(11)} near {RNG.integers(11)} text {RNG.integers(11)} stage {RNG.integers(11)}"
        for place in range(1, 11)
    )
    for _ in range(200)
]
ANSWERS = [f"[{', '.join(map(str, RNG.permutation(10) + 1))}]" for _ in range(100)]
ANSWERS += [re.sub(r"(\d+), ", r"\1] > [", answer) for answer in ANSWERS]
TOKENIZER = build_tokenizer([*REMARKS, *ANSWERS], vocab_size=600, extra_tokens=IDS.tokens())


def pieces(text, tokenizer=TOKENIZER):
    return [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.text("<|>/thinkaswer_0123 \n[],", max_size=60))
def test_every_text_is_decoded_as_it_was(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text


def test_a_remark_is_one_token_a_word():
    assert pieces("3. next 10 near 0") == ["3", ".", " next 10", " near 0"]


def test_a_number_is_the_same_token_in_a_prompt_in_a_reasoning_and_in_an_answer():
    texts = ["10. next 3", "near [10] [7]", "[3, 10, 1]", "[3] > [10]", '{"ranking": [10]}']
    number = TOKENIZER.convert_tokens_to_ids("10")
    assert all(number in TOKENIZER(text)["input_ids"] for text in texts)


def test_a_ranking_of_ten_takes_two_tokens_a_candidate_and_one():
    assert len(pieces(ANSWERS[0])) == len(pieces(ANSWERS[-1])) == 2 * 10 + 1


def test_a_longer_number_is_cut_into_pairs_wherever_it_stands():
    assert pieces("near 1011 12135") == [*pieces("near"), " ", "10", "11", " ", "12", "13", "5"]


def test_tags_and_semantic_ids_are_one_token_each_and_stay_in_the_text():
    text = f"<think>near</think><answer>[{IDS.text(2)}]</answer>"
    found = pieces(text)
    assert [piece for piece in found if piece.startswith("<")] == [
        *TAGS[:2], TAGS[2], *IDS.words(2), TAGS[3],
    ]  # fmt: skip
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"], skip_special_tokens=True) == text


def test_words_that_are_whole_are_not_learned_in_pieces_too():
    told = ["<|id|><|a_1|><|b_2|><|/id|><think></think>"] * 50
    learned = build_tokenizer(told, vocab_size=600, extra_tokens=IDS.tokens()).get_vocab()
    assert not {token for token in learned if "id|" in token or "think" in token} - {*IDS.tokens(), *TAGS}


def test_extra_tokens_are_found_the_longest_first():
    tokenizer = build_tokenizer(["x"], vocab_size=400, extra_tokens=[" near 1", " near 10"])
    assert pieces(" near 10 near 1", tokenizer) == [" near 10", " near 1"]


def test_token_numbers_leave_no_gap_and_stay_within_the_size():
    for size in (300, 320, 600):
        tokenizer = build_tokenizer(REMARKS, vocab_size=size, extra_tokens=IDS.tokens())
        numbers = sorted(tokenizer.get_vocab().values())
        assert numbers == list(range(len(tokenizer)))
        assert len(tokenizer) <= size


def test_the_same_texts_give_the_same_tokenizer_and_it_comes_back_from_disk(tmp_path):
    from transformers import AutoTokenizer

    again = build_tokenizer([*REMARKS, *ANSWERS], vocab_size=600, extra_tokens=IDS.tokens())
    assert again.get_vocab() == TOKENIZER.get_vocab()
    TOKENIZER.save_pretrained(tmp_path)
    back = AutoTokenizer.from_pretrained(tmp_path)
    assert back.get_vocab() == TOKENIZER.get_vocab()
    assert back.chat_template == CHAT_TEMPLATE
    text = REMARKS[0] + ANSWERS[0] + IDS.text(1)
    assert back(text)["input_ids"] == TOKENIZER(text)["input_ids"]


def test_the_chat_template_marks_what_the_assistant_says():
    turns = [{"role": "user", "content": "next 3"}, {"role": "assistant", "content": "[2, 1]"}]
    told = TOKENIZER.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    said = [token for token, mine in zip(told["input_ids"], told["assistant_masks"], strict=True) if mine]
    assert TOKENIZER.decode(said) == "[2, 1]<|im_end|>"
    asked = TOKENIZER.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.apply_chat_template(turns, tokenize=False).startswith(asked)


def test_a_decoded_answer_is_read_by_the_parser():
    text = "<think>near [3]</think><answer>[2, 1, 3]</answer>"
    ids = TOKENIZER(text)["input_ids"] + [TOKENIZER.eos_token_id]
    assert parse(TOKENIZER.decode(ids, skip_special_tokens=True), 3, text_format="tagged-list").ranking is not None


@pytest.mark.parametrize(
    ("texts", "options", "told"),
    [
        (["x"], {"vocab_size": 262}, "no room"),
        (["x"], {"vocab_size": 300.5}, "whole number"),
        (["", ""], {"vocab_size": 400}, "no text"),
        (["x"], {"vocab_size": 400, "extra_tokens": ["y", "y"]}, "each once"),
        (["x"], {"vocab_size": 400, "extra_tokens": ["<think>"]}, "each once"),
        (["x"], {"vocab_size": 400, "extra_tokens": ["<|im_end|>"]}, "each once"),
        (["x"], {"vocab_size": 400, "extra_tokens": [""]}, "empty"),
    ],
)
def test_a_vocabulary_that_cannot_be_built_is_refused(texts, options, told):
    with pytest.raises(InputError, match=told):
        build_tokenizer(texts, **options)


def test_a_model_is_that_of_its_seed_and_leaves_the_global_one_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (build_model(TOKENIZER, width=16, layers=1, heads=2, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(3), expected)
    for left, right in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_has_a_row_for_every_token_and_knows_where_answers_end(tied, tmp_path):
    from transformers import AutoModelForCausalLM

    model = build_model(TOKENIZER, width=16, layers=2, heads=2, seed=0, context=64, tied=tied)
    assert model.get_input_embeddings().weight.shape == (len(TOKENIZER), 16)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert model.generation_config.eos_token_id == TOKENIZER.eos_token_id
    assert model.generation_config.pad_token_id == TOKENIZER.pad_token_id
    model.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([TOKENIZER(REMARKS[0])["input_ids"]])
    assert torch.equal(back(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    "change", [{"width": 18}, {"width": 0}, {"layers": 0}, {"heads": 3}, {"seed": -1}, {"context": 0}]
)
def test_sizes_that_do_not_fit_together_are_refused(change):
    with pytest.raises(InputError):
        build_model(TOKENIZER, **{"width": 16, "layers": 1, "heads": 4, "seed": 0, **change})
