"""Click models by name: the parser that reads `str(model)` back.

The text is a call in Python's own grammar with keywords only, such as `trust(eta=0.5, attraction=grades(max_grade=2))`,
read with `ast`; nothing is ever evaluated as code. May import numpy and `rerank_env`'s data and rewards.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from rerank_env.clicks.attraction import Grades
from rerank_env.clicks.cascade import Cascade
from rerank_env.clicks.models import ClickModel
from rerank_env.clicks.places import PositionBased, TrustBias
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError

MODEL_OF: Mapping[str, Callable[..., ClickModel]] = {kind.name: kind for kind in (PositionBased, Cascade, TrustBias)}
"""Click models by the name that their text begins with."""

_ATTRACTION_OF: Mapping[str, Callable[..., Any]] = {Grades.name: Grades}

MAX_TEXT_CHARS = 10_000


def parse_click_model(text_or_model: str | ClickModel) -> ClickModel:
    """The click model that a text describes; a model is returned as it is.

    Raises `UnknownNameError` with the nearest name for a model or a parameter that does not exist, and `InputError` for
    anything else that is wrong with the text.

    >>> parse_click_model("pbm(eta=0.5)"), str(Cascade(after_click=0.6))
    (<pbm(eta=0.5)>, 'cascade(after_click=0.6)')
    """
    if isinstance(text_or_model, ClickModel):
        return text_or_model
    if not isinstance(text_or_model, str):
        raise InputError(f"a click model is given as text or as a ClickModel, not as {type(text_or_model).__name__}")
    text = text_or_model.strip()
    if not text or len(text) > MAX_TEXT_CHARS:
        raise InputError(f"a click model of {len(text)} characters cannot be read; write for example 'pbm(eta=1)'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tokeniser warns of oddities that are refused just below
            node = ast.parse(text, mode="eval").body
        model: ClickModel = _built(node, "click model", MODEL_OF)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as cause:
        raise InputError(f"the click model {text:.80} is not an expression; write for example 'pbm(eta=1)'") from cause
    return model


def _built(node: ast.expr, kind: str, known: Mapping[str, Callable[..., Any]]) -> Any:
    """What a name, or a call of it with keywords, stands for."""
    called, given = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
    if not isinstance(called, ast.Name) or (isinstance(node, ast.Call) and node.args):
        raise InputError(f"{ast.unparse(node):.80} is no {kind}; write its name with keywords, such as pbm(eta=1)")
    build = known[one_of(kind, called.id, known)]
    keywords: dict[str, Any] = {}
    for keyword in given:
        name = one_of(f"parameter of {called.id}", keyword.arg or "**", inspect.signature(build).parameters)
        if name in keywords:
            raise InputError(f"{ast.unparse(node):.80} gives {name} twice; give it once")
        keywords[name] = _value(name, keyword.value)
    return build(**keywords)


def _value(name: str, node: ast.expr) -> Any:
    """A number, a string, a tuple of numbers, or an attraction."""
    match node:
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            return tuple(_value(name, entry) for entry in entries)
        case ast.Name() | ast.Call() if name == "attraction":
            return _built(node, "attraction", _ATTRACTION_OF)
    raise InputError(f"{name}={ast.unparse(node):.80} cannot be read; give a number, a tuple of numbers or a string")
