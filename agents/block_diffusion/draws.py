"""The uniform numbers that tokens are drawn with, one for every place of every row and round.

May import torch, numpy and `rerank_env.rewards`. Suffixes: `_R` rows, `_T` places of a completion, `_N` places of some
rows.

That of a place's first round is drawn before anything is read, as `agents.language.generation` draws its numbers; those
of later rounds are made from it by mixing its bits with the round. So what a row writes depends on its own numbers, and
not on batches, nor on how many rounds others take.
"""

from __future__ import annotations

import numpy as np
import torch

from rerank_env.rewards.arrays import FloatArray, IntArray


def drawn_first(rows: int, tokens: int, generator: torch.Generator) -> FloatArray:
    """The numbers of all places' first rounds, float64 [R, T] in [0, 1)."""
    drawn_RT = torch.rand((rows, tokens), dtype=torch.float64, generator=generator, device=generator.device)
    numbers_RT: FloatArray = drawn_RT.cpu().numpy()
    return numbers_RT


def redrawn(uniform_N: FloatArray, round_N: IntArray) -> FloatArray:
    """Numbers in [0, 1) for rounds of places, float64 [N], from the number of each place's first round.

    Round 0 has that number itself; each later one a number that has nothing to do with it but follows from it. Source:
    SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    bits_N = (uniform_N * 2.0**53).astype(np.uint64) + round_N.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits_N = (bits_N ^ (bits_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_N = (bits_N ^ (bits_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_N = ((bits_N ^ (bits_N >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return np.where(round_N == 0, uniform_N, mixed_N)
