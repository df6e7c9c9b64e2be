"""The documentation names what there is: whatever is built in can be looked up by the name it goes by in text."""

import re
from pathlib import Path

import pytest

from rerank_env.rewards.registry import CONDITIONS, CONTEXTUAL, LEAVES, PRESETS

REWARDS = Path(__file__).parent.parent / "docs" / "rewards.md"


@pytest.mark.parametrize(
    "name", [*(kind.name for kind in LEAVES + CONTEXTUAL + CONDITIONS), *(preset.__name__ for preset in PRESETS)]
)
def test_everything_built_in_stands_in_the_page_on_rewards(name: str) -> None:
    prose = re.sub(r"```.*?```", "", REWARDS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert any(re.match(rf"{name}\b", code) for code in re.findall(r"`([^`]+)`", prose))
