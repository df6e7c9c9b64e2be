"""A tokenizer and a language model from nothing, for users without a download and for recipes that run on two cores.

The tokenizer is byte-level BPE, so every text survives. Texts are cut before BPE so that what re-ranking prompts are
made of can be learned as one token each: a number of one or two digits stands alone (candidate 3 is the same token in
the prompt, the reasoning and the answer), a word with such a number behind it ("near 7") stays together, and so does
what stands between two numbers ("] > ["). The model is a Qwen3 of any size. May import torch, the extra `language` and
the layers below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rerank_env.agents.language.automaton import TAGS
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError, MissingExtraError

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'language models need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
"""Padding and the signs of a chat; these three are left out where text without special tokens is asked for."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML; the tokens of the assistant are marked, so that trainers can ask which they are."""

PIECES = "|".join(
    [
        r" ?\p{L}+ \p{N}{1,2}(?!\p{N})",  # a word and its level
        r"\p{N}{1,2}",  # a number alone
        r"[^\p{L}\p{N}\n]+(?=\p{N})",  # all that leads to a number
        r" ?\p{L}+",
        r" ?[^\s\p{L}\p{N}]+\n*",
        r"\s*\n+",
        r"\s+",
    ]
)
"""Where texts are cut before BPE merges bytes: never across two pieces."""

NUMBERS = range(10, 21)
"""Two-digit numbers that are taught in any case, as the candidates of the usual slates are numbered."""

BYTES = 256

SMALLEST = BYTES + 3 + len(TAGS)
"""The tokens that every vocabulary has: bytes, the special ones, and the tags."""


def build_tokenizer(
    texts: Iterable[str], *, vocab_size: int, extra_tokens: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `texts` with at most `vocab_size` tokens, all of those named here included.

    The `extra_tokens`, such as the words of semantic IDs, are single tokens wherever they stand, the longest first, and
    are decoded as the text they are; so are `TAGS`. What `texts` do not fill of the vocabulary stays away, so the size
    may be smaller. The same texts in the same order give the same tokenizer; decoding gives the text that was encoded.

    Raises `InputError` for a vocabulary without room for the bytes and the tokens that are asked for, for tokens that
    are empty or asked for twice, and where there is no text.
    """
    whole_tokens = [*TAGS, *extra_tokens]
    if "" in whole_tokens or len({PAD, START, END, *whole_tokens}) < len(whole_tokens) + 3:
        raise InputError(
            f"extra_tokens hold an empty text, or one that is a token already; give each once, and none of {TAGS}"
        )
    learned = whole("vocab_size", vocab_size, least=1) - len(whole_tokens)
    if learned < BYTES + 3:
        raise InputError(
            f"a vocabulary of {vocab_size} has no room for {BYTES} bytes, 3 special tokens and {len(whole_tokens)} "
            f"that are asked for; give at least {BYTES + 3 + len(whole_tokens)}"
        )
    given = [text for text in texts if text]
    if not given:
        raise InputError("there is no text to learn a vocabulary from; give some, such as prompts and item texts")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    apart = re.compile("|".join(map(re.escape, sorted([PAD, START, END, *whole_tokens], key=len, reverse=True))))
    numbers = " ".join(map(str, NUMBERS))
    inner.train_from_iterator(
        [*(part for text in given for part in apart.split(text)), *[numbers] * len(given)],
        trainers.BpeTrainer(
            vocab_size=learned,
            special_tokens=[PAD, START, END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),  # texts are cut at whole tokens first, which training would otherwise learn to spell
    )
    inner.add_tokens([AddedToken(text, normalized=False, special=False) for text in whole_tokens])
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    tokenizer: PreTrainedTokenizerFast = make(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def build_model(
    tokenizer: Any,
    *,
    width: int,
    layers: int,
    heads: int,
    seed: int,
    context: int = 1024,
    tied: bool = False,
) -> Qwen3ForCausalLM:
    """A random Qwen3 for that tokenizer, float32 on the CPU; the same for the same arguments.

    `width` is that of the hidden states, shared by `heads`, each of which gets an even share; `context` is how many
    tokens it is made for (positions are relative, so that longer ones work too, less well). `tied`: whether words are
    read and written with one table. Weights are drawn with a deviation of width^-1/2, which keeps sums of `width` of
    them at their size; the usual 0.02 is meant for widths of a thousand, and narrow models learn far slower from it.
    The global random state is left as it was.

    Raises `InputError` for sizes that do not fit together.
    """
    for name, size in (("width", width), ("layers", layers), ("heads", heads), ("context", context)):
        whole(name, size, least=1)
    if width % (2 * heads):
        raise InputError(f"width {width} is no even multiple of {heads} heads; positions need pairs, so change one")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=width**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(whole("seed", seed, least=0))
        model: Any = Qwen3ForCausalLM(config)
    evaluated: Qwen3ForCausalLM = model.eval()
    return evaluated
