"""Which canvases of a trajectory a student is asked on, for which of its places, to be compared with a teacher.

May import numpy, `rerank_env.agents.block_diffusion` and `rerank_env.rewards`. Pure functions of what was recorded.
Suffix: `_N` places that are asked for.

A student is asked on canvases as they were when it wrote, so on states that decoding meets; the teacher of the law of
each place has read all tokens before it as they were in the end. Two choices of canvases:

    committed   each token once, on the canvas on which it was committed (Diffusion-GR2, 2607.01170, on-policy
                distillation)
    hidden      of each block one canvas, that before a round drawn by chance, and all that was hidden on it: places
                committed later come up more often (OPDLM, 2606.06712). Rounds that had nothing left to hide among the
                tokens that are learned from are not drawn

Tokens behind the end of the text stand on canvases as they stood then, and are never asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank_env.agents.block_diffusion.model import Canvas
from rerank_env.agents.block_diffusion.trajectory import Trajectory
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.arrays import IntArray
from rerank_env.rewards.errors import InputError

PLACES = ("committed", "hidden")


@dataclass(frozen=True, eq=False)
class Targets:
    """The `canvases` of one completion, and `places_N` int64: which of its tokens each wanted place stands for, canvas
    by canvas in the order of `wanted`, which is that of the laws of `canvas_logits`.
    """

    canvases: Sequence[Canvas]
    places_N: IntArray


def targets(trajectory: Trajectory, learned: int, *, places: str, rng: np.random.Generator | None = None) -> Targets:
    """The targets among the first `learned` tokens of a completion, of the kind `places`; see the module.

    `rng` draws the rounds of "hidden". Raises `UnknownNameError` for another kind, and `InputError` for more tokens
    than the completion has and where there is nothing to draw from.
    """
    one_of("kind of places", places, PLACES)
    if not 0 <= learned <= trajectory.length:
        raise InputError(
            f"{learned} tokens are to be learned from but the completion has {trajectory.length}; give at most as many"
        )
    size, canvases = trajectory.block_size, []
    for block, start in enumerate(range(0, learned, size)):
        rounds = trajectory.committed[start : min(start + size, learned)]
        if places == "committed":
            asked = [(number, [at for at, when in enumerate(rounds) if when == number]) for number in sorted({*rounds})]
        else:
            number = int(_given(rng).integers(max(rounds) + 1))
            asked = [(number, [at for at, when in enumerate(rounds) if when >= number])]
        canvases += [Canvas(block, trajectory.canvas(block, number).tokens, wanted) for number, wanted in asked]
    found = [canvas.block * size + place for canvas in canvases for place in canvas.wanted]
    return Targets(canvases, np.array(found, dtype=np.int64))


def _given(rng: np.random.Generator | None) -> np.random.Generator:
    if rng is None:
        raise InputError("rounds are to be drawn but nothing was given to draw from; pass rng")
    return rng
