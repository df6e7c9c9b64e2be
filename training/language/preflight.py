"""Before a run: whether there is anything to learn from, and what a step will cost.

May import numpy, torch, and `rerank_env`. Groups of answers are sampled and scored as training would do it, and one
part of an update is made without touching the weights. What is found is said in numbers and, where a run would learn
little, as advice for the cause: a group says nothing if its answers are all no rankings, all the incoming order, or all
worth the same.

    found = report(policy, requests, "gain", config=DapoConfig())
    found.dead_share, found.seconds_per_step, found.advice
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rerank_env.agents.language.generation import generate
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.rankings import random_rankings
from rerank_env.training.language import groups
from rerank_env.training.language.dapo_settings import DapoConfig, sampling
from rerank_env.training.language.sharing import completion_logits
from rerank_env.training.language.shuffles import Shown, Shuffles
from rerank_env.training.language.signals import Outcomes, WatchedReward

FEW_VALID = 0.5
"""Below this share of rankings, advice is given."""

FEW_FINISHED = 0.95
"""Below this share of answers that end by themselves, advice is given."""

MANY_DEAD = 0.5
"""Above this share of groups that say nothing, advice is given."""

_ORDERS = 8
"""How many random orders tell whether a metric can see any difference at all."""


@dataclass(frozen=True)
class Preflight:
    """What a run would start from: shares of groups and of answers, means, and what a step costs.

    A group is dead where the raw metric of its answers is exactly the same: `all_invalid` of the groups are so because
    no answer is a ranking, `all_identity` because all are the incoming order, `all_equal` for another reason. `spread`
    is the mean standard deviation of the reward in a group. Seconds are those of this machine, for the configured step
    without resampling; every round of it costs `dead_share` of `generate_seconds` more.
    """

    groups: int
    group_size: int
    dead_share: float
    all_invalid: float
    all_identity: float
    all_equal: float
    valid: float
    finished: float
    identity: float
    raw: float
    reward: float
    spread: float
    prompt_tokens: float
    answer_tokens: float
    generate_seconds: float
    update_seconds: float
    hours: float
    advice: tuple[str, ...]

    @property
    def seconds_per_step(self) -> float:
        """Both parts of a step."""
        return self.generate_seconds + self.update_seconds


def report(
    policy: LanguagePolicy,
    requests: Requests,
    reward: str | Reward,
    *,
    config: DapoConfig,
    n_requests: int = 32,
    group_size: int | None = None,
) -> Preflight:
    """Sample `group_size` answers (those of `config` where None) to `n_requests` requests, and say what was found.

    The weights and their gradients are left as they were. Remarks are put on all requests that have none: pass
    `policy.remarked(requests)` where they are read more than once. Raises what the policy's writer raises for requests
    that it cannot show, and `InputError` for a reward or a metric that cannot be used.
    """
    size = config.group_size if group_size is None else whole("group_size", group_size, least=1)
    order = np.random.default_rng([config.seed, len(requests)]).permutation(len(requests))
    rows_B = order[: whole("n_requests", n_requests, least=1)]
    requests = policy.remarked(requests)
    shuffles = Shuffles(requests, policy.writer, mode=config.shuffle, seed=config.seed, prompt_ids=policy.prompt_ids)
    shown = shuffles.show(rows_B, size, draw=0)
    copies = 1 if config.shuffle == "inside" else size
    started = time.perf_counter()
    made = generate(
        policy.model,
        policy.pad_id,
        policy.eos_ids,
        shown.token_ids[::copies],
        decoding=sampling(policy, config),
        generator=torch.Generator().manual_seed(config.seed),
        n=copies,
    )
    generate_seconds = time.perf_counter() - started
    paid = WatchedReward(
        reward,
        policy.writer.text_format,
        metric=config.metric,
        lengths=config.length_rule,
        eos_ids=frozenset(policy.eos_ids),
    )
    texts = policy.texts(made.ids)
    columns: dict[str, Any] = {**shown.columns}
    paid(completions=texts, completion_ids=made.ids, trainer_state=_Step(), **columns)
    update_seconds = _update_seconds(policy, shown, made.ids, config)
    scale = config.groups_per_step / len(rows_B) * (config.group_size / size)
    return _found(
        paid.last,
        requests.take(rows_B),
        size,
        config,
        prompt_tokens=float(np.mean([len(ids) for ids in shown.token_ids])),
        generate_seconds=generate_seconds * scale,
        update_seconds=update_seconds * config.groups_per_step * config.group_size,
    )


class _Step:
    """What stands for the trainer's state before the first step."""

    global_step = 0


