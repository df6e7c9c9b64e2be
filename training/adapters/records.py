"""Requests as plain rows, and columns of rows as what a reward scores: the one builder that all adapters share.

A row is a dictionary of texts, numbers and flat lists, the same keys in every row of a data set:

- `prompt`: messages `[{"role": "system", "content": ...}, {"role": "user", "content": ...}]`, or the bare text
- `request`: row of the unshuffled request, which is also the group of the answers to it and to its shuffled copies;
  `data`: the name of the requests
- `size`: how many candidates; `text_format`: how the prompt asks to be answered
- `prompt_version`, `prompt_hash`: the name of its wording, and what tells two wordings of one name apart;
  `prompt_dropped`, `prompt_shortened`: what a budget left out of it, entries of the history and ends of texts
- `candidate_ids`: item numbers as texts, in incoming order; `input_order`: the place of each in the unshuffled order
- `relevance`: the gain of each candidate, in incoming order
- `answer_ids`: what the answer names the candidates by, in incoming order; only where that is not their numbers
- `clicks`, `propensities`, `predictions`: only where the requests have them

A reward reads nothing else, and it reads columns by name, so a trainer that passes a row's columns on cannot give it
the wrong ones. May import numpy and the core.

    rows = request_rows(load("synthetic"), text_format="list")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    slates = slates_of(columns, len(rows), text_format="list")
    scored = Scorer("gain", "list")(["[2, 1, 3]"] * len(rows), slates)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from rerank_env.data.fields import as_lists, padded_field, paired
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter, Wording
from rerank_env.rewards.arrays import PAD, FloatArray, IntArray
from rerank_env.rewards.conditions import NearIdentity
from rerank_env.rewards.copies import NEAR_SWAPS
from rerank_env.rewards.errors import DataError, InputError
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.scoring import Scored
from rerank_env.rewards.slates import Slates

Row = dict[str, Any]

LOGGED = ("clicks", "propensities", "predictions")
"""The columns that only some requests have."""

ANSWER_IDS = "answer_ids"
"""The column that only prompts which ask for IDs have."""

LOGS = ("clicks", "predictions")
"""What a reward may need of them."""

_NEEDED_FOR = {"clicks": ("clicks", "propensities"), "predictions": ("predictions",), "groups": ("request",)}
"""The columns behind what a reward may need besides relevance."""

REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(("chars", "reasonings"), "score completions with TrlReward, which reads them"),
    "clicks": "build the data from requests with clicks and propensities",
    "groups": "every answer is scored by itself, so leave that term to the trainer, or train with TrlReward",
    "predictions": "build the data from requests with predictions",
    "step": "nobody tells it, so write the number that is meant, or train with TrlReward",
    "tokens": "nobody counts them, so use a length in chars, or train with TrlReward",
}
"""What a user of an adapter can do where a reward needs what the peer does not tell."""


def request_rows(
    requests: Requests, *, text_format: str = "list", conversational: bool = True, **wording: Unpack[Wording]
) -> list[Row]:
    """One row a request, in order; see the module for the keys.

    `conversational` prompts are messages, others the bare text, which is their contents with an empty line between
    them and what the environment shows. `wording`: `prompt`, `semantic_ids` and `prompt_budget`, as in `RerankEnv`.
    Raises as `rerank_env.prompts.PromptWriter` and its `write` do.
    """
    slates = requests.slates
    writer = PromptWriter(text_format, **wording)
    prompts, ids = writer.write(requests), writer.answer_ids(requests)
    order_BK = slates.canonical_BK
    log = {name: values for name in LOGGED if (values := getattr(slates, f"{name}_BK")) is not None}
    rows: list[Row] = []
    numbers = requests.origins.tolist()
    for row, (prompt, size, number) in enumerate(zip(prompts, slates.sizes_B.tolist(), numbers, strict=True)):
        rows.append(
            {
                "prompt": prompt.chat if conversational else prompt.text,
                "request": number,
                "data": requests.name,
                "size": size,
                "text_format": text_format,
                "prompt_version": writer.template.version,
                "prompt_hash": writer.template.hash,
                "prompt_dropped": prompt.dropped,
                "prompt_shortened": prompt.shortened,
                "candidate_ids": [str(item) for item in requests.candidates_BK[row, :size].tolist()],
                "input_order": list(range(size)) if order_BK is None else order_BK[row, :size].tolist(),
                "relevance": slates.relevance_BK[row, :size].tolist(),
                **({} if ids is None else {ANSWER_IDS: list(ids[row])}),
                **{name: values_BK[row, :size].tolist() for name, values_BK in log.items()},
            }
        )
    return rows


def slates_of(columns: Mapping[str, Any], count: int, *, text_format: str, needs: Iterable[str] = ()) -> Slates:
    """What a reward may look at of `count` answers, one entry a column each; columns it does not know are ignored.

    `text_format` is what answers are read as, `needs` are those of the reward. Raises `InputError` naming the column
    that is missing or the first answer whose prompt asked for another format, `DataError` naming column and answer
    where lengths disagree, and `SlateError` where the numbers cannot be those of a request.
    """
    check_columns(columns, needs)
    for answer, asked in enumerate(_entries(columns, "text_format", count) if "text_format" in columns else ()):
        if asked != text_format:
            raise InputError(
                f"the prompt of answer {answer} asks for the text format {asked!r} but the reward reads "
                f"{text_format!r}; build both with the same text_format"
            )
    relevance = as_lists("relevance", columns["relevance"], count=count)
    log = {
        name: paired(name, columns[name], "relevance", relevance) for name in LOGGED if columns.get(name) is not None
    }
    sizes = [len(gains) for gains in relevance]
    if "size" in columns:
        for answer, (given, size) in enumerate(zip(_entries(columns, "size", count), sizes, strict=True)):
            if given != size:
                raise DataError(
                    f"size of answer {answer} is {given!r} but relevance has {size} entries; give one a candidate"
                )
    slates = Slates.of(relevance, **log)
    if "input_order" not in columns:
        return slates
    places = paired("input_order", columns["input_order"], "relevance", relevance)
    canonical_BK = padded_field("input_order", places, np.int64, fill=PAD, width=slates.width)
    return Slates(
        slates.relevance_BK,
        slates.sizes_B,
        slates.clicks_BK,
        slates.propensities_BK,
        slates.predictions_BK,
        canonical_BK,
    )


def slate_of(row: Mapping[str, Any], *, text_format: str, needs: Iterable[str] = ()) -> Slates:
    """`slates_of` for one answer, to the request of `row`."""
    return slates_of({name: [value] for name, value in row.items()}, 1, text_format=text_format, needs=needs)


def ids_of(columns: Mapping[str, Any], count: int) -> list[list[str]] | None:
    """What each of `count` answers names the candidates by, in incoming order; None where answers name their numbers.

    Raises `DataError` where an entry is no list of texts.
    """
    if columns.get(ANSWER_IDS) is None:
        return None
    entries = _entries(columns, ANSWER_IDS, count)
    for answer, entry in enumerate(entries):
        if isinstance(entry, str) or not isinstance(entry, Iterable):
            raise DataError(f"{ANSWER_IDS} of answer {answer} is {entry!r:.80}; give one text a candidate")
    return [list(entry) for entry in entries]


def groups_of(columns: Mapping[str, Any], count: int) -> IntArray:
    """Which of `count` answers are to the same request, int64 [count]: equal numbers where the column `request` agrees,
    and `data`, where there is one. Places in the batch say nothing.

    Raises `InputError` where the column is missing, too short or holds something else than whole numbers.
    """
    check_columns(columns, ("groups",))
    requests = _entries(columns, "request", count)
    for answer, request in enumerate(requests):
        if isinstance(request, bool) or not isinstance(request, (int, np.integer)):
            raise DataError(f"request of answer {answer} is {request!r}; give a whole number")
    names = _entries(columns, "data", count) if "data" in columns else [""] * count
    numbers: dict[tuple[Any, int], int] = {}
    groups = [numbers.setdefault(key, len(numbers)) for key in zip(names, requests, strict=True)]
    return np.array(groups, dtype=np.int64)


def check_columns(columns: Iterable[str], needs: Iterable[str]) -> None:
    """Raise `InputError` naming the first column that is missing for what a reward `needs`."""
    given = set(columns)
    for name in ("relevance", *(column for need in sorted(needs) for column in _NEEDED_FOR.get(need, ()))):
        if name not in given:
            raise InputError(
                f"the column {name!r} is missing, which the reward needs; it was given "
                f"{', '.join(sorted(given)) or 'none'}, so build the data with request_rows, and keep its columns"
            )


def signals(scored: Scored, slates: Slates) -> dict[str, FloatArray]:
    """What is worth a curve besides the score, float64 [B] each and the same keys for every batch of a reward.

    0 or 1 for `valid`, `identity` (the incoming order), `near_identity` (at most `NEAR_SWAPS` swaps of neighbours from
    it), `failed` (a user's function failed in isolation) and each `verdict/NAME`; the parts of the reward as
    `part/TEXT`. What is no ranking is neither valid nor near to anything.
    """
    answers = {
        "valid": scored.valid_B,
        "identity": NearIdentity(0).holds(scored.rankings_BK, slates, verdicts_B=scored.verdicts_B),
        "near_identity": NearIdentity(NEAR_SWAPS).holds(scored.rankings_BK, slates, verdicts_B=scored.verdicts_B),
        "failed": scored.failed_B,
        **{f"verdict/{verdict.name.lower()}": scored.verdicts_B == int(verdict) for verdict in Verdict if verdict},
        **{f"part/{text}": values_B for text, values_B in scored.parts.items()},
    }
    return {name: values_B.astype(np.float64) for name, values_B in answers.items()}


def legal_name(text: str) -> str:
    """`text` in letters, digits and underscores, for loggers that allow no other signs in a name.

    >>> legal_name("ndcg@10.gate(valid, otherwise=-1.1)")
    'ndcg_10_gate_valid_otherwise_minus_1_1'
    """
    return re.sub(r"[^0-9A-Za-z]+", "_", text.replace("-", " minus ")).strip("_")


def _entries(columns: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    entries = columns[name]
    if isinstance(entries, str) or len(entries) != count:
        raise DataError(f"{name} has {len(entries)} entries for {count} answers; give one an answer")
    return list(entries)
