"""The record of Diffusion-GR2: what its rows say, and when its goals are met, on a table made up by hand."""

from typing import Any

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@3", "ndcg@5")
RATES = {
    "valid": 0.995,
    "unparseable": 0.001,
    "wrong length": 0.002,
    "duplicates a list": 0.01,
    "dropped a list": 0.02,
    "out of set a list": 0.0,
}


def row(**more: Any) -> dict[str, Any]:
    """A row of a recipe's table, every metric 0.3 in 0.2..0.4."""
    interval = {"value": 0.3, "low": 0.2, "high": 0.4}
    views = dict.fromkeys(
        ("metrics", "relative", "over_rival", "all_users", "shuffled"), dict.fromkeys(METRICS, interval)
    )
    rates = {"identity_rate": 0.1, "near_identity_rate": None, "validity": 0.995}
    return {"seeds": 3, **views, **rates, **more}


def test_a_diffusion_row_has_faults_forwards_and_the_gap_beside_the_metrics_of_all_rows() -> None:
    import diffusion_gr2

    told = row(faults=RATES, forwards=12.5, tokens_per_forward=4.0, gap={"value": 0.96, "low": 0.5, "high": 1.4})
    made = diffusion_gr2.diffusion_row("CFT, somehow", told, rival="AR teacher")
    assert made["name"] == "CFT: somehow"  # a comma parts rows where tables are written
    metrics = made["metrics"]
    for rate, value in RATES.items():
        assert metrics[rate] == {"value": value, "low": value, "high": value}
    assert metrics["forwards an answer"]["value"] == 12.5
    assert metrics["tokens a forward"]["value"] == 4.0
    assert metrics["gap in recall@1"] == {"value": 0.96, "low": 0.5, "high": 1.4}
    assert metrics["recall@3 over AR teacher"] == {"value": 0.3, "low": 0.2, "high": 0.4}
    assert "near identity rate" not in metrics


@pytest.mark.parametrize("gap", [None, {"value": None, "low": None, "high": None}])
def test_other_rows_have_none_of_it_and_an_undefined_gap_is_left_out(gap: dict[str, None] | None) -> None:
    import diffusion_gr2

    metrics = diffusion_gr2.diffusion_row("random", row(gap=gap), rival=None)["metrics"]
    assert not {*RATES, "forwards an answer", "tokens a forward", "gap in recall@1"} & metrics.keys()


@pytest.mark.parametrize(
    ("valid", "gap", "seeds", "met"),
    [
        (0.99, 0.94, 3, True),
        (0.989, 0.94, 3, False),
        (0.99, 0.939, 3, False),
        (0.99, 0.94, 2, False),
        (1.0, None, 3, False),
    ],
)
def test_the_goal_is_validity_after_fine_tuning_and_the_gap_after_reinforcement(
    valid: float, gap: float | None, seeds: int, met: bool
) -> None:
    import diffusion_gr2

    tuned = row(faults=RATES | {"valid": valid})
    reinforced = row(seeds=seeds, faults=RATES, gap={"value": gap, "low": gap, "high": gap})
    made = [
        diffusion_gr2.diffusion_row(name, told, rival="AR teacher")
        for name, told in {"CFT": tuned, "CFT + OPD + RL": reinforced}.items()
    ]
    assert diffusion_gr2.is_met({told["name"]: told["metrics"] for told in made}) is met
