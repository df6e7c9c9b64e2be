"""Which item comes next: the semantic IDs that a language model finds likeliest after a text, by beam search.

Only codes that lead to an item are followed, so every answer is an item; probabilities are those of the model over its
whole vocabulary, not made to sum to 1 over the codes. This is how GR2 (2602.07774) makes its candidates. May import
torch, numpy, the extra `language` and the layers below. Suffixes: `_B` texts, `_N` items found, `_R` beams, `_V`
tokens, `_C` codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rerank_env.agents.language.models import evaluated
from rerank_env.agents.language.prefix import Pass, Prefilled, can_share, read
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import PAD, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.semantic_ids import PrefixTrie, SemanticIds
from rerank_env.semantic_ids.record import BEGIN


class NextItems(NamedTuple):
    """Items by text, likeliest first: `items_BN` int64 padded with -1, `log_probs_BN` float64 padded with -inf.

    A probability is that of the codes after the begin marker; items that share all codes have the same, and come in
    rising order of their numbers.
    """

    items_BN: IntArray
    log_probs_BN: FloatArray


class _Beam(NamedTuple):
    """The codes so far of an ID after one of the texts, and the logarithm of their probability."""

    text: int
    codes: tuple[int, ...]
    log_prob: float


@torch.no_grad()
def next_items(
    model: Any,
    tokenizer: Any,
    semantic_ids: SemanticIds,
    texts: Sequence[str],
    *,
    beams: int = 10,
    batch_size: int = 32,
) -> NextItems:
    """The `beams` likeliest items of the catalogue after each text, which the ID follows.

    Texts are read as the tokenizer reads them by itself, with its begin-of-text token where it sets one, `batch_size`
    at once; results do not depend on which. With as many beams as there are items the order is exact; with fewer, an
    item is lost where the codes it begins with are not among the likeliest. The model is left in the mode it was in.

    Raises `InputError` for a tokenizer that has not all words of the IDs as tokens.
    """
    whole("beams", beams, least=1)
    whole("batch_size", batch_size, least=1)
    trie = semantic_ids.trie
    begin, levels = _numbers(tokenizer, semantic_ids)
    items_BN = np.full((len(texts), beams), PAD, dtype=np.int64)
    log_probs_BN = np.full((len(texts), beams), -np.inf)
    if not len(trie):
        return NextItems(items_BN, log_probs_BN)
    prompts = [[*_read(tokenizer, text), begin] for text in texts]
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    with evaluated(model):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            for row, found in zip(
                rows, _search(model, [prompts[row] for row in rows], levels, trie, beams), strict=True
            ):
                pairs = [(item, beam.log_prob) for beam in found for item in trie.items(beam.codes).tolist()][:beams]
                items_BN[row, : len(pairs)] = [item for item, _ in pairs]
                log_probs_BN[row, : len(pairs)] = [log_prob for _, log_prob in pairs]
    return NextItems(items_BN, log_probs_BN)


def _read(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids


def _numbers(tokenizer: Any, semantic_ids: SemanticIds) -> tuple[int, list[list[int]]]:
    """The token of the begin marker, and those of the codes of every level."""
    vocabulary = tokenizer.get_vocab()
    tokens = semantic_ids.tokens()
    for token in tokens:
        if token not in vocabulary:
            raise InputError(f"the tokenizer has no token {token!r}; extend its vocabulary by these semantic IDs first")
    numbers = [vocabulary[token] for token in tokens[2:]]
    ends = np.cumsum(semantic_ids.sizes).tolist()
    return vocabulary[BEGIN], [numbers[end - size : end] for end, size in zip(ends, semantic_ids.sizes, strict=True)]


def _search(
    model: Any, prompts: list[list[int]], levels: list[list[int]], trie: PrefixTrie, beams: int
) -> list[list[_Beam]]:
    """The likeliest codes after every prompt, likeliest first."""
    reader = _Reader(model, prompts)
    alive = [_Beam(text, (), 0.0) for text in range(len(prompts))]
    for numbers in levels:
        log_probs_RC = reader.logits_RV.log_softmax(dim=-1)[:, numbers].double().cpu().numpy()
        longer: list[list[tuple[float, int, int]]] = [[] for _ in prompts]
        for row, beam in enumerate(alive):
            for code in trie.allowed(beam.codes).tolist():
                longer[beam.text].append((beam.log_prob + float(log_probs_RC[row, code]), row, code))
        kept = [step for steps in longer for step in sorted(steps, key=lambda step: -step[0])[:beams]]
        parents = [row for _, row, _ in kept]
        alive = [_Beam(alive[row].text, (*alive[row].codes, code), log_prob) for log_prob, row, code in kept]
        if len(alive[0].codes) < len(levels):
            reader.go_on(parents, [numbers[code] for _, _, code in kept])
    return [[beam for beam in alive if beam.text == text] for text in range(len(prompts))]


class _Reader:
    """Beams in a model: `logits_RV` float32 of what is next in each; read anew where a cache has no copies."""

    def __init__(self, model: Any, prompts: list[list[int]]) -> None:
        self._model = model
        self._texts = prompts
        self._before: Prefilled | None = None
        self._shares = can_share(model)
        self.logits_RV = self._next([0] * len(prompts), prompts)

    def go_on(self, parents: list[int], tokens: list[int]) -> None:
        """Each beam becomes a copy of its parent with one more token."""
        self._texts = [[*self._texts[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        self.logits_RV = self._next(parents, [[token] for token in tokens])

    def _next(self, parents: list[int], segments: list[list[int]]) -> Tensor:
        if self._shares:
            self._before = read(self._model, self._before, Pass(list(segments), parents), pad_id=0)
            return self._before.logits_RV.float()
        device, width = self._model.device, max(map(len, self._texts))
        ids_RT = torch.tensor([text + [0] * (width - len(text)) for text in self._texts], device=device)
        lengths_R = torch.tensor(list(map(len, self._texts)), device=device)
        mask_RT = (torch.arange(width, device=device) < lengths_R[:, None]).long()
        logits_RTV: Tensor = self._model(input_ids=ids_RT, attention_mask=mask_RT, use_cache=False).logits
        return logits_RTV[torch.arange(len(ids_RT), device=device), lengths_R - 1].float()
