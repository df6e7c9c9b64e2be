"""Semantic IDs as a record: words and back, prefixes, what is unique, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rerank_env.rewards.errors import CheckpointError, DataError, InputError, MissingExtraError
from rerank_env.rewards.formats import FORMATS, names
from rerank_env.rewards.parsing import parse
from rerank_env.semantic_ids import PrefixTrie, SemanticIds, catalogue_hash, load, save

CODES = [[0, 2, 1], [0, 2, 0], [1, 0, 0], [0, 1, 1], [0, 2, 1]]
TEXTS = ("ink", "pen", "cap", "nib", "ink")


def small(**changes: object) -> SemanticIds:
    """Five items; items 0 and 4 share an ID. The last level is random, and item 2 spilled."""
    told = {"codes": CODES, "sizes": (2, 3, 2), "texts": TEXTS, "drawn_from": [2, 2, 1, 2, 2]} | changes
    codes, sizes = told.pop("codes"), told.pop("sizes")
    return SemanticIds.of(codes, sizes, **told)  # type: ignore[arg-type]


tables = arrays.arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(0, 3))


def test_an_id_is_a_marker_a_word_a_level_and_a_marker() -> None:
    ids = small()
    assert ids.text(0) == "<|id|><|a_0|><|b_2|><|c_1|><|/id|>"
    assert ids.words(2) == ("<|id|>", "<|a_1|>", "<|b_0|>", "<|c_0|>", "<|/id|>")
    assert (len(ids), ids.levels) == (5, 3)


def test_the_vocabulary_has_both_markers_and_every_code_of_every_level_in_order() -> None:
    assert small().tokens() == (
        "<|id|>", "<|/id|>", "<|a_0|>", "<|a_1|>", "<|b_0|>", "<|b_1|>", "<|b_2|>", "<|c_0|>", "<|c_1|>"
    )  # fmt: skip
    assert len(SemanticIds.of([[0] * 4], (256,) * 4, texts=["x"]).tokens()) == 1026


@given(tables)
def test_reading_an_id_gives_the_item_back_unless_several_have_it(codes: np.ndarray) -> None:
    ids = SemanticIds.of(codes, (4,) * codes.shape[1], texts=[""] * len(codes))
    for item in range(len(ids)):
        same = [other for other in range(len(ids)) if (codes[other] == codes[item]).all()]
        assert ids.parse(ids.text(item)) == (item if len(same) == 1 else None)
        assert ids.parse(ids.text(item), among=[item]) == item
        assert ids.codes(ids.text(item)) == tuple(codes[item])


def test_an_id_that_is_shared_names_the_one_that_is_a_candidate() -> None:
    ids = small()
    assert ids.parse(ids.text(0)) is None
    assert ids.parse(ids.text(0), among=[4, 2]) == 4
    assert ids.parse(ids.text(0), among=[0, 4]) is None
    assert ids.parse(ids.text(0), among=[1, 2]) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "<|id|><|a_1|><|b_0|><|c_0|>", "<|a_1|><|b_0|><|c_0|>", "<|id|><|a_01|><|b_0|><|c_0|><|/id|>",
        "<|id|> <|a_1|><|b_0|><|c_0|><|/id|>", "<|id|><|a_1|><|b_0|><|c_0|><|/id|>\n",
        "<|id|><|b_0|><|a_1|><|c_0|><|/id|>", "<|id|><|a_1|><|b_0|><|/id|>", "<|id|><|a_1|><|b_3|><|c_0|><|/id|>",
        "<|id|><|a_1|><|b_1|><|c_0|><|/id|>", "<|id|><|a_\u0661|><|b_0|><|c_0|><|/id|>",
        "<|id|><|a_99999999999|><|b_0|><|c_0|><|/id|>", "<|id|><|a_-1|><|b_0|><|c_0|><|/id|>",
    ],
)  # fmt: skip
def test_what_is_not_exactly_the_id_of_an_item_names_none(text: str) -> None:
    assert small().parse(text) is None


@given(st.text(alphabet="<|>/idabc_0123 ", max_size=40))
def test_only_ids_as_they_are_written_are_read(text: str) -> None:
    ids = small()
    item = ids.parse(text, among=range(4))
    assert (item is None) == (text not in {ids.text(other) for other in range(4)})


@pytest.mark.parametrize("text_format", FORMATS)
def test_ids_are_legal_names_of_candidates_in_every_answer_format(text_format: str) -> None:
    ids = SemanticIds.of([[12, 200, 3, 77], [0, 255, 3, 77], [12, 200, 3, 78]], (256,) * 4, texts="abc")
    called = [ids.text(item) for item in range(3)]
    assert list(names(called, 3)) == called
    quote = '"' if text_format.endswith("json") else ""
    written = [f"{quote}{called[item]}{quote}" for item in (2, 0, 1)]
    body = " > ".join(f"[{name}]" for name in written) if text_format.endswith("arrows") else f"[{', '.join(written)}]"
    body = f'{{"ranking": {body}}}' if text_format.endswith("json") else body
    text = f"<answer>{body}</answer>" if text_format.startswith("tagged") else body
    assert list(parse(text, 3, text_format=text_format, ids=called).ranking) == [2, 0, 1]


def test_the_codes_that_may_follow_are_those_of_the_items_that_begin_so() -> None:
    trie = small().trie
    assert [trie.allowed(prefix).tolist() for prefix in ((), (0,), (0, 2), (1,), (1, 1), (2,))] == [
        [0, 1], [1, 2], [0, 1], [0], [], []
    ]  # fmt: skip
    assert trie.allowed((0, 2, 1)).tolist() == [] == trie.allowed((0, 2, 1, 0)).tolist()
    assert trie.items((0, 2)).tolist() == [1, 0, 4]
    assert trie.items((0, 2, 1)).tolist() == [0, 4]
    assert trie.items((0, 2, 1, 0)).tolist() == []


def test_candidates_alone_allow_fewer_codes_than_the_catalogue() -> None:
    ids = small()
    trie = ids.trie_of([3, 1])
    assert (trie.allowed(()).tolist(), trie.allowed((0,)).tolist()) == ([0], [1, 2])
    assert ids.allowed((0, 2), among=[3, 1]).tolist() == [0]
    assert ids.allowed((0, 2)).tolist() == [0, 1]
    assert (len(trie), len(ids.trie_of([]))) == (2, 0)
    assert ids.trie_of([]).allowed().tolist() == []


@given(tables, st.data())
def test_the_trie_agrees_with_a_plain_loop_over_the_codes(codes: np.ndarray, data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, len(codes) - 1), unique=True))
    prefix = tuple(data.draw(st.lists(st.integers(0, 4), max_size=codes.shape[1] + 1)))
    trie = PrefixTrie(codes, items)
    under = [item for item in items if len(prefix) <= codes.shape[1] and tuple(codes[item][: len(prefix)]) == prefix]
    follow = {int(codes[item][len(prefix)]) for item in under} if len(prefix) < codes.shape[1] else set()
    assert trie.allowed(prefix).tolist() == sorted(follow)
    assert trie.items(prefix).tolist() == sorted(under, key=lambda item: (tuple(codes[item]), item))


@given(tables, st.randoms(use_true_random=False), st.data())
@settings(max_examples=50)
def test_writing_only_words_that_are_allowed_always_spells_a_candidate(
    codes: np.ndarray, chance: object, data: st.DataObject
) -> None:
    ids = SemanticIds.of(codes, (4,) * codes.shape[1], texts=[""] * len(codes))
    items = data.draw(st.lists(st.integers(0, len(codes) - 1), unique=True, min_size=1))
    trie, written = ids.trie_of(items), []
    while allowed := ids.allowed_words(written, trie):
        assert set(allowed) <= set(ids.tokens())
        written.append(chance.choice(allowed))  # type: ignore[attr-defined]
    assert "".join(written) in {ids.text(item) for item in items}


def test_no_word_is_allowed_after_one_that_was_not() -> None:
    ids = small()
    for words in (["<|a_0|>"], ["<|id|>", "<|b_0|>"], ["<|id|>", "<|a_1|>", "<|b_2|>"], ["<|id|>", "x"], ["<|/id|>"]):
        assert ids.allowed_words(words) == ()
    assert ids.allowed_words([], ids.trie_of([])) == ()
    assert ids.allowed_words(ids.words(0)) == ()


def test_uniqueness_counts_distinct_prefixes_of_every_length() -> None:
    # Of 5 items: first codes {0, 1}; pairs {02, 10, 01}; wholes {021, 020, 100, 011}, as items 0 and 4 are alike.
    assert small().uniqueness_L().tolist() == [2 / 5, 3 / 5, 4 / 5]
    assert small().collisions() == ((0, 4),)
    assert SemanticIds.of([[0], [1]], (2,), texts="ab").collisions() == ()


def test_levels_that_were_drawn_are_told_from_those_that_mean_something() -> None:
    ids = small()
    assert ids.meaning_levels == 2
    assert ids.spilled_I.tolist() == [False, False, True, False, False]
    assert small(drawn_from=None).meaning_levels == 3


def test_a_catalogue_is_known_by_its_texts_in_their_order() -> None:
    assert catalogue_hash(["a  b\n", "c"]) == catalogue_hash(["a b", "c"])
    assert (
        len({catalogue_hash(texts) for texts in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], ["", "a", "b"])}) == 5
    )
    small().check_catalogue(TEXTS)
    with pytest.raises(DataError, match="those of another catalogue of 5 items, not of these 5"):
        small().check_catalogue(("pen", "ink", "cap", "nib", "ink"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sizes": (2, 2, 2)}, "item 0 has code 2 at level 1, but the codebook there has codes 0..1"),
        ({"codes": [[0, 2, -1]] * 5}, "item 0 has code -1 at level 2"),
        ({"sizes": (2, 3)}, r"codes have shape \(5, 3\) but there are 2 codebooks"),
        ({"sizes": (2, 0, 2)}, "a codebook's size is 0"),
        ({"sizes": ()}, "there are 0 codebooks; give one to 26"),
        ({"codes": np.array(CODES, dtype=float)}, "codes have dtype float64"),
        ({"texts": TEXTS[:4]}, "5 rows of codes but 4 texts"),
        ({"drawn_from": [2, 2, 1, 2, 4]}, "give one level from 0 to 3 an item"),
        ({"drawn_from": [2, 2]}, "give one level from 0 to 3 an item"),
    ],
)
def test_fields_that_disagree_are_refused_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small(**changes)


def test_items_that_do_not_exist_are_refused() -> None:
    ids = small()
    with pytest.raises(InputError, match=r"item 5 is not in the catalogue, which has items 0\.\.4"):
        ids.text(5)
    with pytest.raises(InputError, match="items range from 1 to 5"):
        ids.trie_of([1, 5])
    with pytest.raises(InputError, match="one item twice"):
        ids.trie_of([1, 1])
    with pytest.raises(InputError, match="give a row of item numbers"):
        ids.trie_of([0.5])
    with pytest.raises(InputError, match="one row an item"):
        PrefixTrie([1, 2])


def test_nobody_can_write_into_the_codes() -> None:
    ids = small()
    with pytest.raises(ValueError, match="read-only"):
        ids.codes_IL[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        ids.trie.allowed(())[0] = 1


@given(tables)
@settings(max_examples=20)
def test_saved_ids_come_back_whole(codes: np.ndarray) -> None:
    pytest.importorskip("safetensors")
    from tempfile import TemporaryDirectory

    texts = [f"item {item}" for item in range(len(codes))]
    ids = SemanticIds.of(codes, (4,) * codes.shape[1], texts=texts, drawn_from=[0] * len(codes), method="by hand")
    with TemporaryDirectory() as folder:
        save(ids, folder)
        again = load(folder, texts=texts)
    assert (again.codes_IL == ids.codes_IL).all() and (again.drawn_from_I == ids.drawn_from_I).all()
    assert (again.sizes, again.catalogue, again.method) == (ids.sizes, ids.catalogue, ids.method)


def test_ids_of_another_catalogue_and_damaged_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    save(small(), tmp_path)
    with pytest.raises(DataError, match="another catalogue"):
        load(tmp_path, texts=TEXTS[::-1])
    described, table = tmp_path / "semantic_ids.json", tmp_path / "semantic_ids.safetensors"
    whole, packed = described.read_text(), table.read_bytes()
    described.write_text(whole.replace('"items": 5', '"items": 6'))
    with pytest.raises(CheckpointError, match="were not saved together"):
        load(tmp_path, texts=TEXTS)
    described.write_text(whole)
    table.write_bytes(packed[:-3])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path, texts=TEXTS)
    table.unlink()
    with pytest.raises(CheckpointError, match=r"has no semantic_ids\.safetensors"):
        load(tmp_path, texts=TEXTS)
    assert json.loads(whole)["sizes"] == [2, 3, 2]


def test_ids_of_another_version_or_with_senseless_fields_are_refused(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    for change, sentence in (({"version": 2}, "of version 2"), ({"sizes": [2, 3]}, "but there are 2 codebooks")):
        save(small(), tmp_path)
        told = json.loads((tmp_path / "semantic_ids.json").read_text()) | change
        text = json.dumps(told)
        (tmp_path / "semantic_ids.json").write_text(text)
        tensors = safetensors.load_file(tmp_path / "semantic_ids.safetensors")
        safetensors.save_file(tensors, tmp_path / "semantic_ids.safetensors", metadata={"description": text})
        with pytest.raises(CheckpointError, match=sentence):
            load(tmp_path, texts=TEXTS)


@pytest.mark.parametrize("key", [None, "kind", "version", "sizes", "catalogue", "method"])
def test_a_description_with_anything_else_in_any_place_makes_no_sense(key: str | None, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    save(small(), tmp_path)
    told = json.loads((tmp_path / "semantic_ids.json").read_text())
    tensors = safetensors.load_file(tmp_path / "semantic_ids.safetensors")
    strange = [None, True, 0, -1, 1.0, 10**400, float("inf"), [], {}, [[1]], [True, 3, 2], "x"]
    texts = [
        json.dumps(value if key is None else told | {key: value})
        for value in strange
        if (key, value) != ("method", "x")
    ]
    nested = "[" * 100_000
    texts += ["", "{", nested] if key is None else [json.dumps(told | {key: "?"}).replace('"?"', nested)]
    for text in texts:
        (tmp_path / "semantic_ids.json").write_text(text)
        safetensors.save_file(tensors, tmp_path / "semantic_ids.safetensors", metadata={"description": text})
        with pytest.raises(DataError if json_of(text, "catalogue") == "x" else CheckpointError):
            load(tmp_path, texts=TEXTS)


def json_of(text: str, key: str) -> object:
    """What a description says under a key, None where it says nothing."""
    try:
        return json.loads(text)[key]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@pytest.mark.parametrize("name", ["codes", "drawn_from"])
def test_tables_of_anything_else_make_no_sense(name: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    save(small(), tmp_path)
    text = (tmp_path / "semantic_ids.json").read_text()
    tensors = safetensors.load_file(tmp_path / "semantic_ids.safetensors")
    whole = tensors.pop(name)
    for strange in (
        None,
        whole.astype(float),
        whole.astype(bool),
        whole[None],
        whole[:0],
        whole[:3],
        whole + 9,
        whole - 9,
    ):
        changed = tensors if strange is None else tensors | {name: strange}
        safetensors.save_file(changed, tmp_path / "semantic_ids.safetensors", metadata={"description": text})
        with pytest.raises(CheckpointError, match="do not make sense"):
            load(tmp_path, texts=TEXTS)


def test_files_without_safetensors_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for act in (lambda: save(small(), tmp_path), lambda: load(tmp_path, texts=TEXTS)):
        with pytest.raises(MissingExtraError, match=r'not installed; run: pip install "rerank-env\[agents\]"'):
            act()


def test_the_record_loads_nothing_heavy() -> None:
    code = (
        "import sys, rerank_env.semantic_ids, rerank_env.agents.semantic_ids; "
        "print(sorted({'torch', 'sklearn', 'transformers', 'safetensors', 'scipy.sparse'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
