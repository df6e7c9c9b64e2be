"""The run of hostile completions that is measured a million times, here for some thousands."""

import hostile_text
import numpy as np

from rerank_env.rewards import parse_batch
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.repairing import repair


def test_no_hostile_completion_crashes_is_misread_or_is_paid():
    """Twelve batches: every format by number and by ID."""
    tallies, memory = hostile_text.run(12 * hostile_text.BATCH, seed=7)
    assert set(tallies) == set(FORMATS)
    assert len(memory) == 12
    for tally in tallies.values():
        assert (tally.completions, tally.disagreements, tally.overpaid) == (2 * hostile_text.BATCH, 0, 0)
        assert 0.05 < tally.valid / tally.completions < 0.3  # near enough to valid answers, and not all broken alike
        assert len(tally.verdicts) == 9  # every verdict a text can have


def test_a_parser_that_repairs_is_caught(monkeypatch):
    """Every answer of the six batches becomes a ranking: where it was none, that is a disagreement, and naive pays."""

    def lenient(texts, sizes, *, text_format, width, ids):
        parsed = parse_batch(texts, sizes, text_format=text_format, width=width, ids=ids)
        for row in np.flatnonzero(parsed.verdicts_B):
            row_ids = None if ids is None else ids[row]
            repaired = repair(texts[row], int(sizes[row]), text_format=text_format, ids=row_ids)
            parsed.rankings_BK[row, : sizes[row]] = repaired.ranking
        return parsed._replace(verdicts_B=np.zeros_like(parsed.verdicts_B))

    monkeypatch.setattr(hostile_text, "parse_batch", lenient)
    for tally in hostile_text.run(6 * hostile_text.BATCH, seed=3)[0].values():
        invalid = tally.completions - tally.valid
        assert (tally.disagreements, tally.overpaid) == (2 * invalid, invalid)  # ranking and verdict are compared apart


def test_the_run_is_the_same_for_the_same_seed():
    first, again, other = (hostile_text.run(2_000, seed=seed)[0] for seed in (1, 1, 2))
    for tally in (*first.values(), *again.values()):
        tally.microseconds.clear()
    assert first == again
    assert first != other


def test_growth_of_memory_is_seen_and_a_full_cache_is_not_growth():
    """Twenty batches: the second tenth has 5 and 5 or 70 and 71 MiB, the last tenth 70 and 70 or 88 and 89."""
    assert hostile_text.growth_mib([1.0, 4.0, 70.0, 70.0, *[70.0] * 16]) == 0.0
    assert hostile_text.growth_mib([float(68 + batch) for batch in range(20)]) == 16.0
