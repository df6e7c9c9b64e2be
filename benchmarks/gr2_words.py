"""How much of what LambdaMART finds in the evidence can the words in a prompt say? On validation lists only.

Run: RERANK_DATA=... python benchmarks/gr2_words.py     (five minutes on one core)

The tiny recipe tells its student a few features of each candidate as words with levels. Here other learners are told
exactly that: the rule that its teacher follows, without noise (a conditional logit on the levels), and trees with
LambdaMART's settings, on the recipe's words, on fewer and on more, up to all features as levels. Beside them stand
LambdaMART and the linear model on all features as the numbers they are. All learn from the lists of train, as the
student does, and are asked about those of validation; intervals resample users (2,000 resamples). What lies between
LambdaMART and the rule on the same words is lost by the words; what lies between the rule and the student is left to
learning. The recipe's words were chosen by such figures on Beauty, among more sets than are shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from record import finish, options_of

from rerank_env.agents.evidence import Evidence
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.evidence.words import WORDS, Remark
from rerank_env.agents.lambdamart import LambdaMart, LambdaMartSettings
from rerank_env.agents.linear import LinearPlackettLuce
from rerank_env.data import Requests, amazon, lists, load
from rerank_env.data.next_item import SPLITTERS
from rerank_env.rewards import parse_reward
from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.rankings import from_scores, identity_rankings
from rerank_env.training.language.traces import RuleTeacher
from rerank_env.training.recipes.sizes import size_of

DOMAINS = ("beauty", "sports", "toys")
METRICS = ("recall@1", "recall@5", "ndcg@5")
WIDTH, SEED, RESAMPLES = 10, 0, 2000
TREES = 300
"""On levels; that many were enough on Beauty, and more changed nothing."""

RECIPE = tuple(size_of("tiny").settings.remarks.features.split(","))
LEVELS = size_of("tiny").settings.remarks.levels
FOUR = tuple(name for name in RECIPE if name != "near_rate")
SEVEN = (*RECIPE, "label_mean", "after_rate")
RIVAL = "LambdaMART"


class Told:
    """Levels of some features that were looked up before, as `RuleTeacher` asks for them."""

    def __init__(self, names: Sequence[str], levels_BKF: IntArray) -> None:
        self.names, self._levels_BKF = names, levels_BKF

    def levels_of(self, requests: Requests) -> IntArray:
        """[B, K, F]."""
        del requests  # those that the levels are of
        return self._levels_BKF


def trees_on(levels_BKF: IntArray, relevant_BK: BoolArray, asked_BKF: IntArray) -> FloatArray:
    """The scores that trees on levels give the candidates that are asked about, [B, K]."""
    import lightgbm

    rows, width, kinds = levels_BKF.shape
    data = lightgbm.Dataset(
        levels_BKF.reshape(-1, kinds).astype(float), label=relevant_BK.reshape(-1).astype(int), group=[width] * rows
    )
    parameters = {**LambdaMartSettings().parameters(seed=SEED), "label_gain": [0, 1]}
    booster = lightgbm.train(parameters, data, num_boost_round=TREES)
    scores = booster.predict(asked_BKF.reshape(-1, kinds).astype(float), num_threads=1)
    return np.asarray(scores, dtype=np.float64).reshape(asked_BKF.shape[:2])


def answers_of(domain: str) -> tuple[Requests, dict[str, IntArray]]:
    """The validation requests of a domain, and every learner's answers to them."""
    data = f"amazon-{domain}"
    learn, asked = (load(data, split=s, first_stage="sasrec", slate_size=WIDTH) for s in ("train", "validation"))
    log = amazon.read(data)
    _, made_by = lists.load(amazon.lists_path(data, "sasrec", 0, ""), log)
    evidence = Evidence.fit(log, SPLITTERS[made_by["split"]](log).seen_N)
    names = list(evidence.names)
    said = [WORDS.get(name, Remark(name, f"f{number}", name)) for number, name in enumerate(names)]
    remarks = EvidenceRemarks.fit(evidence, learn, features=said, levels=LEVELS)
    all_learned_BKF, all_asked_BKF = remarks.levels_of(learn), remarks.levels_of(asked)

    def ranked(scores_BK: FloatArray) -> IntArray:
        return from_scores(scores_BK, asked.sizes_B, ties="incoming")[0]

    found = {
        "incoming": identity_rankings(asked.sizes_B, WIDTH),
        RIVAL: ranked(LambdaMart.fit(learn, evidence=evidence, seed=SEED).scores(asked)),
        "linear": LinearPlackettLuce.fit(learn, evidence=evidence, seed=SEED).rank(
            asked, rng=np.random.default_rng(SEED)
        ),
    }
    sets = {"four words": FOUR, "the recipe's five words": RECIPE, "seven words": SEVEN, "all as levels": tuple(names)}
    for label, chosen in sets.items():
        columns = [names.index(name) for name in chosen]
        learned_BKF, asked_BKF = all_learned_BKF[:, :, columns], all_asked_BKF[:, :, columns]
        rule = RuleTeacher.fit(Told(chosen, learned_BKF), learn, temperature=0.0)
        found[f"rule on {label}"] = ranked(rule.scores(asked_BKF))
        found[f"trees on {label}"] = ranked(trees_on(learned_BKF, learn.relevance_BK > 0, asked_BKF))
        print(f"{domain}: {label}", file=sys.stderr, flush=True)
    return asked, found


def rows_of(domain: str, asked: Requests, answers: Mapping[str, IntArray]) -> list[dict[str, Any]]:
    """Each learner's metrics, and how far it is from the rival, paired by user."""
    rewards = [parse_reward(name) for name in METRICS]
    columns = [reward(rankings_BK, asked.slates) for rankings_BK in answers.values() for reward in rewards]
    told = cluster_bootstrap(
        np.stack(columns, axis=1), asked.users_B, resamples=RESAMPLES, rng=np.random.default_rng(SEED)
    )
    rival = list(answers).index(RIVAL) * len(METRICS)
    rows = []
    for number, name in enumerate(answers):
        metrics = {}
        for place, metric in enumerate(METRICS):
            column = number * len(METRICS) + place
            metrics[metric] = told.interval(column)
            if name != RIVAL:
                metrics[f"{metric} - {RIVAL}"] = told.difference(column, rival + place)
        rows.append({"name": f"{domain}: {name}", "metrics": {m: numbers(v) for m, v in metrics.items()}})
    return rows


def numbers(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--only", choices=DOMAINS, action="append", help="one domain (default: all)")
    options = parser.parse_args()
    rows, asked = [], {}
    for domain in options.only or DOMAINS:
        asked[domain], answers = answers_of(domain)
        rows += rows_of(domain, asked[domain], answers)
    for row in rows:
        print(row["name"], {name: round(told["value"], 4) for name, told in row["metrics"].items()})
    counts = ", ".join(f"{len(requests)} of {domain}" for domain, requests in asked.items())
    finish(
        options,
        "gr2-words",
        command="RERANK_DATA=... python benchmarks/gr2_words.py",
        data=f"validation lists of ten by SASRec: {counts}; learned from those of train",
        n=sum(map(len, asked.values())),
        seeds=[SEED],
        rows=rows,
        goal="the recipe's words say what LambdaMART finds: trees on them are not below it, on every domain",
        met=all(
            row["metrics"][f"ndcg@5 - {RIVAL}"]["high"] >= 0 for row in rows if "trees on the recipe" in row["name"]
        ),
    )


if __name__ == "__main__":
    main()
