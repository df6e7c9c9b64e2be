"""The documentation names what there is: whatever is built in can be looked up by the name it goes by in text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rerank_env.rewards.proofs.promises import PROMISES
from rerank_env.rewards.proofs.soundness import Options
from rerank_env.rewards.registry import CONDITIONS, CONTEXTUAL, LEAVES, PRESETS

DOCS = Path(__file__).parent.parent / "docs"
REWARDS = DOCS / "rewards.md"
BLOCKS = DOCS / "block-diffusion.md"
BEFORE_BLOCKS = (
    "A policy from any model",
    "Remarks and templates",
    "A model from nothing",
    "Teachers and traces",
    "Fine-tuning",
)
"""The parts of the page on language models whose snippets those on block diffusion go on from."""


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


def snippets(page: Path, parts: tuple[str, ...] = ()) -> list[str]:
    """The code of a page, or of some of its parts, that is there to be run."""
    found = re.split(r"^##? ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    named = {part.partition("\n")[0]: part for part in found}
    return [code for part in parts or named for code in re.findall(r"```python\n(.*?)```", named[part], re.DOTALL)]


@pytest.mark.slow
@pytest.mark.torch
def test_the_snippets_on_block_diffusion_run_behind_those_on_language_models(tmp_path: Path) -> None:
    for library in ("transformers", "trl", "peft"):
        pytest.importorskip(library)
    before, own = snippets(DOCS / "language.md", BEFORE_BLOCKS), snippets(BLOCKS)
    assert (len(before), len(own)) == (5, 6)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::FutureWarning", "-c", "\n".join([*before, *own])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.torch
def test_all_that_block_diffusion_has_by_name_is_explained() -> None:
    pytest.importorskip("transformers")
    from rerank_env.agents.block_diffusion.answers import ANSWER_DECODERS
    from rerank_env.agents.block_diffusion.likelihood.names import LIKELIHOODS
    from rerank_env.agents.block_diffusion.rules import RULES

    page = BLOCKS.read_text(encoding="utf-8")
    named = {code.partition("(")[0] for code in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)}
    assert {*RULES, *ANSWER_DECODERS, *LIKELIHOODS} <= named


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]*(?:#[^)\s]*)?)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        if heading:
            lines = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines], target
