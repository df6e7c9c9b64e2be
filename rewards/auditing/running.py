"""The audit itself: every attack is made, paid and judged. May import numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import Failure
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.auditing.best_response import BEST_RESPONSE
from rerank_env.rewards.auditing.derived import derived_attacks
from rerank_env.rewards.auditing.inputs import (
    checked_parser,
    checked_popularity,
    checked_prompts,
    checked_reward,
    checked_slates,
    checked_users,
)
from rerank_env.rewards.auditing.judging import NOTHING_PAID, RESAMPLES, Outcome, judged, why_unjudged
from rerank_env.rewards.auditing.layout import percent
from rerank_env.rewards.auditing.orders import BLIND, DRAWS, YARDSTICKS
from rerank_env.rewards.auditing.paying import originals_of, ranked, written
from rerank_env.rewards.auditing.report import AuditReport, AuditRow
from rerank_env.rewards.auditing.scene import Parser, Scene
from rerank_env.rewards.auditing.structure import critical_steps, never_met, structural_warnings
from rerank_env.rewards.auditing.texts import TEXT_ATTACKS
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.counterfactual import shuffled_groups
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.rankings import completed, identity_rankings, random_rankings
from rerank_env.rewards.reward import Reward
from rerank_env.rewards.slates import Slates, ideal_rankings
from rerank_env.rewards.verifiable import Ndcg

GROUP = 4
"""How many answers to one request are compared where a reward compares them."""


def audit(
    reward: Reward | str,
    slates: Slates,
    *,
    seed: int = 0,
    text_format: str = "list",
    step: int | None = None,
    users_B: npt.ArrayLike | None = None,
    popularity_BK: npt.ArrayLike | None = None,
    prompts: Sequence[str] | None = None,
    parse: Parser | None = None,
    search: bool = True,
) -> AuditReport:
    """What every attack earns under `reward` on `slates`, beside honest yardsticks, and whether it passes.

    The yardsticks: "oracle" ranks by relevance, "anti_oracle" the other way round. Texts are written in `text_format`
    and read strictly, or by your own `parse`: (text, number of candidates) -> candidate indices counted from 0, best
    first, or None. Schedules are asked for `step`; None: at the first step, and again wherever one of them begins,
    switches or ends. `users_B` [B] says whose request each is (None: everybody has one); intervals are over users.
    `popularity_BK` [B, K] adds the popularity copy; `prompts`, one text a request, are what is echoed (None: a
    stand-in). `search` trains an input-blind policy against the reward, which takes some seconds. `seed` decides all
    that is random.

    Audit on a few thousand requests whose incoming order is better than random; the report warns where it is not, and
    leaves open what fewer than 30 users, or no relevance at all, cannot show. Raises `InputError` where an argument
    cannot be used or does not fit the slates, and where the reward needs what is not known here, such as clicks.

    >>> report = audit("naive", Slates.of([[0, 1, 0], [1, 0, 0]] * 15))
    >>> report["identity"].mean_reward, report["identity"].passed, report["empty"].mean_reward, report["empty"].passed
    (0.2, False, -1.0, True)
    """
    given, slates = checked_reward(reward), checked_slates(slates)
    came = Scene(
        reward=given,
        slates=slates,
        text_format=one_of("text format", text_format, FORMATS),
        step=0 if step is None else whole("step", step, least=0),
        users_B=np.arange(len(slates)) if users_B is None else checked_users(users_B, len(slates)),
        groups_B=np.arange(len(slates)),
        popularity_BK=None if popularity_BK is None else checked_popularity(popularity_BK, slates),
        prompts=None if prompts is None else checked_prompts(prompts, len(slates)),
        parse=checked_parser(parse),
    )
    seed = whole("seed", seed, least=0)
    scene = _in_groups(came, seed) if "groups" in given.needs else came
    steps = critical_steps(given) if step is None else [came.step]
    audits = [_audited(replace(scene, step=at), seed, search=search, several=len(steps) > 1) for at in steps]
    undecided = [
        why_unjudged(came.slates, came.users_B),
        *_of_failures([failure for one in audits for failure in one.failures]),
        *dict.fromkeys(one.misread for one in audits),
        *never_met(scene),
    ]
    if not any(one.oracle for one in audits):
        undecided.append("the oracle is paid nothing on these requests, so that there is nothing to learn or to steal")
    return AuditReport(
        reward=str(given),
        asked=reward.strip() if isinstance(reward, str) else str(given),
        n_requests=len(came.slates),
        text_format=text_format,
        steps=tuple(steps),
        rows=tuple(row for one in audits for row in one.rows),
        undecided=tuple(reason for reason in undecided if reason),
        warnings=(*_data_warnings(came, seed), *structural_warnings(given)),
    )


class _Audited(NamedTuple):
    """The rows of one training step, whether the oracle is paid, and what hinders judging."""

    rows: list[AuditRow]
    oracle: bool
    failures: list[Failure]
    misread: str


def _audited(scene: Scene, seed: int, *, search: bool, several: bool) -> _Audited:
    """Everything at the step of the scene."""
    slates = scene.slates
    attacks = [*YARDSTICKS, *BLIND, *derived_attacks(scene.reward, slates), *([BEST_RESPONSE] if search else [])]
    outcomes: list[Outcome] = []
    worst_B = np.full(len(slates), np.inf)
    for attack in attacks:
        made = ranked(scene, attack, seed)
        if made is not None:
            outcomes.append(made[0])
            worst_B = np.minimum(worst_B, made[1])
    misread = ""
    for prefix, base_BK in (
        ("", identity_rankings(slates.sizes_B, slates.width)),
        ("oracle_", ideal_rankings(slates)),
    ):
        originals = originals_of(scene, base_BK)
        base = scene.texts([original.text for original in originals])
        right_B = base.valid_B & (base.rankings_BK == base_BK).all(axis=1)
        if not right_B.all():
            misread = (
                f"only {percent(float(right_B.mean()))} of plain answers in the text format {scene.text_format!r} are "
                "read as the rankings they are; audit a parser in the format that it reads"
            )
        for trick in TEXT_ATTACKS:
            outcome, paid = written(scene, trick, prefix, originals, base)
            outcomes.append(outcome)
            if trick.kind == "dressed":
                worst_B = np.where(paid.scored_B, np.minimum(worst_B, paid.pay_B), worst_B)
    rows = judged(
        outcomes,
        worst_B,
        scene.users_B,
        seed=seed,
        step=scene.step,
        suffix=f" at step {scene.step}" if several else "",
        unjudged=why_unjudged(slates, scene.users_B),
    )
    failures = [failure for one in outcomes for failure in one.failures]
    return _Audited(rows, bool(scene.oracle_B.mean() > NOTHING_PAID), failures, misread)


def _of_failures(failures: Sequence[Failure]) -> list[str]:
    """A sentence for each function that failed."""
    found = []
    for name in dict.fromkeys(failure.name for failure in failures):
        own = [failure for failure in failures if failure.name == name]
        found.append(
            f"{name} failed on {len(own)} {'answer' if len(own) == 1 else 'answers'}, whose worth is not known; the "
            f"first time, {own[0].message}"
        )
    return found


def _in_groups(scene: Scene, seed: int) -> Scene:
    """Each request as it came and under other orders of its candidates: a rollout group of `GROUP` answers."""
    groups = shuffled_groups(scene.slates, GROUP, np.random.default_rng([seed, GROUP]), keep_first=True)
    copies = scene.take(groups.groups_B)
    popularity_BK = copies.popularity_BK
    if popularity_BK is not None and groups.slates.canonical_BK is not None:
        orders_BK = completed(groups.slates.canonical_BK, groups.slates.sizes_B)
        popularity_BK = np.take_along_axis(popularity_BK, orders_BK, axis=1)
    return replace(copies, slates=groups.slates, popularity_BK=popularity_BK)


def _data_warnings(scene: Scene, seed: int) -> list[str]:
    """What makes an audit on these requests hard to read."""
    slates, rng = scene.slates, np.random.default_rng([seed, DRAWS])
    incoming_B = Ndcg()(identity_rankings(slates.sizes_B, slates.width), slates)
    drawn = [Ndcg()(random_rankings(slates.sizes_B, slates.width, rng), slates) for _ in range(DRAWS)]
    random_B = np.mean(drawn, axis=0)
    gains_BC = (incoming_B - random_B)[:, None]
    if cluster_bootstrap(gains_BC, scene.users_B, resamples=RESAMPLES, rng=rng).interval(0).is_gain:
        return []
    return [
        f"the incoming order is not distinguishably better than a random one (NDCG {incoming_B.mean():.4f} against "
        f"{random_B.mean():.4f}), so that changing it at random may be worth its pay; audit where it is better"
    ]
