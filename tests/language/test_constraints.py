"""Constrained decoding: only rankings, all rankings, on the renormalised law, for any tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents.language.constraints import AnswerConstraint, Written  # noqa: E402
from rerank_env.agents.language.decoding import Decoding  # noqa: E402
from rerank_env.agents.language.generation import generate  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402
from rerank_env.rewards.formats import FORMATS, answer_text  # noqa: E402
from rerank_env.rewards.parsing import parse  # noqa: E402
from rerank_env.rewards.rankings import Verdict  # noqa: E402

WORDS = ["<|id|>", "<|/id|>", *(f"<|a_{code}|>" for code in range(5)), *(f"<|b_{code}|>" for code in range(5))]


def ids_of(size: int) -> list[str]:
    return [f"<|id|><|a_{one % 5}|><|b_{one // 5}|><|/id|>" for one in range(size)]


def sentencepiece_like(kind: str) -> Any:
    """A tokenizer in the manner of SentencePiece: blanks as part of words, missing characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = [
        "[3, 1, 2] the [10] > [2] > [1]",
        '{"ranking": [3, 2], "explanation": "a b"}',
        "<think> I </think><answer> it",
    ]
    characters = sorted({*"".join(text), *map(chr, range(33, 127)), "▁"})
    special = ["<unk>", "<s>", "</s>"]
    if kind == "bpe":
        inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        trainer: Any = trainers.BpeTrainer(
            vocab_size=520,
            special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
            initial_alphabet=characters,
        )
    else:
        inner = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=160, special_tokens=special, unk_token="<unk>", initial_alphabet=characters
        )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.train_from_iterator(text * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def with_words(tokenizer: Any) -> Any:
    """The same with tokens for semantic IDs and for tags, which decoding shows."""
    tokenizer.add_tokens([*WORDS, "</think>", "<answer>"])
    return tokenizer


TOKENIZERS = {
    "bytes": lambda: tiny_tokenizer(whole=()),
    "bytes with tags": tiny_tokenizer,
    "bytes with words": lambda: with_words(tiny_tokenizer()),
    "metaspace": lambda: sentencepiece_like("bpe"),
    "metaspace with words": lambda: with_words(sentencepiece_like("bpe")),
    "unigram": lambda: sentencepiece_like("unigram"),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_model(tokenizer)


def constraint_of(tokenizer: Any, text_format: str, sizes: list[int], **more: Any) -> AnswerConstraint:
    settings = {"max_tokens": 1000, "eos_ids": [tokenizer.eos_token_id], **more}
    return AnswerConstraint(tokenizer, text_format, sizes, **settings)


def follow(constraint: AnswerConstraint, tokens: list[int]) -> Written:
    """The state behind the tokens, each of which has to be allowed."""
    state = constraint.start(0)
    for token in tokens:
        assert token in constraint.allowed(state).tolist()
        state = constraint.after(state, token)
    return state


def sampled(model: Any, tokenizer: Any, constraint: AnswerConstraint, max_tokens: int, rows: int) -> list[str]:
    made = generate(
        model,
        tokenizer.eos_token_id,
        [tokenizer.eos_token_id],
        [[5 + row] for row in range(rows)],
        decoding=Decoding(max_tokens=max_tokens, temperature=1.3),
        generator=torch.Generator().manual_seed(rows + max_tokens),
        constraint=constraint,
    )
    assert all(made.finished)
    return list(tokenizer.batch_decode(made.ids, skip_special_tokens=True))


@pytest.mark.parametrize("cites", ["numbers", "ids"])
@pytest.mark.parametrize("text_format", FORMATS)
def test_every_sample_of_a_random_model_is_a_ranking(tokenizer: Any, model: Any, text_format: str, cites: str) -> None:
    sizes, room = ([2, 3, 10, 20], 170) if cites == "numbers" else ([2, 9], 340)
    ids = [ids_of(size) for size in sizes] if cites == "ids" else None
    constraint = constraint_of(tokenizer, text_format, sizes, ids=ids, max_tokens=room)
    for row, text in enumerate(sampled(model, tokenizer, constraint, room, len(sizes))):
        read = parse(text, sizes[row], text_format=text_format, ids=None if ids is None else ids[row], max_chars=10**7)
        assert read.verdict is Verdict.OK, (text, read.reason)


@pytest.mark.parametrize("text_format", FORMATS)
def test_reasons_end_just_in_time_for_the_ranking(tokenizer: Any, model: Any, text_format: str) -> None:
    longest = answer_text(range(9, -1, -1), text_format=text_format)
    for more in (1 + len("</think>"), 30):
        room = len(longest) + more + len(', "explanation": "')
        constraint = constraint_of(tokenizer, text_format, [10] * 3, max_tokens=room)
        for text in sampled(model, tokenizer, constraint, room, 3):
            assert parse(text, 10, text_format=text_format, max_chars=10**7).verdict is Verdict.OK, text


@pytest.mark.parametrize("text_format", FORMATS)
@settings(max_examples=15)
@given(data=st.data())
def test_every_ranking_can_be_written_as_the_tokenizer_writes_it(text_format: str, data: st.DataObject) -> None:
    tokenizer = CACHE[data.draw(st.sampled_from(list(TOKENIZERS)), label="tokenizer")]
    size = data.draw(st.integers(2, 20), label="size")
    ranking = data.draw(st.permutations(range(size)), label="ranking")
    ids = ids_of(size) if data.draw(st.booleans(), label="ids") else None
    has_room = text_format == "json" or text_format.startswith("tagged-")
    reasoning = data.draw(st.sampled_from(["", "good", "near [3] [7], a < b. </thin or <t"])) if has_room else ""
    text = answer_text(ranking, text_format=text_format, ids=ids, reasoning=reasoning)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.decode(tokens, skip_special_tokens=True) != text:
        return  # this tokenizer does not keep this text
    constraint = constraint_of(tokenizer, text_format, [size], ids=None if ids is None else [ids])
    state = follow(constraint, tokens)
    assert constraint.allowed(state).tolist() == [tokenizer.eos_token_id]
    assert constraint.after(state, tokenizer.eos_token_id).state is None


class _Cache(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        self[name] = TOKENIZERS[name]()
        return self[name]


CACHE = _Cache()


def endings(constraint: AnswerConstraint, state: Written, tokens: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every sequence of tokens that the constraint allows, to the end."""
    if state.state is None:
        yield tokens
        return
    for token in constraint.allowed(state).tolist():
        yield from endings(constraint, constraint.after(state, token), (*tokens, token))


@pytest.mark.parametrize("text_format", ["list", "arrows"])
def test_what_can_be_written_is_all_rankings_in_all_spellings_and_no_more(tokenizer: Any, text_format: str) -> None:
    constraint = constraint_of(tokenizer, text_format, [3])
    found = list(endings(constraint, constraint.start(0)))
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]
    legal = {answer_text(ranking, text_format=text_format) for ranking in itertools.permutations(range(3))}
    assert set(texts) == legal
    assert len(set(found)) == len(found)
    for text in legal:
        assert (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id) in found


@pytest.mark.parametrize("text_format", FORMATS)
def test_the_masked_law_is_the_models_law_renormalised(tokenizer: Any, text_format: str) -> None:
    constraint = constraint_of(tokenizer, text_format, [12])
    state, generator = constraint.start(0), torch.Generator().manual_seed(4)
    for _ in range(25):
        if state.state is None:
            break
        scores = torch.randn(1, len(tokenizer) + 7, generator=generator)
        allowed = constraint.allowed(state)
        law = constraint.masked([state], scores).softmax(-1)[0]
        kept = scores[0].softmax(-1)[allowed]
        torch.testing.assert_close(law[allowed], kept / kept.sum())
        assert law.count_nonzero() == len(allowed)
        state = constraint.after(state, int(allowed[torch.randint(len(allowed), (1,), generator=generator)]))


@pytest.mark.parametrize("text_format", ["list", "tagged-json"])
def test_transformers_generate_takes_it_as_a_logits_processor(tokenizer: Any, model: Any, text_format: str) -> None:
    from transformers import LogitsProcessorList

    constraint = constraint_of(tokenizer, text_format, [4, 12], max_tokens=200)
    prompts = torch.tensor([[5, 6, 7], [7, 8, 9]])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            logits_processor=LogitsProcessorList([constraint.processor(3, copies=3)]),
            do_sample=True,
            top_k=0,
            max_new_tokens=200,
            num_return_sequences=3,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    for row, tokens in enumerate(out[:, 3:]):
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        read = parse(text, 4 if row < 3 else 12, text_format=text_format, max_chars=10**7)
        assert read.verdict is Verdict.OK, text


def test_a_token_that_decoding_drops_is_refused_where_answers_need_it() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>"]})
    with pytest.raises(InputError, match="special=False"):
        constraint_of(tokenizer, "tagged-list", [3])
    constraint_of(tokenizer, "list", [3])


def test_a_tokenizer_without_single_characters_is_refused() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"[1,": 0, "2]": 1, "a": 2, "</s>": 3, "[": 4, "?": 5}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="?")
    with pytest.raises(InputError, match="alone"):
        constraint_of(tokenizer, "list", [2])


def test_too_few_tokens_and_unknown_formats_are_refused() -> None:
    tokenizer = tiny_tokenizer()
    assert len("[1, 2, 3]") + 1 == 10  # every character a token, and the end
    constraint_of(tokenizer, "list", [3], max_tokens=10)
    with pytest.raises(InputError, match="10 tokens but max_tokens is 9"):
        constraint_of(tokenizer, "list", [3], max_tokens=9)
    with pytest.raises(UnknownNameError, match="tagged-list"):
        constraint_of(tokenizer, "tagged-lst", [3])


def test_a_token_that_is_not_allowed_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    constraint = constraint_of(tokenizer, "list", [3])
    with pytest.raises(InputError, match="may not come"):
        constraint.after(constraint.start(0), tokenizer.convert_tokens_to_ids("]"))
