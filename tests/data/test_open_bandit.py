"""The Open Bandit sample: a small file of its form, a damaged one, and the real counts."""

import time
from pathlib import Path

import numpy as np
import pytest

from rerank_env.data.readers.impression_log import read_log
from rerank_env.data.readers.impression_writer import write_impressions
from rerank_env.data.readers.open_bandit import CAMPAIGNS, POLICIES, SOURCES, read_open_bandit
from rerank_env.rewards.errors import DataError, UnknownNameError

USER = "user_feature_0,user_feature_1,user_feature_2,user_feature_3"
ROWS = (
    f",timestamp,item_id,position,click,propensity_score,{USER},user-item_affinity_0,user-item_affinity_1\n"
    "0,2019-11-24 00:00:34.500000+00:00,1,3,0,0.25,a,b,c,d,0.0,2.0\n"
    "1,2019-11-24 00:01:34+00:00,0,1,1,0.75,a,b,c,e,1.0,0.0\n"
)
ITEMS = (
    ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n"
    "0,0,-0.5,red,wool,men\n"
    "1,1,1.5,blue,silk,men\n"
)


def folder(tmp_path: Path, *, rows: str = ROWS, items: str = ITEMS) -> Path:
    (tmp_path / "men.csv").write_text(rows)
    (tmp_path / "item_context.csv").write_text(items)
    return tmp_path


def test_a_small_sample_is_read_field_by_field(tmp_path: Path) -> None:
    log = read_open_bandit("bts", "men", folder=folder(tmp_path))
    assert log.propensity == "selection" and log.sizes_B.tolist() == [1, 1]
    assert log.request_ids_B.tolist() == ["bts/men/0", "bts/men/1"]
    assert log.user_ids_B.tolist() == ["a/b/c/d", "a/b/c/e"]
    assert log.item_ids_I.tolist() == ["0", "1"] and log.items_N.tolist() == [1, 0]
    assert log.positions_N.tolist() == [3, 1] and log.clicks_N.tolist() == [0, 1]
    assert log.propensities_N.tolist() == [0.25, 0.75]
    assert log.timestamps_N is not None and log.timestamps_N.tolist() == [1574553634.5, 1574553694.0]
    assert log.row_columns["user_feature_3"].tolist() == ["d", "e"]
    assert log.row_columns["affinity"].tolist() == [[0, 2], [1, 0]]
    assert log.item_columns["item_feature_0"].tolist() == [-0.5, 1.5]
    assert log.item_columns["item_feature_1"].tolist() == ["red", "blue"]


def test_a_time_without_a_zone_is_in_utc_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        log = read_open_bandit(campaign="men", folder=folder(tmp_path, rows=ROWS.replace("+00:00", "")))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert log.timestamps_N is not None and log.timestamps_N.tolist() == [1574553634.5, 1574553694.0]


def test_it_is_written_and_read_back_as_a_log_of_selection(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the data extra")
    log = read_open_bandit(campaign="men", folder=folder(tmp_path))
    write_impressions(log, tmp_path / "log.csv.gz")
    again = read_log(tmp_path / "log.csv.gz", propensity="selection").read()
    assert again.item_ids_I[again.items_N].tolist() == ["1", "0"]
    assert again.propensities_N.tolist() == [0.25, 0.75] and again.timestamps_N is not None
    assert again.timestamps_N.tolist() == [1574553634.5, 1574553694.0]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (ROWS[:-1], "men.csv line 3: .* may be torn"),
        (ROWS.replace(",1,3,0,0.25", ",2,3,0,0.25"), r"men.csv line 2 has an item outside 0\.\.1"),
        (ROWS.replace(",1,3,0,0.25", ",x,3,0,0.25"), "line 2 has a field that is no number"),
        (ROWS.replace("2019-11-24 00:00:34.5", "yesterday"), "line 2 has a field that is no number or time"),
        (ROWS.replace(",1,3,0,0.25", ",1,0,0,0.25"), "line 2 has position 0, not a whole number from 1"),
        (ROWS.replace(",1,3,0,0.25", ",1,3,2,0.25"), "line 2 has click 2, not 0 or 1"),
        (ROWS.replace(",1,3,0,0.25", ",1,3,0,nan"), "line 2 has propensity nan, not a probability above 0"),
        (ROWS.replace("0.0,2.0", "0.0"), "line 2 has 11 fields, not 12"),
        (ROWS.replace("0.0,2.0", "0.0,inf"), "line 2 has an item outside .* or an affinity that is not finite"),
        (ROWS[1:], "line 1 is 'timestamp"),
        (ROWS.replace("a,b,c,d", "a\rb,b,c,d"), "line 2 is no row of CSV"),
        (ROWS.replace("a,b,c,d", f"{'a' * 200_000},b,c,d"), "line 2 is no row of CSV"),
        (ROWS.replace(",1,3,0,0.25", f",{'1' * 400},3,0,0.25"), "line 2 has a field that is no number"),
        (ROWS.replace(",1,3,0,0.25", f",{'1' * 5_000},3,0,0.25"), "line 2 has a field that is no number"),
        ("", "line 1 is missing"),
    ],
)
def test_a_damaged_sample_is_refused_with_its_line(tmp_path: Path, rows: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read_open_bandit(campaign="men", folder=folder(tmp_path, rows=rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("items", [ITEMS.replace("1,1,1.5", "1,2,1.5"), ITEMS.replace("1.5", "x"), ITEMS[:-9]])
def test_damaged_items_are_refused_with_their_line(tmp_path: Path, items: str) -> None:
    with pytest.raises(DataError, match="item_context.csv line 3"):
        read_open_bandit(campaign="men", folder=folder(tmp_path, items=items))


def test_another_policy_or_campaign_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown Open Bandit policy 'uniform'"):
        read_open_bandit("uniform")
    with pytest.raises(UnknownNameError, match="did you mean 'women'"):
        read_open_bandit("bts", "woman")


def test_every_sample_has_a_folder_of_its_own() -> None:
    assert len({source.name for source in SOURCES.values()}) == len(POLICIES) * len(CAMPAIGNS) == 6


@pytest.mark.network
@pytest.mark.slow
def test_the_whole_sample_has_60_000_rows_and_287_clicks_under_the_true_propensities() -> None:
    items = {"all": 80, "men": 34, "women": 46}
    rows = clicks = 0
    for policy in POLICIES:
        for campaign in CAMPAIGNS:
            log = read_open_bandit(policy, campaign)
            rows, clicks = rows + len(log), clicks + int(log.clicks_N.sum())
            assert len(log.item_ids_I) == items[campaign] == log.row_columns["affinity"].shape[1]
            assert set(log.positions_N.tolist()) == {1, 2, 3}
            uniform = np.isclose(log.propensities_N, 1 / items[campaign])
            assert policy != "random" or uniform.mean() > 0.99
    assert (rows, clicks) == (60_000, 287)