def _update_seconds(policy: LanguagePolicy, shown: Shown, answers: list[list[int]], config: DapoConfig) -> float:
    """Seconds that one answer of an update takes, measured on one part of it."""
    count = min(config.micro_batch, len(answers))
    prompts = _padded(shown.token_ids[:count], left=True)
    completions = _padded(answers[:count], left=False)
    device = next(policy.model.parameters()).device
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    share = not config.gradient_checkpointing
    started = time.perf_counter()
    logits = completion_logits(policy.model, *(tensor.to(device) for tensor in (*prompts, *completions)), share=share)
    loss = logits.float().log_softmax(-1).gather(-1, completions[0].to(device)[..., None]).mean()
    torch.autograd.grad(loss, weights, allow_unused=True)
    return (time.perf_counter() - started) / count


def _padded(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(1, *map(len, rows))
    pad = [[0] * (width - len(ids)) for ids in rows]
    ids = [[*gap, *ids] if left else [*ids, *gap] for ids, gap in zip(rows, pad, strict=True)]
    mask = [[*gap, *[1] * len(ids)] if left else [*[1] * len(ids), *gap] for ids, gap in zip(rows, pad, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def _found(answers: Outcomes, asked: Requests, size: int, config: DapoConfig, **costs: float) -> Preflight:
    dead_B = groups.equal_groups(answers.raw_N.reshape(-1, size), answers.counted_N.reshape(-1, size))
    invalid_B = ~answers.valid_N.reshape(-1, size).any(axis=1)
    identity_B = answers.identity_N.reshape(-1, size).all(axis=1) & ~invalid_B
    shares = {
        "dead_share": float(dead_B.mean()),
        "all_invalid": float((dead_B & invalid_B).mean()),
        "all_identity": float((dead_B & identity_B).mean()),
        "all_equal": float((dead_B & ~invalid_B & ~identity_B).mean()),
        "valid": float(answers.valid_N.mean()),
        "finished": float(answers.finished_N.mean()),
        "identity": float(answers.identity_N.mean()),
    }
    seconds = costs["generate_seconds"] + costs["update_seconds"]
    return Preflight(
        groups=len(asked),
        group_size=size,
        **shares,
        raw=float(answers.raw_N.mean()),
        reward=float(answers.reward_N.mean()),
        spread=float(answers.reward_N.reshape(-1, size).std(axis=1).mean()),
        answer_tokens=float(answers.tokens_N.mean()),
        hours=seconds * config.steps / 3600.0,
        advice=tuple(_advice(shares, asked, size, config)),
        **costs,
    )


def _advice(shares: dict[str, float], asked: Requests, size: int, config: DapoConfig) -> list[str]:
    said = []
    if size < 2:
        said.append("a group of one answer is compared with nothing; give group_size of at least 2")
    if len(asked) == 1:
        said.append("there is one request only, so a run learns its answer by heart; give more requests")
    if not _tells_orders_apart(asked, config.metric):
        said.append(
            f"{config.metric} says the same of every order of these requests, so every group is dead; name a metric "
            "that looks at fewer places, or requests with something relevant in them"
        )
    if shares["finished"] < FEW_FINISHED:
        said.append(
            f"{1 - shares['finished']:.0%} of the answers are cut off at {config.max_tokens} tokens; raise max_tokens, "
            "or teach shorter reasons"
        )
    if shares["valid"] < FEW_VALID:
        said.append(
            f"{1 - shares['valid']:.0%} of the answers are no rankings, and a group of those says nothing; fine-tune "
            "on answers in this format first"
        )
    if shares["all_identity"] > MANY_DEAD:
        said.append(
            f"{shares['all_identity']:.0%} of the groups are copies of the incoming order; ask with shuffle='across', "
            "fine-tune on lists whose tails are random, or raise the temperature"
        )
    if shares["all_equal"] > MANY_DEAD:
        said.append(
            f"in {shares['all_equal']:.0%} of the groups all answers are worth the same; raise the temperature or "
            "group_size, or leave out requests that are always right"
        )
    return said


def _tells_orders_apart(asked: Requests, metric: str) -> bool:
    quality, rng = parse_reward(metric), np.random.default_rng(0)
    width = asked.candidates_BK.shape[1]
    values = [quality(random_rankings(asked.sizes_B, width, rng), asked.slates) for _ in range(_ORDERS)]
    return bool((np.ptp(values, axis=0) > 0).any())
