"""Estimators by name, and a completion scored in one call.

May import `rerank_env.rewards` and the modules below.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from rerank_env.agents.block_diffusion.likelihood.gpl import Gpl
from rerank_env.agents.block_diffusion.likelihood.masked import Coupled, Elbo, MeanField
from rerank_env.agents.block_diffusion.likelihood.plans import Likelihood, Scored, Setting, Written, score
from rerank_env.agents.block_diffusion.likelihood.replay import ArOrder, Replay
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError

LIKELIHOODS: Mapping[str, Any] = {kind.name: kind for kind in (ArOrder, Coupled, Elbo, Gpl, MeanField, Replay)}
"""The estimators by the names that their text forms begin with."""


def likelihood_of(text: str | Likelihood) -> Likelihood:
    """The estimator that a text such as "replay", "elbo(draws=4)" or "gpl(rest=replay(merge=2))" stands for; what `str`
    of one gives comes back as that one, and an estimator is returned as it is.

    Raises `UnknownNameError` for an estimator that does not exist, which suggests the nearest, and `InputError` for a
    text of another form and for what the estimator cannot be told.

    >>> likelihood_of("replay(merge=2)") == Replay(merge=2), str(Gpl(rest=Replay()))
    (True, 'gpl(rest=replay)')
    """
    if not isinstance(text, str):
        return text
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.Constant(None)
    return _built(tree, text)


def _built(tree: ast.expr, text: str) -> Likelihood:
    called = tree.func if isinstance(tree, ast.Call) else tree
    keywords = tree.keywords if isinstance(tree, ast.Call) else []
    if not isinstance(called, ast.Name) or (isinstance(tree, ast.Call) and tree.args):
        raise InputError(f"the likelihood is {text!r}; give a name with what differs, such as 'replay(merge=2)'")
    kind = LIKELIHOODS[one_of("likelihood", called.id, LIKELIHOODS)]
    told: dict[str, Any] = {}
    for keyword in keywords:
        name = one_of(f"setting of {called.id}", keyword.arg or "**", kind.__dataclass_fields__)
        value = keyword.value
        told[name] = value.value if isinstance(value, ast.Constant) else _built(value, text)
    found: Likelihood = kind(**told)
    return found


def log_probs(
    likelihood: str | Likelihood,
    model: Any,
    written: Sequence[Written],
    setting: Setting,
    *,
    pad_id: int,
    **scoring: Any,
) -> Scored:
    """Completions planned and scored at once, for a `likelihood` by name or as it is; `scoring` is for `plans.score`.

    To compare two models plan once and `score` twice, as masks differ from plan to plan. Raises `InputError` as these
    do.
    """
    plans = likelihood_of(likelihood).plan(written, setting)
    return score(model, plans, blocks=setting.blocks, mask_id=setting.mask_id, pad_id=pad_id, **scoring)
