"""A vocabulary grows by the words of semantic IDs, and nothing that was there changes by a bit."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

from rerank_env.agents.language.scratch import build_model, build_tokenizer
from rerank_env.agents.language.vocabulary import NOISE, extend, ids_hash, tables
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids import SemanticIds

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]

TEXTS = ["a red lip colour", "a shampoo", "a brush for hair"]
IDS = SemanticIds.of([[0, 1], [1, 0], [2, 2]], (3, 3), texts=TEXTS)
OTHERS = SemanticIds.of([[0, 1], [1, 0], [2, 1]], (3, 3), texts=TEXTS)
LARGER = SemanticIds.of([[0, 1], [1, 0], [2, 2]], (3, 4), texts=TEXTS)


def fresh(*, tied=True, seed=0, **options):
    tokenizer = build_tokenizer(TEXTS, vocab_size=400, **options)
    return build_model(tokenizer, width=16, layers=1, heads=2, seed=seed, tied=tied), tokenizer


@pytest.mark.parametrize("tied", [True, False])
def test_old_rows_keep_every_bit_and_new_ones_lie_at_their_mean(tied):
    model, tokenizer = fresh(tied=tied)
    before = [table.detach().clone() for table in tables(model)]
    text = tokenizer(TEXTS[0])["input_ids"]
    made = extend(model, tokenizer, IDS, seed=3)
    assert made.added == len(IDS.tokens()) == 2 + 3 + 3
    assert len(before) == len(tables(model)) == (1 if tied else 2)
    for old, table in zip(before, tables(model), strict=True):
        assert len(table) == len(tokenizer) == len(old) + 8
        assert torch.equal(table[: len(old)], old)
        away = (table[list(made.new_ids)] - old.mean(dim=0)) / old.std(dim=0)
        assert away.abs().max() < 5 * NOISE
        assert len(torch.unique(away, dim=0)) == 8
    assert tokenizer(TEXTS[0])["input_ids"] == text
    assert model.config.vocab_size == len(tokenizer)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied


def test_the_law_over_old_tokens_hardly_moves():
    model, tokenizer = fresh(tied=False)
    ids = torch.tensor([tokenizer(TEXTS[2])["input_ids"]])
    old = len(tokenizer)
    before = model(ids).logits
    extend(model, tokenizer, IDS)
    after = model(ids).logits
    assert torch.equal(after[..., :old], before)
    assert (after[..., old:] <= before.amax(dim=-1, keepdim=True)).all()


def test_an_id_is_one_token_a_word_wherever_it_stands_and_decodes_as_text():
    model, tokenizer = fresh()
    made = extend(model, tokenizer, IDS)
    for item in range(3):
        text = f"bought {IDS.text(item)}, then"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        words = tokenizer.convert_tokens_to_ids(list(IDS.words(item)))
        assert [token for token in ids if token in made.new_ids] == words
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_extending_again_changes_nothing(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = fresh()
    made = extend(model, tokenizer, IDS, seed=1)
    state = copy.deepcopy(model.state_dict())
    assert extend(model, tokenizer, IDS, seed=2).new_ids == made.new_ids
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = extend(back, AutoTokenizer.from_pretrained(tmp_path), IDS, seed=3)
    assert (again.new_ids, again.added) == (made.new_ids, 0)
    for name, value in back.state_dict().items():
        assert torch.equal(value, state[name])
    with pytest.raises(InputError, match=f"stand for the semantic IDs {ids_hash(IDS)}"):
        extend(back, tokenizer, OTHERS)


def test_the_seed_decides_the_noise():
    made = []
    for seed in (0, 0, 1):
        model, tokenizer = fresh()
        extend(model, tokenizer, IDS, seed=seed)
        made.append(model.get_input_embeddings().weight.detach())
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_rows_that_a_vocabulary_was_padded_with_are_used_first():
    model, tokenizer = fresh()
    old = len(tokenizer)
    model.resize_token_embeddings(old + 64, mean_resizing=False)
    made = extend(model, tokenizer, IDS)
    table = model.get_input_embeddings().weight
    assert len(table) == old + 64
    assert list(made.new_ids) == list(range(old, old + 8))
    assert ((table[list(made.new_ids)] - table[:old].mean(dim=0)).abs() < 5 * NOISE * table[:old].std(dim=0)).all()


def test_a_bias_of_the_output_grows_too():
    model, tokenizer = fresh(tied=False)
    old = len(tokenizer)
    model.lm_head = torch.nn.Linear(16, old)
    before = model.lm_head.bias.detach().clone()
    made = extend(model, tokenizer, IDS)
    bias = model.get_output_embeddings().bias
    assert torch.equal(bias[:old], before)
    assert (bias[list(made.new_ids)] - before.mean()).abs().max() < 5 * NOISE * before.std()


def test_a_tokenizer_made_with_the_ids_keeps_them_and_the_model_learns_whose_they_are():
    model, tokenizer = fresh(extra_tokens=IDS.tokens())
    before = model.get_input_embeddings().weight.detach().clone()
    assert extend(model, tokenizer, IDS).added == 0
    assert torch.equal(model.get_input_embeddings().weight, before)
    with pytest.raises(InputError, match="not for these"):
        extend(model, tokenizer, OTHERS)


def test_a_vocabulary_for_other_ids_is_refused():
    model, tokenizer = fresh(extra_tokens=LARGER.tokens())
    with pytest.raises(InputError, match="knows 9 words of semantic IDs"):
        extend(model, tokenizer, IDS)
    model, tokenizer = fresh(extra_tokens=["<|a_0|>"])
    with pytest.raises(InputError, match="knows 1 words"):
        extend(model, tokenizer, IDS)


def test_a_model_with_too_few_rows_is_refused():
    model, tokenizer = fresh()
    tokenizer.add_tokens(["one more"])
    with pytest.raises(InputError, match="rows for them"):
        extend(model, tokenizer, IDS)


def test_a_tokenizer_that_splits_the_words_is_refused():
    model, tokenizer = fresh()

    class Splitting:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __len__(self):
            return len(tokenizer)

        def __call__(self, text, **options):
            return tokenizer(text.replace("|", " |"), **options)

    with pytest.raises(InputError, match="splits words"):
        extend(model, Splitting(), IDS)


def test_a_model_in_adapters_is_refused():
    peft = pytest.importorskip("peft")
    model, tokenizer = fresh()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(InputError, match="adapters"):
        extend(wrapped, tokenizer, IDS)
