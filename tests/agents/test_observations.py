"""Requests and environment observations become the same tensors, or a sentence says why not."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents import Observation, tensors  # noqa: E402
from rerank_env.data.synthetic import synthetic  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch
REQUESTS = synthetic(requests=12, slate_size=5, min_slate_size=2, history=4)


def observation(**changes: object) -> dict[str, object]:
    return {**REQUESTS.observation(), **changes}


def test_requests_mappings_tensors_and_observations_are_all_taken() -> None:
    seen = tensors(REQUESTS)
    assert isinstance(seen, Observation)
    assert len(seen) == 12
    assert np.array_equal(seen.sizes_B.numpy(), REQUESTS.sizes_B)
    assert tensors(seen) is seen
    as_tensors = {key: torch.from_numpy(np.array(values)) for key, values in REQUESTS.observation().items()}
    for other in (tensors(observation()), tensors(as_tensors), tensors(observation(prompt="left alone"))):
        assert torch.equal(other.candidates_BK, seen.candidates_BK)
        assert torch.equal(other.feedback_BH, seen.feedback_BH)


def test_arrays_are_copied_even_where_they_are_read_only() -> None:
    scores_BK = REQUESTS.scores_BK.copy()
    scores_BK.setflags(write=False)
    seen = tensors(observation(scores=scores_BK))
    seen.scores_BK.zero_()
    assert scores_BK.any()


def test_whole_numbers_serve_as_scores() -> None:
    seen = tensors(observation(scores=REQUESTS.scores_BK.astype(np.int64)))
    assert seen.scores_BK.dtype == torch.float32


def test_rows_are_cut_from_every_field() -> None:
    part = tensors(REQUESTS).rows(2, 5)
    expected = tensors(REQUESTS.take([2, 3, 4]))
    assert torch.equal(part.history_BH, expected.history_BH)
    assert torch.equal(part.scores_BK, expected.scores_BK)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scores": np.zeros((12, 4))}, r"scores has shape \(12, 4\) beside items of shape \(12, 5\)"),
        ({"history": np.zeros((11, 4)), "feedback": np.zeros((11, 4))}, "feedback has shape"),
        ({"candidates": np.zeros(5), "scores": np.zeros(5)}, "one request as a batch of one"),
        ({"candidates": np.full((12, 5), -1)}, "request 0 has no candidate"),
        ({"candidates": np.tile([0, 1, -1, 2, -1], (12, 1))}, "one after a padded place; put the padding last"),
    ],
)
def test_arrays_that_disagree_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tensors(observation(**changes))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match="has no feedback, history; pass what Rerank-v0"):
        tensors({"candidates": REQUESTS.candidates_BK, "scores": REQUESTS.scores_BK})
