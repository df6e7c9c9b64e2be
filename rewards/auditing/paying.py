"""What one attack earned on every request: rankings in their best dress, texts as they are written.

May import numpy only. Suffixes: `_B` requests, `_K` candidates or places, `_D` dresses.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from rerank_env.rewards.arrays import FloatArray, IntArray
from rerank_env.rewards.auditing.judging import Outcome
from rerank_env.rewards.auditing.orders import OrderAttack, halves
from rerank_env.rewards.auditing.scene import Paid, Scene
from rerank_env.rewards.auditing.texts import Original, TextAttack, stand_in_prompt
from rerank_env.rewards.auditing.writing import PLAIN
from rerank_env.rewards.copies import copying
from rerank_env.rewards.rankings import Verdict


def ranked(scene: Scene, attack: OrderAttack, seed: int) -> tuple[Outcome, FloatArray] | None:
    """What an attack by rankings earned in its best dress, and the least that any valid answer to a request did.

    The dress of one half of the users is the one that is paid best on the other half; a yardstick has one for all.
    """
    # Each attack draws from a generator of its own, so that none moves when another is added.
    rng = np.random.default_rng([seed, zlib.crc32(attack.name.encode())])
    answered = attack.answers(scene, rng)
    if answered is None:
        return None
    least_B = np.full(len(scene.slates), np.inf)
    pays: list[FloatArray] = []
    tried: list[Paid] = []
    for dress in scene.dresses:
        own = [scene.orders(rankings_BK, slates, dress=dress) for rankings_BK, slates in answered.tries]
        pays.append(np.mean([paid.pay_B for paid in own], axis=0))
        tried += own
        for paid, (_, slates) in zip(own, answered.tries, strict=True):
            if slates is None:
                least_B = np.where(paid.scored_B, np.minimum(least_B, paid.pay_B), least_B)
    pay_DB = np.stack(pays)
    worn_B = _worn(pay_DB, scene, rng if attack.kind == "blind" else None)
    worn = [scene.dresses[number] for number in np.unique(worn_B).tolist()]
    rankings_BK = np.concatenate([rankings_BK for rankings_BK, _ in answered.tries])
    copied = copying(rankings_BK, np.tile(scene.slates.sizes_B, len(answered.tries)))
    valid_B = np.concatenate([paid.valid_B for paid in tried])
    outcome = Outcome(
        name=attack.name,
        kind=attack.kind,
        about=answered.about + "".join(f", {dress}" for dress in worn if dress != PLAIN),
        pay_B=np.take_along_axis(pay_DB, worn_B[None, :], axis=0)[0],
        oracle_B=np.mean([scene.oracle_B if s is None else scene.oracle(s) for _, s in answered.tries], axis=0),
        base_B=np.zeros(len(scene.slates)),
        valid_share=float(valid_B.mean()),
        identity_rate=copied.identity_rate if valid_B.any() else 0.0,
        near_identity_rate=copied.near_identity_rate if valid_B.any() else 0.0,
        verdict=Verdict(int(np.bincount(np.concatenate([paid.verdicts_B for paid in tried])).argmax())),
        failures=tuple(failure for paid in tried for failure in paid.failures),
    )
    return outcome, least_B


def originals_of(scene: Scene, rankings_BK: IntArray) -> list[Original]:
    """What tricks are played on, for each request."""
    prompts = scene.prompts or [stand_in_prompt(size) for size in scene.slates.sizes_B.tolist()]
    return [
        Original(tuple(ranking[:size]), scene.text_format, prompt)
        for ranking, size, prompt in zip(rankings_BK.tolist(), scene.slates.sizes_B.tolist(), prompts, strict=True)
    ]


def written(
    scene: Scene, attack: TextAttack, prefix: str, originals: Sequence[Original], base: Paid
) -> tuple[Outcome, Paid]:
    """What an attack by texts earned; `base` is what the untouched answers earned."""
    paid = scene.texts([attack.write(original) for original in originals])
    valid_B = paid.valid_B
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
        failures=paid.failures,
    )
    return outcome, paid


def _worn(pay_DB: FloatArray, scene: Scene, rng: np.random.Generator | None) -> IntArray:
    """Which dress each request's answer wears: the best paid one, with an `rng` that of the other half of the users."""
    worn_B = np.full(len(scene.slates), pay_DB.mean(axis=1).argmax())
    if rng is not None and len(pay_DB) > 1:
        first_B = halves(scene.users_B, rng)
        if not first_B.all():
            worn_B[first_B] = pay_DB[:, ~first_B].mean(axis=1).argmax()
            worn_B[~first_B] = pay_DB[:, first_B].mean(axis=1).argmax()
    return worn_B
