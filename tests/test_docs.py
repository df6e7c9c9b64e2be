"""The documentation names what there is: whatever is built in can be looked up by the name it goes by in text."""

import re
from pathlib import Path

import pytest

from rerank_env.rewards.proofs.promises import PROMISES
from rerank_env.rewards.proofs.soundness import Options
from rerank_env.rewards.registry import CONDITIONS, CONTEXTUAL, LEAVES, PRESETS

REWARDS = Path(__file__).parent.parent / "docs" / "rewards.md"


@pytest.mark.parametrize(
    "name", [*(kind.name for kind in LEAVES + CONTEXTUAL + CONDITIONS), *(preset.__name__ for preset in PRESETS)]
)
def test_everything_built_in_stands_in_the_page_on_rewards(name: str) -> None:
    prose = re.sub(r"```.*?```", "", REWARDS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert any(re.match(rf"{name}\b", code) for code in re.findall(r"`([^`]+)`", prose))


def section_on_soundness() -> str:
    page = REWARDS.read_text(encoding="utf-8")
    return page.partition("## Is this reward sound?\n")[2].partition("\n## ")[0]


def test_the_proof_in_the_page_on_rewards_runs_and_is_short() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section_on_soundness(), re.DOTALL)
    exec(block, {})  # asserts by itself
    assert len([line for line in block.splitlines() if line]) == 5


@pytest.mark.parametrize("option", Options.__annotations__)
def test_every_option_of_the_proof_is_explained(option: str) -> None:
    assert f"`{option}`" in section_on_soundness()


def test_the_table_of_broken_promises_names_promises() -> None:
    rows = re.findall(r"^\| (.*`.*) \| (.*) \| .* \|$", section_on_soundness(), re.MULTILINE)
    assert len(rows) == 4
    assert {name for _, promises in rows for name in re.findall(r"`(\w+)`", promises)} < set(PROMISES)
