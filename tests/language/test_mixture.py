"""Four kinds of text from training purchases alone, each with its share of the tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from rerank_env.agents.language.scratch import build_tokenizer
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import leave_one_out
from rerank_env.data.requests import Requests
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.errors import DataError, InputError, UnknownNameError
from rerank_env.semantic_ids import SemanticIds
from rerank_env.training.language.corpus import BOUGHT, TASKS, Corpus, Text, bought, general_texts
from rerank_env.training.language.mixture import WEIGHTS, encoded, joined, mix

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
]

WORDS = ("red", "blue", "lip", "hair", "brush", "cream", "soap", "oil")


def log_of(users=12, items=16, *, length=7, seed=0):
    """Users who walk round the items in order, each from a place of its own."""
    rng = np.random.default_rng(seed)
    starts = rng.permutation(items)[:users]
    bought_UL = (starts[:, None] + np.arange(length)) % items
    return Interactions.arranged(
        np.repeat(np.arange(users), length),
        bought_UL.ravel(),
        np.ones(users * length),
        np.tile(np.arange(length, dtype=float), users),
        texts=tuple(f"{WORDS[item % 8].title()} {WORDS[(item + 3) % 8]} {WORDS[item // 8]}" for item in range(items)),
        content_IC=np.zeros((items, 0), dtype=np.float32),
        content_names=(),
        seed=seed,
    )


LOG = log_of()
TARGETS = leave_one_out(LOG)
IDS = SemanticIds.of([[item // 4, item % 4] for item in range(16)], (4, 4), texts=LOG.texts)
CORPUS = Corpus.of(LOG, TARGETS, IDS)
TOKENIZER = build_tokenizer([*LOG.texts, BOUGHT], vocab_size=400, extra_tokens=IDS.tokens())


def items_in(text):
    """The items whose IDs stand in a text, in order."""
    pieces = (f"<|id|>{piece.split('<|/id|>')[0]}<|/id|>" for piece in text.split("<|id|>")[1:])
    return [IDS.parse(piece) for piece in pieces]


def seen_by_user():
    return [LOG.items_N[(LOG.users_N == user) & TARGETS.seen_N].tolist() for user in range(12)]


def test_a_sequence_holds_the_training_purchases_of_one_user_in_order():
    assert [items_in(text.told) for text in CORPUS.texts["sequence"]] == seen_by_user()
    assert all(text.given == BOUGHT for text in CORPUS.texts["sequence"])
    assert [len(items) for items in seen_by_user()] == [5] * 12


def test_no_text_changes_when_validation_and_test_purchases_do():
    moved = LOG.items_N.copy()
    held = ~TARGETS.seen_N
    moved[held] = (moved[held] + 7) % 16
    other = Corpus.of(replace(LOG, items_N=moved), TARGETS, IDS)
    assert other.texts == CORPUS.texts
    assert [asked.target for asked in other.questions] != [asked.target for asked in CORPUS.questions]


def test_what_seen_leaves_out_is_in_no_text():
    seen_N = TARGETS.seen_N & (LOG.users_N < 6)
    some = Corpus.of(LOG, replace(TARGETS, seen_N=seen_N), IDS)
    assert [items_in(text.told) for text in some.texts["sequence"]] == seen_by_user()[:6]
    assert len(some.texts["persona"]) == 6
    assert len(some.questions) == 12


def cut(documents):
    """The tokens of each document."""
    return [tuple(part.tolist()) for part in np.split(documents.ids_N, documents.starts_D[1:-1])]


@pytest.mark.parametrize("history", [2, 3, 4, 5])
def test_a_long_history_is_told_once_in_parts_that_are_no_longer_than_asked(history):
    texts = Corpus.of(LOG, TARGETS, IDS, history=history).texts["sequence"]
    assert [item for text in texts for item in items_in(text.told)] == [i for items in seen_by_user() for i in items]
    for text in texts:
        assert len(items_in(text.given + text.told)) <= history
        assert len(text.told) > 0
    later = [text for text in texts if items_in(text.given)]
    assert bool(later) == (history < 5)
    assert all(len(items_in(text.given)) == history // 2 for text in later)


def test_a_caption_goes_both_ways():
    first = LOG.texts[0]
    told = [text for text in CORPUS.texts["caption"] if IDS.text(0) in text.given + text.told]
    assert told == [Text(f"{IDS.text(0)} is ", first), Text(f"{first} has the ID ", IDS.text(0))]


def test_a_persona_names_what_comes_back_and_interleaves_the_ids():
    tiny = Interactions.arranged(
        np.zeros(5, dtype=np.int64), np.arange(5), np.ones(5), np.arange(5.0),
        texts=("Red lip oil", "Red hair", "Red lip", "Soap", "Cream"),
        content_IC=np.zeros((5, 0), dtype=np.float32), content_names=(), seed=0,
    )  # fmt: skip
    ids = SemanticIds.of([[item] for item in range(5)], (5,), texts=tiny.texts)
    made = Corpus.of(tiny, leave_one_out(tiny), ids)
    names = {text: ids.text(item) for item, text in enumerate(tiny.texts)}
    assert made.texts["persona"] == (
        Text(
            "",
            "A customer who comes back to: red (3 of 3), lip (2 of 3). Bought, oldest first: "
            f"Red lip oil {names['Red lip oil']}; Red hair {names['Red hair']}; Red lip {names['Red lip']}.",
        ),
    )


@pytest.mark.parametrize(("split", "back"), [("validation", 2), ("test", 1)])
def test_a_question_asks_for_the_target_after_all_that_came_before(split, back):
    asked = Corpus.of(LOG, TARGETS, IDS, ask=split).questions
    everything = [LOG.items_N[LOG.users_N == user].tolist() for user in range(12)]
    assert [(list(one.history), one.target) for one in asked] == [(b[:-back], b[-back]) for b in everything]
    few = Corpus.of(LOG, TARGETS, IDS, ask=split, history=2).questions
    assert [list(one.history) for one in few] == [b[-back - 2 : -back] for b in everything]


def test_some_questions_are_drawn_and_keep_their_order():
    some = CORPUS.taking(5, seed=1).questions
    places = [CORPUS.questions.index(asked) for asked in some]
    assert len(set(places)) == 5
    assert places == sorted(places)
    assert CORPUS.taking(100, seed=1).questions == CORPUS.questions


def test_general_texts_are_prompts_without_answers_and_items():
    one = Requests.of([[0, 1, 2]], [[0, 0, 1]], history=[[3]], texts=[f"thing {item}" for item in range(4)])
    other = replace(one, relevance_BK=np.array([[1.0, 0.0, 0.0]]))
    writer = PromptWriter("list")
    found = general_texts(one, writer)
    assert found == general_texts(other, writer)
    assert found == [writer.write(one)[0].text, "thing 0", "thing 1", "thing 2", "thing 3"]
    made = Corpus.of(LOG, TARGETS, IDS, general=["", *found])
    assert made.texts["general"] == tuple(Text("", text) for text in found)


def test_a_corpus_that_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="another catalogue"):
        Corpus.of(LOG, TARGETS, SemanticIds.of([[0]] * 16, (1,), texts=["x"] * 16))
    with pytest.raises(UnknownNameError, match="split"):
        Corpus.of(LOG, TARGETS, IDS, ask="later")
    with pytest.raises(InputError, match="history"):
        Corpus.of(LOG, TARGETS, IDS, history=1)


def test_what_is_given_is_not_learned_and_a_document_ends_with_the_end_sign():
    documents = encoded([Text(BOUGHT, IDS.text(3)), Text("", "soap")], TOKENIZER)
    first, last = (documents.ids_N[a:b] for a, b in zip(documents.starts_D[:-1], documents.starts_D[1:], strict=True))
    assert TOKENIZER.decode(first) == f"{BOUGHT}{IDS.text(3)}<|im_end|>"
    assert TOKENIZER.decode(last) == "soap<|im_end|>"
    assert TOKENIZER.decode(first[documents.told_N[: len(first)]]) == f"{IDS.text(3)}<|im_end|>"
    assert documents.told_N[len(first) :].all()


def test_a_history_reads_the_same_in_a_question_and_in_a_document():
    items = [3, 1, 2]
    document = encoded([Text(BOUGHT, "".join(map(IDS.text, items)))], TOKENIZER)
    assert TOKENIZER(bought(items, IDS))["input_ids"] == document.ids_N[:-1].tolist()


@pytest.mark.parametrize("begins", [True, False])
def test_documents_begin_as_the_tokenizer_begins_texts(begins):
    tokenizer = build_tokenizer(["soap"], vocab_size=300)
    tokenizer.bos_token = "<|im_start|>"
    if begins:
        from tokenizers.processors import TemplateProcessing

        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.bos_token_id)]
        )
    documents = encoded([Text("so", "ap")], tokenizer)
    assert tokenizer.decode(documents.ids_N) == "<|im_start|>" * begins + "soap<|im_end|>"
    assert not documents.told_N[: 1 + begins].any()


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 30_000),
    weights=st.fixed_dictionaries({task: st.floats(0.01, 1) for task in TASKS}),
    seed=st.integers(0, 5),
)
def test_every_task_has_its_share_of_the_tokens_to_within_one_document(tokens, weights, seed):
    documents = mix(CORPUS.texts, TOKENIZER, weights=weights, tokens=tokens, seed=seed)
    for number, task in enumerate(TASKS):
        share = tokens * weights[task] / sum(weights.values())
        longest = encoded(CORPUS.texts[task], TOKENIZER).lengths_D.max()
        assert abs(documents.lengths_D[documents.tasks_D == number].sum() - share) <= longest


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(500, 20_000), seed=st.integers(0, 100))
def test_no_text_of_a_task_is_told_more_than_once_more_often_than_another(tokens, seed):
    documents = mix(CORPUS.texts, TOKENIZER, tokens=tokens, seed=seed)
    for number, task in enumerate(TASKS):
        distinct = set(cut(encoded(CORPUS.texts[task], TOKENIZER)))
        told = cut(documents.take(np.flatnonzero(documents.tasks_D == number)))
        assert len(distinct) == len(CORPUS.texts[task])
        counts = [told.count(text) for text in distinct]
        assert max(counts) - min(counts) <= 1


def test_the_usual_mixture_tells_every_sequence_once():
    documents = mix(CORPUS.texts, TOKENIZER, seed=0)
    ours = documents.take(np.flatnonzero(documents.tasks_D == TASKS.index("sequence")))
    assert sorted(cut(ours)) == sorted(cut(encoded(CORPUS.texts["sequence"], TOKENIZER)))
    assert documents.shares() == pytest.approx(WEIGHTS, abs=0.04)
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


def test_the_seed_decides_the_order():
    one, same, other = (mix(CORPUS.texts, TOKENIZER, tokens=2000, seed=seed) for seed in (0, 0, 1))
    assert one.ids_N.tolist() == same.ids_N.tolist()
    assert one.ids_N.tolist() != other.ids_N.tolist()


def test_a_task_without_a_weight_is_left_out():
    documents = mix(CORPUS.texts, TOKENIZER, weights={"caption": 2.0}, seed=0)
    assert set(documents.tasks_D.tolist()) == {TASKS.index("caption")}
    assert documents.shares()["caption"] == 1.0


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"caption": 0.0}, "all weights are 0"),
        ({"caption": -1.0}, "0 or more"),
        ({"caption": float("nan")}, "finite"),
        ({"captions": 1.0}, "did you mean 'caption'"),
        ({"general": 1.0}, "no texts"),
    ],
)
def test_weights_that_cannot_be_met_are_refused(weights, told):
    with pytest.raises(InputError, match=told):
        mix({**CORPUS.texts, "general": ()}, TOKENIZER, weights=weights, seed=0)


def test_a_tokenizer_without_an_end_sign_is_refused():
    tokenizer = build_tokenizer(["soap"], vocab_size=300)
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        encoded([Text("", "soap")], tokenizer)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_documents_are_taken_whole_in_any_order(data):
    every = joined([encoded(CORPUS.texts[task], TOKENIZER, task) for task in TASKS])
    rows = np.array(data.draw(st.lists(st.integers(0, len(every) - 1), max_size=12)), dtype=np.int64)
    some = every.take(rows)
    assert len(some) == len(rows)
    for place, row in enumerate(rows):
        here, there = slice(*some.starts_D[place : place + 2]), slice(*every.starts_D[row : row + 2])
        assert some.ids_N[here].tolist() == every.ids_N[there].tolist()
        assert some.told_N[here].tolist() == every.told_N[there].tolist()
        assert some.tasks_D[place] == every.tasks_D[row]
