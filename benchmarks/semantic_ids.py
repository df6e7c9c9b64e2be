"""What each technique of semantic IDs is good for, on Amazon Beauty, and the full method and its rival on all domains.

Run: RERANK_DATA=... python benchmarks/semantic_ids.py     (about twenty minutes on one core; Ctrl-C at any time, it
goes on where it was: what is done is kept in runs/semantic-ids until the code that makes IDs changes)

IDs have four levels of 256 codes. The last is drawn at random among the codes still free under an item's prefix, unless
a row says otherwise, so `uniqueness` of the whole ID is not meaning: `prefix_3` is that of the first three codes, which
are learned. `error` is what the learned codes leave of the embeddings' variance. `neighbours_1`, `_2`: how many of an
item's ten nearest by TEXT share its first one or two codes; `bought_1`, `_2`: how many last training purchases share
them with the purchase after, which nothing was fitted on; `..._chance`: the same if the pairs were shuffled. Twins are
items of equal text (Beauty has 55): `twins_alike` have all learned codes in common with one, `twins_shared` the whole
ID. The techniques are switched off one by one; "as by default" is what `CoderSettings()` is, without diversity loss and
dead-code reset. "new items" are a tenth of the catalogue that nothing was fitted on, coded by their texts alone.

A metric is the mean over the seeds, with the lowest and highest. Goal: whole IDs are unique for at least 99 % of items
on all three domains, by the full method.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from record import ROOT, finish, options_of

from rerank_env import durable
from rerank_env.agents import semantic_ids
from rerank_env.agents.semantic_ids import (
    CoderSettings,
    RqKMeans,
    RqVaeConfig,
    TransformerEncoder,
    assigned,
    collaborative_embedding,
    combined,
    consecutive,
    embedded,
    extended,
    fit,
    nearest_items,
    relative_error,
    report,
)
from rerank_env.agents.semantic_ids.quality import shared
from rerank_env.data.interactions import Interactions
from rerank_env.data.next_item import Targets, leave_one_out
from rerank_env.data.readers import amazon_sequences
from rerank_env.rewards.arrays import Float32Array, IntArray

COMMAND = "python benchmarks/semantic_ids.py"
SEEDS = (0, 1, 2)
KEPT = ROOT / "runs" / "semantic-ids"
UNIQUE = 0.99
HELD_OUT = 10
"""One item in so many is new."""

FULL = RqVaeConfig(diversity=0.01, dead_after=50)
TEXT_AND_PURCHASES = CoderSettings().collaborative

Variant = tuple[RqVaeConfig | None, float]
"""How the RQ-VAE is trained (None: RQ-k-means), and the weight of purchases beside the text."""

VARIANTS: Mapping[str, Variant] = {
    "full method": (FULL, TEXT_AND_PURCHASES),
    "RQ-k-means": (None, TEXT_AND_PURCHASES),
    "as by default": (RqVaeConfig(), TEXT_AND_PURCHASES),
    "without EMA": (replace(FULL, ema=0.0), TEXT_AND_PURCHASES),
    "without the random level": (replace(FULL, random_levels=0), TEXT_AND_PURCHASES),
    "without EMA and the random level": (replace(FULL, ema=0.0, random_levels=0), TEXT_AND_PURCHASES),
    "without diversity loss": (replace(FULL, diversity=0.0), TEXT_AND_PURCHASES),
    "without dead-code reset": (replace(FULL, dead_after=0), TEXT_AND_PURCHASES),
    "without contrastive loss": (replace(FULL, contrastive=0.0), TEXT_AND_PURCHASES),
    "without principal start": (replace(FULL, pca_start=False), TEXT_AND_PURCHASES),
    "without k-means start": (replace(FULL, kmeans_init=False), TEXT_AND_PURCHASES),
    "without purchases in the input": (FULL, 0.0),
    "without purchases at all": (replace(FULL, contrastive=0.0), 0.0),
    "none of them": (
        replace(
            FULL,
            ema=0.0,
            random_levels=0,
            diversity=0.0,
            dead_after=0,
            contrastive=0.0,
            pca_start=False,
            kmeans_init=False,
        ),
        0.0,
    ),
}
EVERYWHERE = ("full method", "RQ-k-means")
NEW_ITEMS = "new items, full method"


@dataclass(frozen=True)
class Domain:
    """One catalogue with its log, read and embedded when it is first needed."""

    name: str

    @cached_property
    def log(self) -> Interactions:
        """Who bought what."""
        return amazon_sequences.read(amazon_sequences.folder_of(self.name))

    @cached_property
    def targets(self) -> Targets:
        """What is asked of whom, and what may be fitted on."""
        return leave_one_out(self.log)

    @cached_property
    def text_ID(self) -> Float32Array:
        """What the texts mean, by the default encoder; cached on the disk."""
        return embedded(self.log.texts, TransformerEncoder())

    @cached_property
    def neighbours_IQ(self) -> IntArray:
        """The ten items of nearest text."""
        return nearest_items(self.text_ID)

    @cached_property
    def held_out_P2(self) -> IntArray:
        """Each user's last training purchase and the validation target after it."""
        rows = self.targets.rows["validation"]
        return np.stack([self.log.items_N[rows - 1], self.log.items_N[rows]], axis=1)

    @cached_property
    def pairs_P2(self) -> IntArray:
        """The training purchases directly after one another."""
        return consecutive(self.log, self.targets.seen_N)

    def rows(self, weight: float, seed: int) -> Float32Array:
        """What is quantised, with purchases of that weight."""
        bought = collaborative_embedding(self.log, self.targets.seen_N, rng=np.random.default_rng(seed))
        return combined(self.text_ID, bought if weight else None, weight=weight)


