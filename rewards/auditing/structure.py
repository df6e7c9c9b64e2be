"""What can be seen of a reward before anything is paid: parts that shelter invalid answers, parts that no text meets,
and the steps at which its schedules matter. May import numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rerank_env.rewards.auditing.scene import Scene
from rerank_env.rewards.context import Context
from rerank_env.rewards.expression import Expression, number_text
from rerank_env.rewards.formats import FORMATS, has_reasoning
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.schedules import Linear, Since
from rerank_env.rewards.shaping import Choice, Gate, OverIncoming
from rerank_env.rewards.slates import Slates
from rerank_env.rewards.textual import Cites, Length

_ONE_REQUEST = Slates.of([[0, 1]])


def structural_warnings(reward: Reward) -> list[str]:
    """A sentence for each part that is worth a second look; what it earns on requests is for the attacks to show."""
    found = []
    if reward.invalid >= reward.low:  # what shelters an invalid answer does no harm where another term punishes it
        for node in dict.fromkeys(_paying(reward)):
            if isinstance(node, Gate | Choice) and node.invalid > node.reward.low:
                found.append(
                    f"{node} gives an invalid answer {number_text(node.invalid)}, but a valid one as little as "
                    f"{number_text(node.reward.low)}; write .gate(valid, otherwise={_below(reward)}) around the whole"
                )
            elif isinstance(node, OverIncoming):
                found.append(
                    f"{node} gives an invalid answer {number_text(node.invalid)}, which the worst valid one may earn "
                    f"too; write .gate(valid, otherwise={_below(reward)}) around it"
                )
    for part in dict.fromkeys(reward.walk()):
        if "step" in part.own_needs and not isinstance(part, Linear | Since):
            found.append(f"{part} follows the training step in a way of its own; audit it at several, with step=")
    return found


def _paying(reward: Reward) -> Iterator[Reward]:
    """The parts whose score of an invalid answer counts: a gate and a difference decide it for all within them."""
    yield reward
    if not isinstance(reward, Gate | OverIncoming):
        for child in reward.children():
            if isinstance(child, Reward):
                yield from _paying(child)


def _below(reward: Reward) -> str:
    """A number that is less than the least a valid answer can earn."""
    return number_text(round(min(1.1 * reward.low, reward.low - 0.1), 6))


def never_met(scene: Scene) -> list[str]:
    """A sentence for each text term that pays nothing whatever is written, so that nothing is known of its holes."""
    echo_BK = identity_rankings(scene.slates.sizes_B, scene.slates.width)
    found = []
    for node in dict.fromkeys(scene.reward.walk()):
        if not isinstance(node, Cites | Length):
            continue
        if any(node(echo_BK, scene.slates, context=scene.context(dress)).any() for dress in scene.dresses):
            continue
        said = f"{node} is never met in the text format {scene.text_format!r}"
        if isinstance(node, Cites) and not has_reasoning(scene.text_format):
            others = [name for name in FORMATS if has_reasoning(name)]
            found.append(
                f"{said}, which has no place for reasons; audit it in {', '.join(others[:-1])} or {others[-1]}"
            )
        else:
            found.append(f"{said} by any answer that was written; give it limits that an answer can meet")
    return found


def critical_steps(reward: Reward) -> list[int]:
    """The training steps to audit: the first, and those at which a schedule in the reward begins, switches or ends.

    What is linear in each schedule is most at an end. Where schedules may be multiplied, as two of them or one that
    stands in two places, the middle between two such steps counts too. Of steps that no schedule tells apart, the
    first is enough.
    """
    schedules = [node for node in reward.walk() if isinstance(node, Linear | Since)]
    ends = {0}
    for node in schedules:
        if isinstance(node, Linear):
            ends |= {node.begin, node.begin + node.steps}
        else:
            ends |= {max(node.step - 1, 0), node.step}
    steps = sorted(ends)
    if sum(isinstance(node, Linear) for node in schedules) > 1:
        steps = sorted({*steps, *((one + other) // 2 for one, other in pairwise(steps))})
    told_apart: dict[tuple[float, ...], int] = {}
    for step in steps:
        told_apart.setdefault(tuple(_at(node, step) for node in schedules), step)
    return sorted(told_apart.values())


def _at(schedule: Expression, step: int) -> float:
    """What a schedule says at a step."""
    context, echo_BK = Context(step), [[0, 1]]
    if isinstance(schedule, Linear):
        return float(schedule(echo_BK, _ONE_REQUEST, context=context)[0])
    assert isinstance(schedule, Since)
    return float(schedule.holds(echo_BK, _ONE_REQUEST, context=context)[0])
