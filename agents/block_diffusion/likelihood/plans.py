"""How a completion is scored, in two steps: a plan of canvases to look at, and what the model says on them.

May import torch, `rerank_env.rewards` and the modules `masks`, `model`, `trajectory`, `answers` and `filling`.
Suffixes: `_N` wanted places of a row, `_V` vocabulary, `_T` places of a completion, `_S` slots of a look, `_K`
candidates.

    value[i] = sum over looks at place i of  weight * log p(token i | prompt, clean blocks before it, canvas)

Estimators of a likelihood differ in their looks and weights alone. A plan holds all that is random of one, so scoring
the same plan with two models compares them on the same masks (ESPO, 2512.03759, section on variance), and with the
model that a completion was planned for gives a ratio of exactly 1. All looks of a completion are canvases of one
doubled pass, unless `most_canvases` says that memory is too small for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rerank_env.agents.block_diffusion.answers import plackett_luce_log_prob
from rerank_env.agents.block_diffusion.filling import Form
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError

LEVELS = ("token", "sequence")
"""Whether a ratio is one of each token or one of the whole completion."""


@dataclass(frozen=True, eq=False)
class Written:
    """A `completion` behind its `prompt`; with the `trajectory` or the `form` that it came from, for estimators that
    need them. With a form the completion is what was written before the answer, and the answer filled in; a trajectory
    is then that of what was written.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    trajectory: Trajectory | None = None
    form: Form | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """What completions were written with, and what masks are drawn from.

    `max_tokens`: where the last block was cut; None where it was not, so that it was a whole one. Estimators that draw
    masks draw them from `generator`, on its device, completion by completion.
    """

    blocks: Blocks
    mask_id: int
    max_tokens: int | None = None
    generator: torch.Generator | None = None

    def source(self, estimator: object) -> torch.Generator:
        """The generator. Raises `InputError` where there is none."""
        if self.generator is None:
            raise InputError(f"{estimator} draws masks but nothing was given to draw from; pass a generator")
        return self.generator


@dataclass(frozen=True, eq=False)
class Look:
    """A canvas, and how much each of its wanted places counts. With `unused` (of each candidate, bool) the wanted
    places are slots that were filled together by the generalised Plackett-Luce law over the unused candidates.
    """

    canvas: Canvas
    weights: Sequence[float]
    unused: Sequence[bool] | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """The looks at one completion: `tokens` are those that are scored, place by place, as many as there are values, and
    `prompt` is what the model reads before them. `names`: the tokens of the candidates, where a look is at slots.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    looks: Sequence[Look]
    names: Sequence[int] = ()


class Likelihood(Protocol):
    """An estimator of log p(completion | prompt). Its `str` parses back, see `names.likelihood_of`."""

    @property
    def level(self) -> str:
        """One of `LEVELS`: what `log_ratios` makes of its values."""

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """A plan a completion. Raises `InputError` where what the estimator needs is missing."""


class Scored(NamedTuple):
    """A value for every place of every completion, float32 [T]; `forwards`: rows that went through the model for all of
    them, one a completion unless `most_canvases` cut it; `tokens`: how many they had, padding not counted.
    """

    log_probs: list[Tensor]
    forwards: int
    tokens: int


def score(
    model: Any,
    plans: Sequence[Plan],
    *,
    blocks: Blocks,
    mask_id: int,
    pad_id: int,
    temperature: float = 1.0,
    batch_size: int = 64,
    most_canvases: int | None = None,
) -> Scored:
    """The values of every plan, with gradients unless `torch.no_grad()` is around; 0.0 at a place without a look.

    `temperature`: at which the completions were sampled, 0 standing for 1 as in `agents.language.decoding.law`.
    `batch_size` rows go through the model at a time, each with at most `most_canvases` canvases: neither changes a
    value. The mode of the model (training, with dropout, or evaluation) is left as it is. Raises `InputError` for a
    negative temperature and as `canvas_logits` does.
    """
    whole("batch_size", batch_size, least=1)
    if most_canvases is not None:
        whole("most_canvases", most_canvases, least=1)
    if finite("temperature", temperature) < 0:
        raise InputError(f"temperature is {temperature}; give 0 for the model's own law, or a positive number")
    parts = [(number, looks) for number, plan in enumerate(plans) for looks in _cut(plan.looks, most_canvases)]
    rows = [_row(plans[number], looks, blocks) for number, looks in parts]
    widths = [_width(row) for row in rows]
    places: list[list[Tensor]] = [[] for _ in plans]
    found: list[list[Tensor]] = [[] for _ in plans]
    order = sorted(range(len(rows)), key=lambda part: widths[part])
    for at in range(0, len(order), batch_size):
        some = order[at : at + batch_size]
        logits = canvas_logits(model, [rows[part] for part in some], blocks=blocks, mask_id=mask_id, pad_id=pad_id)
        for part, logits_NV in zip(some, logits, strict=True):
            number, looks = parts[part]
            places_N, values_N = _values(plans[number], looks, logits_NV, blocks, temperature)
            places[number].append(places_N)
            found[number].append(values_N)
    log_probs = []
    for plan, where, values in zip(plans, places, found, strict=True):
        zero_T = torch.zeros(len(plan.tokens), device=model.device)
        log_probs.append(zero_T.index_add(0, torch.cat(where), torch.cat(values)) if values else zero_T)
    return Scored(log_probs, len(rows), sum(widths))


def _cut(looks: Sequence[Look], most: int | None) -> list[Sequence[Look]]:
    size = most or max(len(looks), 1)
    return [looks[at : at + size] for at in range(0, len(looks), size)]


def _row(plan: Plan, looks: Sequence[Look], blocks: Blocks) -> Row:
    """The looks as canvases, behind no more of the completion than the last of them sees."""
    seen = max(look.canvas.block for look in looks) * blocks.size
    return Row(plan.prompt, plan.tokens[:seen], [look.canvas for look in looks])


def _width(row: Row) -> int:
    return len(row.prompt) + len(row.completion) + sum(len(canvas.tokens) for canvas in row.canvases)


def _values(
    plan: Plan, looks: Sequence[Look], logits_NV: Tensor, blocks: Blocks, temperature: float
) -> tuple[Tensor, Tensor]:
    """The places that a row's looks are at, and the weighted log-probabilities of the tokens there."""
    device = logits_NV.device
    places, values, at = [], [], 0
    for look in looks:
        own = [look.canvas.block * blocks.size + place for place in look.canvas.wanted]
        logits_SV = logits_NV[at : at + len(own)]
        at += len(own)
        if look.unused is None:
            tokens_S = torch.tensor([plan.tokens[place] for place in own], device=device)
            log_p_SV = (logits_SV / (temperature or 1.0)).log_softmax(-1)
            log_p_S = log_p_SV.gather(-1, tokens_S[:, None]).squeeze(-1)
        else:
            taken_S = torch.tensor([plan.names.index(plan.tokens[place]) for place in own], device=device)
            log_p_S = plackett_luce_log_prob(
                logits_SV[:, torch.tensor(list(plan.names), device=device)],
                taken_S[None],
                unused_K=torch.tensor(look.unused, device=device),
                temperature=temperature,
            )[0]
        places.append(torch.tensor(own, device=device, dtype=torch.int64))
        values.append(log_p_S.float() * torch.tensor(list(look.weights), device=device))
    return torch.cat(places), torch.cat(values)


