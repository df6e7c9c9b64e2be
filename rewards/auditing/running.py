"""The audit itself: every attack is made, paid and judged. May import numpy only."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rerank_env.rewards.answers import OK
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.auditing.best_response import best_response_attack
from rerank_env.rewards.auditing.derived import derived_attacks
from rerank_env.rewards.auditing.judging import RESAMPLES, Outcome, judged
from rerank_env.rewards.auditing.orders import BLIND, DRAWS, YARDSTICKS, OrderAttack
from rerank_env.rewards.auditing.report import AuditReport
from rerank_env.rewards.auditing.scene import Paid, Parser, Scene
from rerank_env.rewards.auditing.structure import structural_warnings
from rerank_env.rewards.auditing.texts import TEXT_ATTACKS, Original, TextAttack, stand_in_prompt
from rerank_env.rewards.bootstrap import cluster_bootstrap
from rerank_env.rewards.copies import copying
from rerank_env.rewards.counterfactual import shuffled_groups
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS
from rerank_env.rewards.names import parse_reward
from rerank_env.rewards.rankings import Verdict, completed, identity_rankings, random_rankings
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
    step: int = 0,
    users_B: npt.ArrayLike | None = None,
    popularity_BK: npt.ArrayLike | None = None,
    prompts: Sequence[str] | None = None,
    parse: Parser | None = None,
    search: bool = True,
) -> AuditReport:
    """What every attack earns under `reward` on `slates`, beside honest yardsticks, and whether it passes.

    The yardsticks: "oracle" ranks by relevance, "anti_oracle" the other way round. Texts are written in `text_format`
    and read strictly, or by your own `parse`: (text, number of candidates) -> candidate indices counted from 0, best
    first, or None. Schedules are asked for `step`, and at their ends. `users_B` [B] says whose request each is (None:
    everybody has one); intervals are over users. `popularity_BK` [B, K] adds the popularity copy; `prompts`, one text
    a request, are what is echoed (None: a stand-in). `search` trains an input-blind policy against the reward, which
    takes some seconds. `seed` decides all that is random.

    Audit on a few thousand requests whose incoming order is better than random; the report warns where it is not.
    Raises `InputError` if there are no slates, where `users_B`, `popularity_BK` or `prompts` do not fit them, and where
    the reward needs what is not known here, such as clicks.

    >>> report = audit("naive", Slates.of([[0, 1, 0], [1, 0, 0]]))
    >>> report["identity"].mean_reward, report["identity"].passed, report["empty"].mean_reward, report["empty"].passed
    (0.2, False, -1.0, True)
    """
    if not len(slates):
        raise InputError("there are no slates to audit on; give at least one request")
    came = Scene(
        reward=parse_reward(reward),
        slates=slates,
        text_format=one_of("text format", text_format, FORMATS),
        step=whole("step", step, least=0),
        users_B=np.arange(len(slates)) if users_B is None else np.asarray(users_B),
        groups_B=np.arange(len(slates)),
        popularity_BK=None if popularity_BK is None else np.asarray(popularity_BK, dtype=np.float64),
        prompts=prompts,
        parse=parse,
    )
    scene = _in_groups(came, seed) if "groups" in came.reward.needs else came
    slates = scene.slates
    attacks = [*YARDSTICKS, *BLIND, *derived_attacks(scene.reward, slates, text_format=text_format, step=scene.step)]
    if search:
        attacks.append(best_response_attack(scene))
    outcomes: list[Outcome] = []
    worst_B = np.full(len(slates), np.inf)
    for attack in attacks:
        made = _ranked(scene, attack, seed)
        if made is not None:
            outcomes.append(made[0])
            worst_B = np.minimum(worst_B, made[1])
    for prefix, base_BK in (
        ("", identity_rankings(slates.sizes_B, slates.width)),
        ("oracle_", ideal_rankings(slates)),
    ):
        originals = _originals(scene, base_BK)
        base = scene.texts([original.text for original in originals])
        for trick in TEXT_ATTACKS:
            outcome, paid = _written(scene, trick, prefix, originals, base)
            outcomes.append(outcome)
            if trick.kind == "dressed":
                worst_B = np.where(paid.verdicts_B == OK, np.minimum(worst_B, paid.pay_B), worst_B)
    rows = judged(outcomes, worst_B, scene.users_B, seed=seed)
    warnings = [*_data_warnings(came, seed), *structural_warnings(scene.reward, text_format)]
    if scene.oracle_B.mean() <= 0:
        warnings.append("the oracle is paid nothing on these requests, so there is nothing to learn or to steal")
    return AuditReport(str(scene.reward), len(came.slates), text_format, scene.step, tuple(rows), tuple(warnings))


def _in_groups(scene: Scene, seed: int) -> Scene:
    """Each request as it came and under other orders of its candidates: a rollout group of `GROUP` answers."""
    groups = shuffled_groups(scene.slates, GROUP, np.random.default_rng([seed, GROUP]), keep_first=True)
    copies = scene.take(groups.groups_B)
    popularity_BK = copies.popularity_BK
    if popularity_BK is not None and groups.slates.canonical_BK is not None:
        orders_BK = completed(groups.slates.canonical_BK, groups.slates.sizes_B)
        popularity_BK = np.take_along_axis(popularity_BK, orders_BK, axis=1)
    return replace(copies, slates=groups.slates, popularity_BK=popularity_BK)


def _ranked(scene: Scene, attack: OrderAttack, seed: int) -> tuple[Outcome, FloatArray] | None:
    """What an attack by rankings earned, and the least of it on each request as it came (else infinite)."""
    # Each attack draws from a generator of its own, so that none moves when another is added.
    answered = attack.answers(scene, np.random.default_rng([seed, zlib.crc32(attack.name.encode())]))
    if answered is None:
        return None
    least_B = np.full(len(scene.slates), np.inf)
    pays, oracles = [], []
    for rankings_BK, slates in answered.tries:
        pays.append(scene.orders(rankings_BK, slates, dress=attack.dress, step=attack.step))
        if slates is None and attack.step is None:
            oracles.append(scene.oracle_B)
            least_B = np.minimum(least_B, pays[-1])
        else:
            oracles.append(scene.oracle(slates, attack.step))
    copied = copying(
        np.concatenate([answer.rankings_BK for answer in answered.tries]),
        np.tile(scene.slates.sizes_B, len(answered.tries)),
    )
    outcome = Outcome(
        name=attack.name,
        kind=attack.kind,
        about=answered.about,
        pay_B=np.mean(pays, axis=0),
        oracle_B=np.mean(oracles, axis=0),
        base_B=np.zeros(len(scene.slates)),
        valid_share=1.0,
        identity_rate=copied.identity_rate,
        near_identity_rate=copied.near_identity_rate,
        verdict=Verdict.OK,
    )
    return outcome, least_B


def _originals(scene: Scene, rankings_BK: IntArray) -> list[Original]:
    """What tricks are played on, for each request."""
    prompts = scene.prompts or [stand_in_prompt(size) for size in scene.slates.sizes_B.tolist()]
    return [
        Original(tuple(ranking[:size]), scene.text_format, prompt)
        for ranking, size, prompt in zip(rankings_BK.tolist(), scene.slates.sizes_B.tolist(), prompts, strict=True)
    ]


def _written(
    scene: Scene, attack: TextAttack, prefix: str, originals: Sequence[Original], base: Paid
) -> tuple[Outcome, Paid]:
    """What an attack by texts earned; `base` is what the untouched answers earned."""
    paid = scene.texts([attack.write(original) for original in originals])
    valid_B = paid.verdicts_B == OK
    copied = copying(paid.rankings_BK[valid_B], scene.slates.sizes_B[valid_B])
    outcome = Outcome(
        name=prefix + attack.name,
        kind=attack.kind,
        about=attack.about + (", over the oracle's order" if prefix else ""),
        pay_B=paid.pay_B,
        oracle_B=scene.oracle_B,
        base_B=base.pay_B if attack.kind == "dressed" else np.zeros(len(valid_B)),
        valid_share=float(valid_B.mean()),
        identity_rate=copied.identity_rate if valid_B.any() else 0.0,
        near_identity_rate=copied.near_identity_rate if valid_B.any() else 0.0,
        verdict=Verdict(int(np.bincount(paid.verdicts_B).argmax())),
    )
    return outcome, paid


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
