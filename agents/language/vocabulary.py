"""Semantic-ID words as single tokens of an existing model: the vocabulary grows, and nothing that was there changes.

A new row of an embedding is the mean of the rows of all tokens there were, plus seeded noise of a tenth of their
spread: its logit then lies in the middle of the old ones, so that the model's law over old tokens hardly moves
(Hewitt 2021, "Initializing new word embeddings for pretrained language models"). What the codes mean is learned after.
May import torch and the layers below. Suffixes: `_V` tokens, `_W` width.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank_env.rewards.arguments import whole
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids.record import BEGIN, END, SemanticIds

NOISE = 0.1
"""Of the standard deviation that the old rows have in each dimension."""

HASH_CHARS = 16

MARK = "semantic_ids"
"""The entry of a model's configuration that says which IDs its tokens stand for."""

_FORM = re.compile(rf"<\|[a-z]_[0-9]+\|>|{re.escape(BEGIN)}|{re.escape(END)}")


@dataclass(frozen=True)
class Extension:
    """The words of semantic IDs in a vocabulary.

    `tokens` as `SemanticIds.tokens` has them and `new_ids`, the number of each; `added` how many of them were not there
    before. The rows of `new_ids` are what a warm-up trains.
    """

    tokens: tuple[str, ...]
    new_ids: tuple[int, ...]
    added: int


def ids_hash(semantic_ids: SemanticIds) -> str:
    """The first characters of a SHA-256 of all codes and of the catalogue: equal for equal IDs of equal items."""
    told = repr((semantic_ids.sizes, semantic_ids.catalogue)).encode()
    codes = np.ascontiguousarray(semantic_ids.codes_IL, dtype="<i8").tobytes()
    return hashlib.sha256(told + codes).hexdigest()[:HASH_CHARS]


def extend(model: Any, tokenizer: Any, semantic_ids: SemanticIds, *, seed: int = 0) -> Extension:
    """Make every word of `semantic_ids` one token, in place; done again it changes nothing.

    The tokenizer gets the words as tokens that are never split and that decode as text. The embeddings that the model
    reads with and, where they are another table, writes with get rows for them: rows that a vocabulary was padded with
    first, new ones where those do not suffice. Rows of old tokens keep every bit. `seed` decides the noise. The model's
    configuration keeps which IDs these are.

    Raises `InputError` where the model has fewer rows than the tokenizer has tokens, where the tokenizer knows some of
    the words or others of that form (a vocabulary for other IDs), or would split one; where the model was extended for
    other IDs; and for a model wrapped in adapters, which are added after.
    """
    whole("seed", seed, least=0)
    if hasattr(model, "peft_config"):
        raise InputError("the model is wrapped in adapters already; extend the vocabulary first, then add the adapters")
    mark = ids_hash(semantic_ids)
    known = getattr(model.config, MARK, mark)
    if known != mark:
        raise InputError(
            f"the model's tokens stand for the semantic IDs {known}, not for these, {mark}; take the model that these "
            "IDs were added to, or one without any"
        )
    tokens = semantic_ids.tokens()
    old = len(tokenizer)
    rows = model.get_input_embeddings().weight.shape[0]
    if rows < old:
        raise InputError(
            f"the tokenizer has {old} tokens but the model has {rows} rows for them; give the model that goes with it"
        )
    vocabulary = tokenizer.get_vocab()
    formed = {token for token in vocabulary if _FORM.fullmatch(token)}
    if formed and formed != set(tokens):
        raise InputError(
            f"the tokenizer knows {len(formed)} words of semantic IDs such as {min(formed)!r}, and they are not the "
            f"{len(tokens)} of these; take a tokenizer without any, or the one that was extended for these IDs"
        )
    if not formed:
        _add(tokenizer, tokens)
        if len(tokenizer) > rows:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        vocabulary = tokenizer.get_vocab()
    new_ids = [vocabulary[token] for token in tokens]
    _check_whole(tokenizer, semantic_ids, new_ids)
    if not formed:
        generator = torch.Generator().manual_seed(seed)
        for table in _tables(model):
            _fill(table, new_ids, old, generator)
    setattr(model.config, MARK, mark)
    return Extension(tokens, tuple(new_ids), 0 if formed else len(tokens))


def _add(tokenizer: Any, tokens: Sequence[str]) -> None:
    from transformers import AddedToken

    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens])


def _check_whole(tokenizer: Any, semantic_ids: SemanticIds, new_ids: Sequence[int]) -> None:
    """Raise `InputError` unless every word is read as its one token, wherever it stands."""
    text = "a" + "a".join(semantic_ids.tokens()) + "a"
    wanted = set(new_ids)
    found = [token for token in tokenizer(text, add_special_tokens=False)["input_ids"] if token in wanted]
    if found != list(new_ids):
        raise InputError(
            f"the tokenizer splits words of semantic IDs such as {semantic_ids.tokens()[0]!r} although it has tokens "
            "for them; take one that keeps added tokens whole"
        )


def tables(model: Any) -> list[torch.nn.Parameter]:
    """The tables of a model with one row a token: what it reads with and, where it is another one, what it writes with.

    An output without a weight of its own, and one that is tied to the input, are not listed twice.
    """
    reads = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    writes = None if output is None else getattr(output, "weight", None)
    return [reads] if writes is None or writes is reads else [reads, writes]


def _tables(model: Any) -> Iterator[Tensor]:
    """The tables as data to be changed, and the bias of the output as one of width 1."""
    for parameter in tables(model):
        yield parameter.data
    bias = getattr(model.get_output_embeddings(), "bias", None)
    if bias is not None:
        yield bias.data[:, None]


def _fill(table_VW: Tensor, new_ids: Sequence[int], old: int, generator: torch.Generator) -> None:
    """Write the mean of the first `old` rows, with noise, into the rows `new_ids`."""
    known_VW = table_VW[:old].float()
    mean_W, spread_W = known_VW.mean(dim=0), known_VW.std(dim=0)
    noise_NW = torch.randn(len(new_ids), table_VW.shape[1], generator=generator).to(table_VW.device)
    rows = torch.tensor(new_ids, device=table_VW.device)
    table_VW[rows] = (mean_W + NOISE * spread_W * noise_NW).to(table_VW.dtype)
