"""Ids as a log has them, which are text, and the numbers that records hold.

May import numpy and `rerank_env.rewards`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import DataError

HALF = "half a surrogate pair"
"""What a text holds that is none; JSON and Python let it through, no file and no tokenizer takes it."""


def user_numbers(user_ids: Iterable[str]) -> IntArray:
    """A number for each user, int64: the id itself where it is a whole number written plainly, else from its hash.

    The same id has the same number in every log, and no table is kept. Hashes have 62 bits and lie from 2**62 up: two
    of ten million users share a number with a probability of about one in 100,000.

    Raises `DataError` for an id that holds half a surrogate pair.

    >>> user_numbers(["17", "-4", "017"]).tolist()[:2]
    [17, -4]
    """
    known: dict[str, int] = {}
    for user in set(user_ids := list(user_ids)):
        if not is_text(user):
            raise DataError(f"the user id {user!r:.80} holds {HALF}, so it is no text; write it as UTF-8")
        number = whole_number(user)
        if number is None:
            number = 2**62 + (int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little") >> 2)
        known[user] = number
    return np.array([known[user] for user in user_ids], dtype=np.int64)


def is_text(text: str) -> bool:
    """Whether `text` can be written as UTF-8, which it can unless it holds half a surrogate pair.

    >>> is_text(chr(0x1F600)), is_text(chr(0xD83D))
    (True, False)
    """
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_number(text: str) -> int | None:
    """The 64-bit whole number that `text` is, written plainly; None for anything else."""
    digits = text.removeprefix("-")
    if len(digits) > 19 or not (digits.isascii() and digits.isdecimal()) or (digits[0] == "0" and text != "0"):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
