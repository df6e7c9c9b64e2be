"""What the strategies draw is what they say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.rewards.testing import contexts_of, groups, rankings_of, slates


@given(groups(), st.data())
def test_groups_are_copies_of_requests_under_orders_of_their_own(drawn, data):
    batch = drawn.slates
    answers = drawn.to_canonical(data.draw(rankings_of(batch)))
    for group in np.unique(drawn.groups_B):
        rows = np.flatnonzero(drawn.groups_B == group)
        first, size = rows[0], batch.sizes_B[rows[0]]
        assert (batch.canonical_BK[first, :size] == np.arange(size)).all()
        for row in rows:
            originals = batch.relevance_BK[first, batch.canonical_BK[row, :size]]
            assert (batch.relevance_BK[row, :size] == originals).all()
            assert sorted(answers[row, :size]) == list(range(size))


@given(slates(logged=True), st.data())
def test_a_context_has_what_is_asked_for(batch, data):
    assert batch.provides == {"clicks", "predictions"}
    assert data.draw(contexts_of(batch, needs={"step", "tokens"})).provides == {"step", "tokens"}
    assert data.draw(contexts_of(batch)).provides == {"step", "groups", "reasonings", "chars", "tokens"}
