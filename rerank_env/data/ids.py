"""Ids as a log has them, which are text, and the numbers that records hold. May import numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from rerank_env.rewards.arrays import IntArray


def user_numbers(user_ids: Iterable[str]) -> IntArray:
    """A number for each user, int64: the id itself where it is a whole number written plainly, else from its hash.

    The same id has the same number in every log, and no table is kept. Hashes have 62 bits and lie from 2**62 up: two
    of ten million users share a number with a probability of about one in 100,000.

    >>> user_numbers(["17", "-4", "017"]).tolist()[:2]
    [17, -4]
    """
    known: dict[str, int] = {}
    for user in set(user_ids := list(user_ids)):
        number = whole_number(user)
        if number is None:
            number = 2**62 + (int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little") >> 2)
        known[user] = number
    return np.array([known[user] for user in user_ids], dtype=np.int64)


def whole_number(text: str) -> int | None:
    """The 64-bit whole number that `text` is, written plainly; None for anything else."""
    digits = text.removeprefix("-")
    if len(digits) > 19 or not (digits.isascii() and digits.isdecimal()) or (digits[0] == "0" and text != "0"):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
