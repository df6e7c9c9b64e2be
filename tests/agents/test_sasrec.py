"""SASRec: what its scores are, what they depend on, and what is on disk."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rerank_env.agents.retrieval.sasrec import SasRec, SasRecConfig  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError  # noqa: E402

pytestmark = pytest.mark.torch


def model_of(*, text: int = 4, precision: str = "float32", history: int = 5) -> SasRec:
    torch.manual_seed(0)
    config = SasRecConfig(items=12, history=history, width=8, layers=2, heads=2, text=text, precision=precision)
    model = SasRec(config, torch.randn(12, text) if text else None).eval()
    with torch.no_grad():  # away from the start, where all items are alike
        model.item_embedding.normal_()
        model.item_bias.normal_()
    return model


@pytest.mark.parametrize("text", [0, 4])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_scores_are_log_probabilities_over_the_catalogue(text: int, precision: str) -> None:
    scores = model_of(text=text, precision=precision).scores(np.array([[3, 1, -1], [0, 2, 4], [-1, -1, -1]]))
    assert scores.shape == (3, 12) and scores.dtype == np.float32
    assert np.exp(scores).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_a_history_scores_the_same_alone_and_padded_beside_others() -> None:
    model = model_of()
    together = model.scores(np.array([[3, 1, -1, -1], [0, 2, 4, 7]]))
    assert together[0] == pytest.approx(model.scores(np.array([[3, 1]]))[0], abs=1e-5)
    assert together[1] == pytest.approx(model.scores(np.array([[0, 2, 4, 7, -1, -1]]))[0], abs=1e-5)


def test_only_the_last_items_are_read_and_their_order_matters() -> None:
    model = model_of(history=3)
    long = model.scores(np.array([[9, 8, 3, 1, 5]]))
    assert long == pytest.approx(model.scores(np.array([[3, 1, 5]])), abs=1e-6)
    assert not np.allclose(long, model.scores(np.array([[1, 3, 5]])), atol=1e-3)


def test_a_state_depends_on_nothing_that_comes_later() -> None:
    model = model_of()
    with torch.no_grad():
        vectors = model.item_vectors()
        states = model.states(torch.tensor([[3, 1, 4, 2], [3, 1, 9, 8]]), vectors)
    assert torch.allclose(states[0, :2], states[1, :2], atol=1e-6)
    assert not torch.allclose(states[0, 2], states[1, 2], atol=1e-3)


def test_the_score_is_the_state_times_the_item_vector_plus_the_bias() -> None:
    model = model_of()
    with torch.no_grad():
        vectors = model.item_embedding + model.text_IW @ model.text_projection
        state = model.states(torch.tensor([[3, 1]]), vectors)[0, -1]
        logits = [float(state @ vectors[item] + model.item_bias[item]) for item in range(12)]
    expected = np.array(logits) - np.log(np.exp(logits).sum())
    assert model.scores(np.array([[3, 1]]))[0] == pytest.approx(expected, abs=1e-5)


def test_items_begin_at_their_texts_and_equal_texts_begin_side_by_side() -> None:
    torch.manual_seed(0)
    text = torch.nn.functional.normalize(torch.randn(12, 16), dim=1)
    text[1] = text[0]
    vectors = SasRec(SasRecConfig(items=12, width=16, text=16), text).item_vectors().detach()
    near = torch.nn.functional.cosine_similarity(vectors, text)
    assert near.min() > 0.98
    assert torch.nn.functional.cosine_similarity(vectors[0], vectors[1], dim=0) > 0.95


def test_what_was_saved_scores_the_same(tmp_path: Path) -> None:
    model = model_of()
    model.save_pretrained(tmp_path)
    history = np.array([[3, 1, -1], [0, 2, 4]])
    np.testing.assert_array_equal(SasRec.from_pretrained(tmp_path).scores(history), model.scores(history))


def test_a_folder_that_holds_no_such_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        SasRec.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"items": 0}, InputError, "items is 0"),
        ({"items": 5, "width": 9, "heads": 2}, InputError, "width is 9, which 2 heads cannot share"),
        ({"items": 5, "dropout": 1.0}, InputError, r"dropout is 1\.0"),
        ({"items": 5, "text": -1}, InputError, "text is -1"),
        ({"items": 5, "precision": "float8"}, UnknownNameError, "float8"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(fields: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        SasRecConfig(**fields)
