"""Traces as examples to learn from: the tokens of prompt and answer, and how much every token of the answer counts.

May import numpy, `datasets`, and `rerank_env`. GR2 (2602.07774, section on SFT) learns reasoning and answer with
different weights, reasoning less:

    L = - lambda_r * sum log P(reasoning tokens) - lambda_o * sum log P(answer tokens),   lambda_r < lambda_o

Tokens that are neither, the tags and the end of the turn, count as the answer does: without them there is none. Where
the teacher gave no order beyond the first place, the tail of the list is random; there the element in slot s, counted
from 1, counts 1 / log2(s + 1) of the answer's weight (ours), so that the place of an item is believed as much as NDCG
pays for it. The commas and brackets between the elements keep their weight.

An answer is written anew from the ranking and the reasoning of its trace, in the format of the writer, so that what is
learned is what the parser reads, whichever format the teacher was asked in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rerank_env.agents.language.chats import prompt_ids
from rerank_env.agents.language.spans import OTHER, REASONING, token_roles
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.arguments import finite
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.rewards.formats import has_reasoning
from rerank_env.training.language.batches import IGNORED, NO_ROLE
from rerank_env.training.language.traces.store import RANDOM, Traces

try:
    from datasets import Dataset, Features, List, Value
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'examples need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error

_COLUMNS = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "loss_weights": List(Value("float32")),
        "roles": List(Value("int8")),
        "request": Value("int64"),
        "text_format": Value("string"),
    }
)


def training_examples(
    requests: Requests,
    traces: Traces,
    writer: PromptWriter,
    tokenizer: Any,
    *,
    reasoning_weight: float = 0.3,
    answer_weight: float = 1.0,
    direct_share: float = 0.0,
    direct_writer: PromptWriter | None = None,
    seed: int,
) -> Dataset:
    """One example an accepted trace, in the order of the requests, and then the direct ones.

    `requests` are those that the traces are of; each is shown in the order that the teacher saw. A share `direct_share`
    of the traces, drawn by `seed`, is also shown under `direct_writer` with the answer alone. A format without room
    for reasoning is taught without it.

    Columns: `input_ids` prompt, answer and end; `labels` the same, -100 over the prompt; `loss_weights` float32, 0 over
    the prompt; `roles` int8 (0 reasoning, 1 answer, 2 neither, -1 prompt); `request`; `text_format`.

    Raises `InputError` for weights that are negative or not finite, for a share outside 0..1 and for one without a
    `direct_writer`, for traces of other requests, and where no trace was accepted.
    """
    weights = _weight("reasoning_weight", reasoning_weight), _weight("answer_weight", answer_weight)
    if not 0.0 <= finite("direct_share", direct_share) <= 1.0:
        raise InputError(f"direct_share is {direct_share}; give a share from 0 to 1")
    if direct_share and direct_writer is None:
        raise InputError(f"direct_share is {direct_share} but there is no direct_writer; give the one that asks for it")
    accepted = traces.accepted()
    if not len(accepted):
        raise InputError("no trace was accepted, so there is nothing to learn; collect more, or more tries a request")
    drawn = np.random.default_rng(seed).permutation(len(accepted))[: round(direct_share * len(accepted))]
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    _add(columns, requests, accepted, writer, tokenizer, weights, with_reasoning=has_reasoning(writer.text_format))
    if direct_writer is not None:
        shown_directly = replace(accepted, table=accepted.table.take(np.sort(drawn)))
        _add(columns, requests, shown_directly, direct_writer, tokenizer, weights, with_reasoning=False)
    return Dataset.from_dict(columns, features=_COLUMNS)


def token_weights(
    roles: Sequence[int] | IntArray,
    slots: Sequence[int] | IntArray,
    *,
    reasoning_weight: float,
    answer_weight: float,
    random_tail: bool,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """How much each token of an answer counts, float32 [T], by its role and the slot of its element (-1 for none)."""
    weights_T = np.where(np.asarray(roles) == REASONING, reasoning_weight, answer_weight)
    if random_tail:
        slots_T = np.asarray(slots)
        weights_T = weights_T * np.where(slots_T >= 0, 1.0 / np.log2(np.maximum(slots_T, 0) + 2.0), 1.0)
    return weights_T.astype(np.float32)


def _add(
    columns: dict[str, list[Any]],
    requests: Requests,
    traces: Traces,
    writer: PromptWriter,
    tokenizer: Any,
    weights: tuple[float, float],
    *,
    with_reasoning: bool,
) -> None:
    """Append the examples of `traces` under one writer."""
    if not len(traces):
        return
    asked = traces.asked(requests, writer)
    rankings_TK = traces.rankings_TK(requests.candidates_BK.shape[1])
    answers = asked.answers(rankings_TK, traces.column("reasoning") if with_reasoning else None)
    before = prompt_ids(tokenizer, asked.prompts)
    told: list[list[int]] = tokenizer(answers, add_special_tokens=False)["input_ids"]
    tails = [tail == RANDOM for tail in traces.column("tail")]
    end = tokenizer.eos_token_id
    for request, random_tail, asked_ids, ids in zip(traces.requests_T.tolist(), tails, before, told, strict=True):
        _, roles, slots = token_roles(tokenizer, ids, writer.text_format)
        weights_T = token_weights(
            [*roles, OTHER],
            [*slots, PAD],
            reasoning_weight=weights[0],
            answer_weight=weights[1],
            random_tail=random_tail,
        )
        count = len(asked_ids)
        columns["input_ids"].append([*asked_ids, *ids, end])
        columns["labels"].append([*[IGNORED] * count, *ids, end])
        columns["loss_weights"].append(np.concatenate([np.zeros(count, dtype=np.float32), weights_T]))
        columns["roles"].append([*[NO_ROLE] * count, *map(int, roles), OTHER])
        columns["request"].append(request)
        columns["text_format"].append(writer.text_format)


def _weight(name: str, value: float) -> float:
    if finite(name, value) < 0.0:
        raise InputError(f"{name} is {value}; give a number of at least 0")
    return float(value)
