"""Policies with a blindfold see nothing of what is hidden, not even in words that were made from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rerank_env.data import Requests
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import UnknownNameError
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.hidden import INPUTS, Hidden


class Watcher:
    """Keeps the requests that it is asked about."""

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        del rng
        self.shown = requests
        return identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])


REQUESTS = replace(
    Requests.of(
        [[0, 1, 2], [2, 0]],
        [[0, 0, 1], [1, 0]],
        history=[[1], [0]],
        texts=["a", "b", "c"],
        remarks=[["near 9", "near 1", "near 0"], ["near 2", "near 3"]],
    ),
    scores_BK=np.array([[3.0, 2.0, 1.0], [2.0, 1.0, 0.0]], dtype=np.float32),
)


def shown(what: str) -> Requests:
    watcher = Watcher()
    Hidden(watcher, what).rank(REQUESTS, rng=np.random.default_rng(0))
    return watcher.shown


def test_every_input_is_hidden_and_the_others_are_left() -> None:
    assert (shown("history").history_BH == PAD).all() and not shown("history").feedback_BH.any()
    assert not shown("scores").scores_BK.any()
    for what in INPUTS:
        assert (shown(what).scores_BK == REQUESTS.scores_BK).all() == (what != "scores")
        assert (shown(what).history_BH == REQUESTS.history_BH).all() == (what != "history")
        np.testing.assert_array_equal(shown(what).candidates_BK, REQUESTS.candidates_BK)


def test_remarks_that_were_made_from_what_is_hidden_do_not_survive_it() -> None:
    assert shown("history").remarks_BK is None and shown("scores").remarks_BK is None


def test_remarks_can_be_hidden_by_themselves_and_are_not_made_anew() -> None:
    found = shown("remarks").remarks_BK
    assert found is not None and found.tolist() == [["", "", ""], ["", "", ""]]


def test_an_input_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'remarks'"):
        Hidden(Watcher(), "remark")
