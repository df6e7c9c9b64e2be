"""Rewards by name: the parser that reads `str(reward)` back.

The text is an expression in Python's own grammar, read with `ast` and a short list of what is allowed; nothing is ever
evaluated as code. `name@10` is short for `name(k=10)`. May import numpy only.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rerank_env.rewards.algebra import Constant
from rerank_env.rewards.errors import InputError, RerankError, UnknownNameError
from rerank_env.rewards.expression import check_name
from rerank_env.rewards.registry import CONDITION_OF, REWARD_OF
from rerank_env.rewards.reward import Condition, Reward
from rerank_env.rewards.verifiable import ValidFormat

MAX_EXPRESSION_CHARS = 10_000

_METHODS = ("clip", "gate", "otherwise", "over_incoming", "when")
_AT = re.compile(r"(?<![\w.)\]])([A-Za-z_]\w*)@(\d{1,100})(?!\w)", re.ASCII)

Value = Reward | Condition | str | bool | None


def register_reward(name: str, reward: Reward | Callable[..., Reward]) -> None:
    """Let `parse_reward` know a reward of yours, or a function that builds one from keyword arguments.

    Registering the same again changes nothing.

    Raises `InputError` for a name that is taken or no identifier, for something that is no reward, and for a reward
    whose text could not be read back: a `FunctionReward` or a class of yours goes under its own name, and before
    anything that is made of it.
    """
    check_name(name)
    if not (isinstance(reward, Reward) or callable(reward)):
        raise InputError(f"{reward!r} is neither a reward nor a function that builds one")
    if name in CONDITION_OF or REWARD_OF.get(name, reward) != reward:
        raise InputError(f"the name {name!r} is taken; choose another")
    own = getattr(reward, "name", name) if isinstance(reward, type) else name
    if own != name:
        raise InputError(f"rewards of that class print as {own!r}; register it under that name, not as {name!r}")
    if isinstance(reward, Reward):
        _check_readable(name, reward)
    REWARD_OF[name] = reward


def register_condition(name: str, condition: Condition) -> None:
    """Let `parse_reward` know a condition of yours, such as a `FunctionCondition` of that name.

    Registering the same again changes nothing. Raises `InputError` for a name that is taken or no identifier, for what
    is no condition, and for a condition that prints as something else than `name` and could not be read back.
    """
    check_name(name)
    if not isinstance(condition, Condition):
        raise InputError(f"{condition!r} is no condition; give one such as FunctionCondition(function, name={name!r})")
    if name in REWARD_OF or CONDITION_OF.get(name, condition) != condition:
        raise InputError(f"the name {name!r} is taken; choose another")
    CONDITION_OF[name] = condition
    use = ValidFormat().when(condition)
    try:
        readable = _Reader(str(use), REWARD_OF).read() == use
    except InputError:
        readable = False
    if not readable:
        del CONDITION_OF[name]
        raise InputError(
            f"the condition {name!r} prints as {str(condition)!r}, which does not read back; name it {name!r} itself"
        )


def _check_readable(name: str, reward: Reward) -> None:
    """Raise `InputError` unless the text of `reward` reads back once `name` stands for it."""
    try:
        readable = _Reader(str(reward), {**REWARD_OF, name: reward}).read() == reward
    except InputError:
        readable = False
    if not readable:
        raise InputError(
            f"the reward {name!r} prints as {str(reward)!r}, which does not read back; register what it is made of "
            "first, each under its own name"
        )


def parse_reward(text_or_reward: str | Reward) -> Reward:
    """The reward that a text describes; a reward is returned as it is.

    Raises `UnknownNameError` with the nearest name for a name that does not exist, and `InputError` with the place in
    the text for anything else that is wrong.

    >>> parse_reward("ndcg@10.over_incoming().gate(valid, otherwise=-1.1)") == parse_reward("gain")
    True
    """
    if isinstance(text_or_reward, Reward):
        return text_or_reward
    if not isinstance(text_or_reward, str):
        raise InputError(
            f"a reward is given as text or as a Reward, not as {type(text_or_reward).__name__}; a function of yours "
            "becomes one as FunctionReward(function, name=..., low=..., high=..., invalid=...)"
        )
    return _Reader(text_or_reward, REWARD_OF).read()


class _Reader:
    """Walks one expression; `text` keeps its length throughout, so that places in it stay right."""

    def __init__(self, text: str, reward_of: Mapping[str, Reward | Callable[..., Reward]]) -> None:
        self.text = text
        self.reward_of = reward_of
        self.cut_offs: dict[int, tuple[str, int]] = {}
        """Where `name@k` begins, in the text without leading blanks; it is parsed as the one name `name_k`."""

    def read(self) -> Reward:
        if len(self.text) > MAX_EXPRESSION_CHARS:
            raise InputError(f"a reward of {len(self.text)} characters is too long; {MAX_EXPRESSION_CHARS} are allowed")
        if not self.text.strip():
            raise InputError("a reward cannot be empty; write for example 'gain' or 'ndcg@10'")
        if not self.text.isascii():
            place = next(i for i, char in enumerate(self.text) if not char.isascii())
            raise InputError(f"{self._near(place)} is not ASCII; write rewards in ASCII")
        line = re.sub(r"\s", " ", self.text)
        self.indent = len(line) - len(line.lstrip())
        line = line.strip()
        for match in _AT.finditer(line):
            self.cut_offs[match.start()] = (match[1], int(match[2]))
        line = _AT.sub(r"\1_\2", line)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the tokeniser warns of oddities that are refused just below
                tree = ast.parse(line, mode="eval")
            value = self._value(tree.body)
        except SyntaxError as cause:
            raise InputError(f"{self._near((cause.offset or 1) - 1 + self.indent)} is not an expression") from cause
        except (RecursionError, MemoryError, ValueError, OverflowError) as cause:
            if isinstance(cause, InputError):
                raise
            raise InputError(f"the reward {self.text[:40]!r}... cannot be read: {cause}") from cause
        if not isinstance(value, Reward):
            raise InputError(f"{self.text.strip()!r} is a {_kind(value)}, expected a reward")
        return value

    def _near(self, place: int) -> str:
        return f"at character {place + 1} of the reward {self.text!r}: {self.text[place : place + 20]!r}"

    def _refusal(self, node: ast.expr, complaint: str) -> InputError:
        return InputError(f"{self._near(node.col_offset + self.indent)} {complaint}")

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | None | str() as value):
                return value
            case ast.Constant(value=int() | float() as number):
                return Constant(number)
            case ast.Name():
                return self._built(node, (), {})
            case ast.UnaryOp(op=ast.USub()):
                return -self._reward(node.operand)
            case ast.UnaryOp(op=ast.UAdd()):
                return self._reward(node.operand)
            case ast.UnaryOp(op=ast.Invert()):
                return ~self._condition(node.operand)
            case ast.BinOp(left=left, right=right):
                return self._operation(node, left, right)
            case ast.Call(func=ast.Name() as name):
                return self._built(name, node.args, _keywords(self, node))
            case ast.Call(func=ast.Attribute() as attribute):
                return self._method(attribute, node)
        raise self._refusal(node, "is not allowed in a reward; use names, numbers, + - * & | ~ and methods")

    def _operation(self, node: ast.BinOp, left: ast.expr, right: ast.expr) -> Value:
        match node.op:
            case ast.Add():
                return self._reward(left) + self._reward(right)
            case ast.Sub():
                return self._reward(left) - self._reward(right)
            case ast.Mult():
                return self._reward(left) * self._reward(right)
            case ast.BitAnd():
                return self._condition(left) & self._condition(right)
            case ast.BitOr():
                return self._condition(left) | self._condition(right)
            case ast.MatMult():
                raise self._refusal(node, "has a stray @; write a cut-off right behind a name, as in ndcg@10")
        raise self._refusal(node, "uses an operator that rewards do not have; use + - * or, for conditions, & | ~")

    def _reward(self, node: ast.expr) -> Reward:
        value = self._value(node)
        if not isinstance(value, Reward):
            raise self._refusal(node, f"is a {_kind(value)}, expected a reward or a number")
        return value

    def _condition(self, node: ast.expr) -> Condition:
        value = self._value(node)
        if not isinstance(value, Condition):
            raise self._refusal(node, f"is a {_kind(value)}, expected a condition")
        return value

    def _built(self, node: ast.Name, arguments: Any, keywords: dict[str, ast.expr]) -> Value:
        name, k = self.cut_offs.get(node.col_offset, (node.id, None))
        known: Reward | Condition | Callable[..., Any] | None = self.reward_of.get(name, CONDITION_OF.get(name))
        if known is None:
            raise UnknownNameError.of("reward", name, [*self.reward_of, *CONDITION_OF])
        positional = [self._argument(argument) for argument in arguments]
        named = {key: self._argument(argument) for key, argument in keywords.items()}
        if k is not None:
            if "k" in named:
                raise self._refusal(node, "gives k twice")
            named["k"] = k
        if isinstance(known, Reward | Condition):
            if positional or named:
                raise self._refusal(node, f"is a registered {_kind(known)} and takes no arguments")
            return known
        return self._called(node, known, positional, named)

    def _method(self, attribute: ast.Attribute, node: ast.Call) -> Value:
        owner = self._reward(attribute.value)
        if attribute.attr not in _METHODS:
            raise UnknownNameError.of("reward method", attribute.attr, _METHODS)
        positional = [self._argument(argument) for argument in node.args]
        named = {key: self._argument(argument) for key, argument in _keywords(self, node).items()}
        method = getattr(owner, attribute.attr, None)
        if method is None:
            raise self._refusal(attribute, f"has no {attribute.attr}; it follows a when, as in a.when(c).otherwise(b)")
        return self._called(attribute, method, positional, named)

    def _argument(self, node: ast.expr) -> Value | int | float:
        """A number stays a number here, whole ones whole, because `k` wants them so."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
        return self._value(node)

    def _called(self, node: ast.expr, call: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Value:
        signature = inspect.signature(call)
        try:
            signature.bind(*positional, **named)
        except TypeError as cause:
            takes = ", ".join(signature.parameters) or "nothing"
            raise self._refusal(node, f"does not fit: {cause}; it takes {takes}") from cause
        try:
            value = call(*positional, **named)
        except RerankError:
            raise
        except Exception as cause:
            raise self._refusal(node, f"cannot be built: {type(cause).__name__}: {cause}") from cause
        if not isinstance(value, (Reward, Condition)):
            raise self._refusal(node, f"was registered as a reward but builds a {type(value).__name__}")
        return value


def _keywords(reader: _Reader, node: ast.Call) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for given in node.keywords:
        if given.arg is None:
            raise reader._refusal(given.value, "is unpacked with **; write every keyword out")
        if given.arg in found:
            raise reader._refusal(given.value, f"gives {given.arg} twice")
        found[given.arg] = given.value
    return found


def _kind(value: object) -> str:
    kinds: Iterator[tuple[type, str]] = iter([(Condition, "condition"), (Reward, "reward"), (str, "string")])
    return next((kind for type_, kind in kinds if isinstance(value, type_)), f"plain {value!r}")
