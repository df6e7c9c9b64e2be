"""Documents in blocks: none is lost, none sees another, and only what is told is learned."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rerank_env.rewards.errors import InputError
from rerank_env.training.language.batches import IGNORED
from rerank_env.training.language.mixture import Documents
from rerank_env.training.language.packing import check_apart, collated, pack

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!rerank_env|tests).*"),
]

PAD = 0


def documents_of(lengths, given=()):
    """Documents of those lengths, with tokens 1, 2, 3, ... over all of them; the first `given[d]` are not told."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    told = np.ones(starts[-1], dtype=bool)
    for start, count in zip(starts[:-1], given, strict=False):
        told[start : start + count] = False
    return Documents(np.arange(1, starts[-1] + 1), told, starts, np.zeros(len(lengths), dtype=np.int64))


def pieces_of(blocks, row):
    """The documents of a block as slices, the padding at its end included."""
    starts = np.flatnonzero(blocks.positions_BT[row] == 0).tolist()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], blocks.ids_BT.shape[1]], strict=True)]


def test_a_block_by_hand():
    blocks = pack(documents_of([3, 4, 2], given=[1, 2, 0]), length=6, pad_id=PAD)
    assert blocks.ids_BT.tolist() == [[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 9]]
    assert blocks.labels_BT.tolist() == [
        [IGNORED, 2, 3, IGNORED, IGNORED, IGNORED],
        [IGNORED, IGNORED, 6, 7, IGNORED, 9],
    ]
    assert blocks.positions_BT.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 0, 1]]


def test_a_document_goes_where_it_leaves_the_least_room():
    blocks = pack(documents_of([5, 3, 6, 2, 3]), length=8, pad_id=PAD)
    sizes = [[piece.stop - piece.start for piece in pieces_of(blocks, row)] for row in range(len(blocks))]
    assert sizes == [[5, 3], [6, 2], [3, 5]]  # the last 5 are padding


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=120),
    length=st.integers(2, 32),
    seed=st.integers(0, 9),
)
def test_every_document_stands_in_one_block_once_and_a_longer_one_is_cut(lengths, length, seed):
    given_D = np.random.default_rng(seed).integers(0, lengths)
    documents = documents_of(lengths, given_D)
    pieces = [
        (start, min(start + length, end))
        for start, end in zip(documents.starts_D[:-1].tolist(), documents.starts_D[1:].tolist(), strict=True)
        for start in range(start, end, length)
    ]
    wanted = {start: stop for start, stop in pieces if documents.told_N[start + 1 : stop].any()}
    if not wanted:
        with pytest.raises(InputError, match="no document"):
            pack(documents, length=length, pad_id=PAD)
        return
    blocks = pack(documents, length=length, pad_id=PAD)
    assert blocks.split == sum(size > length for size in lengths)
    found = {}
    for row in range(len(blocks)):
        for place in pieces_of(blocks, row):
            ids, labels = blocks.ids_BT[row, place], blocks.labels_BT[row, place]
            assert blocks.positions_BT[row, place].tolist() == list(range(len(ids)))
            if ids[0] == PAD:
                assert (ids == PAD).all() and (labels == IGNORED).all()
                assert place.stop == length
                continue
            start = int(ids[0]) - 1
            assert start not in found
            found[start] = start + len(ids)
            assert ids.tolist() == list(range(start + 1, start + len(ids) + 1))
            told = documents.told_N[start : start + len(ids)].copy()
            told[0] = False
            assert labels.tolist() == np.where(told, ids, IGNORED).tolist()
    assert found == wanted


def test_little_room_is_left_where_documents_are_short():
    lengths = np.random.default_rng(0).integers(5, 60, size=2000)
    blocks = pack(documents_of(lengths.tolist()), length=256, pad_id=PAD)
    assert lengths.sum() / blocks.ids_BT.size > 0.98


def model_of(kind, attention, *, window=None):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    extra = {} if window is None else {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    config = {"llama": LlamaConfig, "qwen": Qwen3Config}[kind](
        vocab_size=64, num_key_value_heads=2, head_dim=8, attn_implementation=attention, **sizes, **extra
    )
    torch.manual_seed(0)
    return {"llama": LlamaForCausalLM, "qwen": Qwen3ForCausalLM}[kind](config)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "window"), [("llama", None), ("qwen", None), ("qwen", 4)])
def test_a_packed_document_has_the_logits_and_the_loss_of_one_alone(kind, window, attention):
    model = model_of(kind, attention, window=window)
    documents = documents_of([5, 7, 3, 9, 4], given=[2, 0, 1, 3, 0])
    blocks = pack(documents, length=16, pad_id=PAD)
    check_apart(model, blocks)
    batch = collated([blocks[row] for row in range(len(blocks))])
    out = model(**batch)
    losses = []
    for row in range(len(blocks)):
        for place in pieces_of(blocks, row):
            ids = torch.from_numpy(blocks.ids_BT[row, place])
            alone = model(ids[None], use_cache=False).logits[0]
            torch.testing.assert_close(out.logits[row, place], alone, atol=1e-5, rtol=1e-4)
            labels = torch.from_numpy(blocks.labels_BT[row, place])[1:]
            chosen = labels != IGNORED
            losses += (-alone[:-1].log_softmax(-1)[chosen, labels[chosen]]).tolist()
    assert out.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_model_that_mixes_documents_is_refused():
    class Blind(torch.nn.Module):
        """Reads no positions."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.get_input_embeddings = inner.get_input_embeddings

        def forward(self, input_ids, **_):
            return self.inner(input_ids)

    model = model_of("llama", "sdpa")
    blocks = pack(documents_of([5, 7]), length=16, pad_id=PAD)
    with pytest.raises(InputError, match="Blind does not keep packed documents apart"):
        check_apart(Blind(model), blocks)
    check_apart(Blind(model), pack(documents_of([8, 8]), length=8, pad_id=PAD))


def test_nothing_to_learn_is_refused():
    with pytest.raises(InputError, match="no document"):
        pack(documents_of([3, 4], given=[3, 4]), length=8, pad_id=PAD)
    with pytest.raises(InputError, match="no document"):
        pack(documents_of([]), length=8, pad_id=PAD)
    with pytest.raises(InputError, match="length"):
        pack(documents_of([3]), length=1, pad_id=PAD)
