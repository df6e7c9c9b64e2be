"""What can be seen of a reward without a request: parts that shelter invalid answers, terms that cannot be met.

May import numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator

from rerank_env.rewards.expression import number_text
from rerank_env.rewards.formats import has_reasoning
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.shaping import Choice, Gate, OverIncoming
from rerank_env.rewards.textual import Cites


def structural_warnings(reward: Reward, text_format: str) -> list[str]:
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
    if not has_reasoning(text_format):
        for cites in dict.fromkeys(node for node in reward.walk() if isinstance(node, Cites)):
            found.append(f"{cites} is never met in the text format {text_format!r}, which has no place for reasons")
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
