"""Requests and catalogues from plain lists: what is filled in, and what is refused with its row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank_env.data import Catalog, Requests
from rerank_env.env import RerankEnv
from rerank_env.rewards.errors import DataError, InputError, RerankError, SlateError


def test_lists_of_different_lengths_are_padded_at_the_tail() -> None:
    requests = Requests.of(
        [[0, 1, 2], [2, 0]], [[0, 0, 1], [2, 0]], [[0.5, 0.25, 0.125], [4, -4]],
        history=[[3], [1, 3]], feedback=[[5], [1, 2]], users=[9, 4],
    )  # fmt: skip
    assert requests.candidates_BK.tolist() == [[0, 1, 2], [2, 0, -1]]
    assert requests.relevance_BK.tolist() == [[0, 0, 1], [2, 0, 0]]
    assert requests.scores_BK.tolist() == [[0.5, 0.25, 0.125], [4, -4, 0]]
    assert requests.history_BH.tolist() == [[3, -1], [1, 3]]
    assert requests.feedback_BH.tolist() == [[5, 0], [1, 2]]
    assert requests.sizes_B.tolist() == [3, 2] and requests.users_B.tolist() == [9, 4]


def test_arrays_do_as_well_as_lists() -> None:
    rows = [np.array([0, 1, 2], dtype=np.int32), np.array([2, 0], dtype=np.uint8)]
    requests = Requests.of(rows, [np.array([0.0, 0, 1]), np.array([True, False])], history=np.array([[1], [0]]))
    assert requests.candidates_BK.tolist() == [[0, 1, 2], [2, 0, -1]]
    assert requests.relevance_BK.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert requests.history_BH.tolist() == [[1], [0]]


def test_what_is_left_out_has_plain_defaults() -> None:
    requests = Requests.of([[0, 1, 2], [2, 0]], [[0, 0, 1], [2, 0]])
    assert requests.scores_BK.tolist() == [[0, -1, -2], [0, -1, 0]]  # the order is all that is known
    assert requests.history_BH.tolist() == [[-1], [-1]] and requests.feedback_BH.tolist() == [[0], [0]]
    assert requests.users_B.tolist() == [0, 1]
    assert requests.catalog.texts == ("item 0", "item 1", "item 2")
    assert requests.catalog.features_IF.shape == (3, 0) and requests.catalog.popularity_I.tolist() == [0, 0, 0]
    assert Requests.of([[0, 1]], [[0, 1]], history=[[4, 2]]).feedback_BH.tolist() == [[1, 1]]
    assert len(Requests.of([[0, 1]], [[0, 1]], history=[[4, 2]]).catalog) == 5
    assert len(Requests.of([[0, 1]], [[0, 1]], features=np.zeros((7, 2))).catalog) == 7


def test_items_come_with_texts_and_features_or_as_a_catalogue() -> None:
    requests = Requests.of([[0, 1]], [[0, 1]], texts=["a", "b"], features=[[1, 2], [3, 4]])
    assert requests.catalog.texts == ("a", "b") and requests.catalog.feature_names == ("feature_0", "feature_1")
    assert requests.catalog.features_IF.dtype == np.float32
    assert Requests.of([[0, 1]], [[0, 1]], catalog=requests.catalog).catalog is requests.catalog
    with pytest.raises(InputError, match="one or the other"):
        Requests.of([[0, 1]], [[0, 1]], catalog=requests.catalog, texts=["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            ([[0, 1], [0, 1, 2]], [[0, 1], [0, 1]]),
            DataError,
            "relevance of request 1 has 2 entries but candidates has 3",
        ),
        (([[0, 1], [0, 1]], [[0, 1]]), DataError, "relevance has 1 lists for 2 requests"),
        (([[0, 1]], [[0, 1]], [[1.0]]), DataError, "scores of request 0 has 1 entries but candidates has 2"),
        (([[0, 1], [2, 2]], [[0, 1], [0, 1]]), DataError, "request 1 lists the same candidate twice"),
        (([[0, 1], [2]], [[0, 1], [1]]), SlateError, "request 1 has 1 candidates"),
        (([[0, 1], []], [[0, 1], []]), SlateError, "request 1 has 0 candidates"),
        (([[]], [[]]), SlateError, "request 0 has 0 candidates"),
        (([[0, 1], [2, -1]], [[0, 1], [1, 0]]), DataError, "request 1 has no candidates item at place 1"),
        (([[0, 1], [2, 1.5]], [[0, 1], [1, 0]]), DataError, "candidates of request 1 has dtype float64"),
        (([[0, 1], ["a", "b"]], [[0, 1], [1, 0]]), DataError, "candidates of request 1 has dtype"),
        (([[0, 1], [2, [3]]], [[0, 1], [1, 0]]), DataError, "candidates of request 1 has parts"),
        (([0, 1], [[0, 1]]), DataError, "candidates of request 0 is 0; give a list of numbers"),
        (([np.array(3)], [[0, 1]]), DataError, "candidates of request 0 is array"),
        ((["ab"], [[0, 1]]), DataError, "candidates of request 0 is 'ab'"),
        ((3, [[0, 1]]), DataError, "candidates is 3; give a list with one list a request"),
        (([[0, 1]], [[0, -1]]), SlateError, "request 0"),
        (([[0, 1]], [[0, None]]), DataError, "relevance of request 0 has dtype object"),
    ],
)
def test_lists_that_do_not_fit_are_refused_in_one_sentence_naming_the_row(
    arguments: tuple[object, ...], error: type[RerankError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        Requests.of(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"history": [[3]]}, "history has 1 lists for 2 requests"),
        ({"history": [[3], [4, 4]], "feedback": [[1], [1]]}, "feedback of request 1 has 1 entries but history has 2"),
        ({"feedback": [[1], []]}, "feedback of request 0 has 1 entries but history has 0"),
        ({"users": [1]}, "users has shape"),
        ({"users": ["ann", "bob"]}, "users has dtype"),
        ({"texts": ["a"]}, "the catalogue has items 0..0"),
        ({"texts": ["a", 2]}, "the text of item 1 is 2"),
        ({"features": [[1.0], [np.nan], [0]]}, "features of item 1 are not finite"),
        ({"features": [1.0, 2, 3]}, "features has shape"),
    ],
)
def test_what_is_added_has_to_fit_too(more: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Requests.of([[0, 1], [2, 0]], [[0, 1], [0, 1]], **more)  # type: ignore[arg-type]


def test_texts_of_a_catalogue_are_one_line_each_however_it_is_made() -> None:
    given = ["a\nb", "  c\t d\r\n", "e\u2028f", "g"]
    for catalog in (Catalog.of(given), Catalog(tuple(given), np.zeros((4, 0), np.float32), (), np.zeros(4))):
        assert catalog.texts == ("a b", "c d", "e f", "g")
        assert catalog.characters == " abcdefg"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"popularity": [1, -1]}, "popularity of item 1 is -1"),
        ({"popularity": [np.nan, 1]}, "popularity of item 0 is nan"),
        ({"popularity": [np.inf, 1]}, "popularity of item 0 is inf"),
        ({"popularity": [1]}, "popularity has 1 entries"),
        ({"popularity": ["many", "few"]}, "popularity has dtype"),
        ({"features": [[1], [np.inf]]}, "features of item 1 are not finite"),
        ({"features": [[1], [1e300]]}, "features of item 1 are not finite"),
        ({"features": [[1, 2], [3, 4]], "feature_names": ["one"]}, "1 feature names"),
        ({"features": [[1]]}, "2 texts"),
        ({"features": [[1], [2, 3]]}, "different lengths"),
    ],
)
def test_a_catalogue_that_does_not_fit_is_refused_naming_the_item(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        Catalog.of(["a", "b"], **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), min_size=2, max_size=6, unique=True),
            st.lists(st.integers(0, 9), max_size=4),
            st.randoms(use_true_random=False),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_lists_come_back_out_of_their_arrays_and_can_be_asked_in_an_environment(rows: list) -> None:
    candidates, history = [row[0] for row in rows], [row[1] for row in rows]
    relevance = [[row[2].choice([0, 1, 2]) for _ in row[0]] for row in rows]
    requests = Requests.of(candidates, relevance, history=history)
    assert [[i for i in row if i >= 0] for row in requests.candidates_BK.tolist()] == candidates
    assert [[i for i in row if i >= 0] for row in requests.history_BH.tolist()] == history
    assert [row[:n] for row, n in zip(requests.relevance_BK.tolist(), requests.sizes_B, strict=True)] == relevance
    env = RerankEnv(requests)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert env.step(np.argsort(-observation["scores"], kind="stable"))[4]["request"] < len(rows)
