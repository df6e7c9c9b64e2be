"""A coder on disk is one thing: parts of another do not pass for its own, and it extends its own IDs only."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="needs the semantic-ids extra")

from rerank_env.agents.semantic_ids import Built, CoderSettings, ItemCoder, RqVaeConfig, build  # noqa: E402
from rerank_env.data.interactions import Interactions  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = RqVaeConfig(levels=3, codes=8)


def built(seed: int, word: str) -> Built:
    rng = np.random.default_rng(seed)
    log = Interactions(
        np.repeat(np.arange(20), 4), np.concatenate([rng.permutation(30)[:4] for _ in range(20)]), np.ones(80),
        np.tile(np.arange(4.0), 20), tuple(f"{word}{i % 7} thing{i}" for i in range(30)),
        np.zeros((30, 0), dtype=np.float32), (),
    )  # fmt: skip
    settings = CoderSettings(method="rq-kmeans", text="tfidf-svd", collaborative=0.0, vae=SMALL, seed=seed)
    return build(log, np.ones(80, dtype=bool), settings)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("part", ["quantiser", "words"])
def test_a_part_of_another_coder_is_refused(tmp_path: Path, part: str) -> None:
    for name, made in (("a", built(0, "red")), ("b", built(1, "blue"))):
        made.coder.save_pretrained(tmp_path / name)
    assert isinstance(ItemCoder.from_pretrained(tmp_path / "a"), ItemCoder)
    parts = [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()]
    assert part in parts
    shutil.rmtree(tmp_path / "a" / part)
    shutil.copytree(tmp_path / "b" / part, tmp_path / "a" / part)
    with pytest.raises(CheckpointError, match="were not saved together"):
        ItemCoder.from_pretrained(tmp_path / "a")


def test_ids_that_another_coder_made_are_not_extended() -> None:
    mine, other = built(0, "red"), built(1, "red")
    texts = [f"red{i % 7} thing{i}" for i in range(30)]
    with pytest.raises(InputError, match="extend them with the coder that made them"):
        mine.coder.extend(other.ids, [*texts, "new"], rng=np.random.default_rng(0))
    assert len(mine.coder.extend(mine.ids, [*texts, "new"], rng=np.random.default_rng(0))) == 31
