"""The exact likelihood of an answer that was filled in by the generalised Plackett-Luce law, and of what led to it.

May import `rerank_env.rewards` and the modules below.

    log p(ranking) = sum_i [ S[i, ranking_i] - logsumexp over the j not yet placed of S[i, j] ]

S are the logits of the candidates' names at the hidden slots of an answer (design section 6; 2410.02942); a block's
slots are read from one canvas, the blocks before it filled. Source: `rerank_env.agents.plackett_luce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rerank_env.agents.block_diffusion.filling import Form
from rerank_env.agents.block_diffusion.likelihood.plans import Likelihood, Look, Plan, Setting, Written
from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import Expression


@dataclass(frozen=True, repr=False)
class Gpl(Expression):
    """The slots of an answer by the law that filled them, what was written before it by another estimator, `rest`.

    The other signs of the answer were never drawn, so they have the value 0.0; so has, without `rest`, all that was
    written before it. Raises `InputError` for a `rest` that draws whole completions together, or is no estimator.
    """

    rest: Likelihood | None = None
    name: ClassVar[str] = "gpl"
    level: ClassVar[str] = "token"

    def __post_init__(self) -> None:
        """Check the field."""
        if self.rest is not None and getattr(self.rest, "level", None) != self.level:
            raise InputError(
                f"the rest of a completion is to be scored by {self.rest!s}, but a ranking has a ratio for every "
                "token; give an estimator that has too, such as Replay()"
            )

    def plan(self, written: Sequence[Written], setting: Setting) -> list[Plan]:
        """See `plans.Likelihood`; draws what `rest` draws. Every completion needs its form."""
        forms = [_form(one, number, setting.mask_id) for number, one in enumerate(written)]
        before = [replace(one, completion=form.written, form=None) for one, form in zip(written, forms, strict=True)]
        plans = [
            Plan(one.prompt, one.completion, _looks(one, form, setting), form.names)
            for one, form in zip(written, forms, strict=True)
        ]
        some = [number for number, one in enumerate(before) if len(one.completion)]
        if self.rest is None or not some:
            return plans
        first = self.rest.plan([before[number] for number in some], setting)
        for number, rest in zip(some, first, strict=True):
            own = before[number]
            if len(rest.tokens) != len(own.completion) or list(rest.prompt) != list(own.prompt):
                raise InputError(
                    f"{self.rest!s} hides a part of the prompt, or scores what was behind the text of completion "
                    f"{number}, where its answer now stands; give one that scores the text alone, such as Replay()"
                )
            plans[number] = replace(plans[number], looks=[*rest.looks, *plans[number].looks])
        return plans


def _form(written: Written, number: int, mask_id: int) -> Form:
    """The form of a completion, where it has one and they fit."""
    form = written.form
    if form is None:
        raise InputError(f"completion {number} has no form, so its slots are not known; give the one that was filled")
    blank = [*form.written, *form.answer]
    pairs = list(zip(written.completion, blank, strict=False))
    named = [token for token, was in pairs if was == mask_id]
    fits = len(blank) == len(written.completion) and all(token == was for token, was in pairs if was != mask_id)
    if not fits or list(written.prompt) != list(form.prompt) or not named:
        raise InputError(
            f"completion {number} is not its form with the slots filled, or the form has no slot; give the form that "
            "was filled, and all of its tokens"
        )
    if len(set(named)) < len(named) or not set(named) <= set(form.names):
        raise InputError(
            f"the slots of completion {number} name {named} of the candidates {list(form.names)}; an answer that names "
            "one twice, or none of them, has no probability, so leave it out"
        )
    return form


def _looks(written: Written, form: Form, setting: Setting) -> list[Look]:
    """A look at the slots of each block, as `filling.fill` saw them."""
    blank, size = [*form.written, *form.answer], setting.blocks.size
    unused = [True] * len(form.names)
    looks = []
    for start in range(0, len(blank), size):
        tokens = blank[start : start + size]
        slots = [place for place, token in enumerate(tokens) if token == setting.mask_id]
        if slots:
            canvas = Canvas(start // size, tokens, slots)
            looks.append(Look(canvas, [1.0] * len(slots), list(unused)))
        for place in slots:
            unused[form.names.index(written.completion[start + place])] = False
    return looks
