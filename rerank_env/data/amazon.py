"""The Amazon data sets: purchases from `$RERANK_DATA`, with candidates that `rerank data build` made.

May import numpy, `rerank_env.data` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rerank_env.data import lists
from rerank_env.data.features import catalog_of
from rerank_env.data.fetch import cache_dir
from rerank_env.data.first_stage import ItemStatistics
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import SPLITTERS
from rerank_env.data.readers import amazon_sequences
from rerank_env.data.requests import Requests
from rerank_env.data.split import SPLITS
from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import DataError

NAMES = {f"amazon-{domain}": domain for domain in amazon_sequences.DOMAINS}
"""The data sets and the domains of their files."""

STAGES = ("sasrec", "popularity", "bm25")
"""The first stages that lists can be by."""


def read(name: str) -> Interactions:
    """The purchases of a data set of `NAMES`; raises `DataError` where the files are missing or damaged."""
    return amazon_sequences.read(amazon_sequences.folder_of(NAMES[name]))


def lists_path(name: str, first_stage: str, seed: int, variant: str = "") -> Path:
    """Where the lists of a data set are, made by a first stage with a seed.

    `variant` tells settings that are not the defaults apart; it is empty for those.
    """
    return cache_dir() / "lists" / f"{name}-{first_stage}-seed-{seed}{variant and '-'}{variant}.npz"


def build(
    name: str,
    /,
    *,
    kind: str,
    first_stage: str = "sasrec",
    slate_size: int = 10,
    history: int = 50,
    seed: int = 0,
    variant: str = "",
    latest: int | None = None,
) -> dict[str, Requests]:
    """Next-item requests of every split: the target among the first `slate_size` of the lists.

    `seed` is that of the first stage, and `variant` what `rerank data build` printed for settings that are not the
    defaults. `latest` keeps the last so many targets of each user in train (None: all), which are more like those of
    validation and test. Raises `DataError` where the lists were not built, and what they raise.
    """
    del kind  # there is one
    one_of("first stage", first_stage, STAGES)
    path = lists_path(name, first_stage, seed, variant)
    if not path.is_file():
        other = f" and variant {variant!r}" if variant else ""
        raise DataError(
            f"the candidates of {name} by {first_stage} with seed {seed}{other} are not built; run `rerank data build "
            f"{name} --first-stage {first_stage} --seed {seed}`{' with the same settings' if variant else ''}"
        )
    log = read(name)
    found, settings = lists.load(path, log)
    if latest is not None:
        found["train"] = found["train"].latest(log, latest)
    targets = SPLITTERS[settings["split"]](log)
    fitted = catalog_of(log, targets.seen_N, ItemStatistics.fit(log, targets.seen_N))
    catalog = replace(fitted, labels=())  # numbers of unknown categories: evidence compares them, no prompt shows them
    return {
        split: found[split].requests(
            log,
            targets,
            catalog,
            slate_size=slate_size,
            history=history,
            name=f"{name}, {split}: next item among {slate_size} by {first_stage}",
        )
        for split in SPLITS
    }