def measured(domain: Domain, variant: Variant, seed: int) -> dict[str, float]:
    """The metrics of IDs made in one way with one seed."""
    config, weight = variant
    rows_ID = domain.rows(weight, seed)
    rng = np.random.default_rng(seed)
    started = time.process_time()
    quantiser: Any
    if config is None:
        quantiser = RqKMeans.fit(rows_ID, rng=rng)
    else:
        pairs_P2 = domain.pairs_P2 if config.contrastive else None
        quantiser = fit(rows_ID, config, generator=torch.Generator().manual_seed(seed), pairs_P2=pairs_P2)
    seconds = time.process_time() - started
    texts = domain.log.texts
    ids = assigned(quantiser.codes(rows_ID), quantiser.sizes, texts=texts, rng=rng)
    found = report(ids, texts=texts, neighbours_IQ=domain.neighbours_IQ, pairs_P2=domain.held_out_P2)
    metrics = {
        "uniqueness": found.uniqueness[-1],
        **{f"prefix_{length}": found.uniqueness[length - 1] for length in (1, 2, 3)},
        **{f"used_{level}": found.used[level - 1] for level in (1, 2, 3)},
        **{f"perplexity_{level}": found.perplexity[level - 1] for level in (1, 2, 3)},
        "error": relative_error(rows_ID, quantiser.reconstructed(rows_ID)),
        "twins": found.twins,
        "twins_alike": found.twins_alike,
        "twins_shared": found.twins_shared,
        "spilled": found.spilled,
        "seconds": seconds,
    }
    for name, shares in (("neighbours", found.neighbours), ("bought", found.co_purchases)):
        for length, one in enumerate(shares, start=1):
            metrics |= {f"{name}_{length}": one.share, f"{name}_{length}_chance": one.chance}
    return metrics