def log_ratios(new: Sequence[Tensor], old: Sequence[Tensor], *, level: str) -> list[Tensor]:
    """The log of the importance ratio of every token, [T] a completion, from the values of two models on one plan.

    Level "token": new - old, each token its own. "sequence": (sum new - sum old) / T, the same for all T tokens, which
    is ESPO's ratio (2512.03759) and, of exact values, GSPO's (2507.18071). An empty completion has none. The old values
    are taken without gradient. Raises `InputError` where lengths differ.

    >>> log_ratios([torch.tensor([-1.0, -3.0])], [torch.tensor([-2.0, -6.0])], level="sequence")[0].tolist()
    [2.0, 2.0]
    """
    one_of("level of ratios", level, LEVELS)
    if [len(values) for values in new] != [len(values) for values in old]:
        raise InputError(
            f"there are new values of {[len(values) for values in new]} tokens and old ones of "
            f"{[len(values) for values in old]}; score the same plans with both models"
        )
    differences = [new_T - old_T.detach() for new_T, old_T in zip(new, old, strict=True)]
    if level == "token":
        return differences
    return [one_T.mean().expand(len(one_T)) if len(one_T) else one_T for one_T in differences]


@dataclass(frozen=True, eq=False)
class Block:
    """One block of a completion: its `number`, its `text`, and how many places it had when it was written."""

    number: int
    text: Sequence[int]
    width: int
    mask_id: int

    def canvas(self, hidden: Collection[int], wanted: Sequence[int]) -> Canvas:
        """The block with these places of its text hidden, and all behind it."""
        tokens = [self.mask_id if place in hidden else int(token) for place, token in enumerate(self.text)]
        return Canvas(self.number, tokens + [self.mask_id] * (self.width - len(self.text)), list(wanted))

    def look(self, hidden: Sequence[int], weight: float) -> Look:
        """A look at these places, hidden, all of one weight."""
        return Look(self.canvas(hidden, hidden), [weight] * len(hidden))


def blocks_of(written: Written, setting: Setting) -> list[Block]:
    """The blocks of a completion. Raises `InputError` for more tokens than `max_tokens`."""
    tokens, size = written.completion, setting.blocks.size
    most = len(tokens) + size if setting.max_tokens is None else whole("max_tokens", setting.max_tokens, least=1)
    if len(tokens) > most:
        raise InputError(f"a completion has {len(tokens)} tokens, but max_tokens is {most}; give the limit it had")
    return [
        Block(start // size, tokens[start : start + size], min(size, most - start), setting.mask_id)
        for start in range(0, len(tokens), size)
    ]