def measured_new(domain: Domain, seed: int) -> dict[str, float]:
    """The same for items that nothing was fitted on, coded by their texts, beside those that it was."""
    log, rng = domain.log, np.random.default_rng(seed)
    new_I = np.zeros(log.item_count, dtype=bool)
    new_I[rng.permutation(log.item_count)[: log.item_count // HELD_OUT]] = True
    order = np.concatenate([np.flatnonzero(~new_I), np.flatnonzero(new_I)])
    place_I = np.argsort(order)
    old = int((~new_I).sum())
    seen_N = domain.targets.seen_N & ~new_I[log.items_N]
    bought = collaborative_embedding(log, seen_N, rng=np.random.default_rng(seed))
    rows_ID = combined(domain.text_ID, bought, weight=TEXT_AND_PURCHASES)[order]
    generator = torch.Generator().manual_seed(seed)
    model = fit(rows_ID[:old], FULL, generator=generator, pairs_P2=place_I[consecutive(log, seen_N)])
    texts = [log.texts[item] for item in order]
    ids = assigned(model.codes(rows_ID[:old]), model.sizes, texts=texts[:old], rng=rng)
    ids = extended(ids, model.codes(rows_ID[old:]), texts=texts, rng=rng)
    near_Q = domain.neighbours_IQ[order[old:]]
    first = np.repeat(np.arange(old, len(order)), near_Q.shape[1])
    pairs_P2 = place_I[domain.held_out_P2[new_I[domain.held_out_P2].any(axis=1)]]
    metrics = {"uniqueness": float(ids.uniqueness_L()[-1]), "prefix_3": float(ids.uniqueness_L()[2])}
    metrics["error"] = relative_error(rows_ID[old:], model.reconstructed(rows_ID[old:]))
    for name, one, other in (("neighbours", first, place_I[near_Q].ravel()), ("bought", *pairs_P2.T)):
        for length in (1, 2):
            same = shared(ids, one, other, length)
            metrics |= {f"{name}_{length}": same.share, f"{name}_{length}_chance": same.chance}
    return metrics


def kept(key: str, make: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What `make` gives, from the disk where it was made by the same code before."""
    digest = hashlib.sha256("\n".join([key, inspect.getsource(measured), inspect.getsource(measured_new)]).encode())
    for path in sorted(Path(semantic_ids.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    path = KEPT / f"{digest.hexdigest()[:32]}.json"
    if path.is_file():
        return dict(json.loads(path.read_text()))
    metrics = make()
    durable.replace(path, json.dumps(metrics).encode())
    return metrics


def row_of(name: str, runs: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    runs = list(runs)
    metrics = {}
    for metric in runs[0]:
        values = [float(run[metric]) for run in runs]
        middle = min(max(mean(values), min(values)), max(values))  # a mean of equal numbers may differ in the last bit
        metrics[metric] = {"value": middle, "low": min(values), "high": max(values)}
    shown = ("uniqueness", "prefix_3", "error", "neighbours_1", "neighbours_2", "bought_1", "bought_2")
    print(f"{name}: " + ", ".join(f"{metric} {metrics[metric]['value']:.4f}" for metric in shown), flush=True)
    return {"name": name, "metrics": metrics}


def main() -> None:
    options = options_of(__doc__).parse_args()
    torch.set_num_threads(1)

    rows, sizes, unique = [], [], []
    for domain in map(Domain, amazon_sequences.DOMAINS):
        sizes.append(domain.log.item_count)
        for name, variant in VARIANTS.items():
            if domain.name != "beauty" and name not in EVERYWHERE:
                continue
            runs = [kept(f"{domain.name} {variant} {seed}", partial(measured, domain, variant, seed)) for seed in SEEDS]
            rows.append(row_of(f"{domain.name}: {name}", runs))
            if name == "full method":
                unique += [run["uniqueness"] for run in runs]
        if domain.name == "beauty":
            new = [kept(f"new items {seed}", partial(measured_new, domain, seed)) for seed in SEEDS]
            rows.append(row_of(f"{domain.name}: {NEW_ITEMS}", new))
    finish(
        options,
        "semantic-ids",
        command=COMMAND,
        data="Amazon Beauty, Sports and Toys 2014 5-core, leave-one-out; items "
        + ", ".join(f"{count}" for count in sizes),
        n=sum(sizes),
        seeds=SEEDS,
        rows=rows,
        goal=f"whole IDs of the full method are unique for at least {UNIQUE:.0%} of items on every domain and seed, "
        "with 4 levels of 256 codes of which the last is random; the interval is the range over seeds",
        met=min(unique) >= UNIQUE,
    )


if __name__ == "__main__":
    main()
