"""What a DAPO run of a block-diffusion policy is told besides what one of a language model is.

May import `rerank_env.agents` and `rerank_env.training.language`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.likelihood import Gpl, Likelihood, likelihood_of
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.rewards.errors import InputError
from rerank_env.training.language.dapo_settings import DapoConfig

_HEAD = "plackett-luce"
"""The decoder of answers whose law is known exactly, in training and in drawing."""


@dataclass(frozen=True, kw_only=True)
class BlockDapoConfig(DapoConfig):
    """How to train: as `DapoConfig`, with the defaults of Diffusion-GR2 (2607.01170) where it names one.

    `likelihood`: the estimator of log-probabilities, such as "replay", "replay(merge=2)", "elbo(draws=4)" or
    "gpl(rest=replay)", kept as it says itself. `reasoning`, `answer`: the weights of the two parts of the loss, see
    `parts`. `decoding`: how answers are written, filled in by `run`, so that a run is not resumed with another.

    Raises as `DapoConfig` and `likelihood_of` do, and `InputError` for weights that are negative or both 0.
    """

    groups_per_step: int = 32
    learning_rate: float = 5e-7
    epsilon_high: float = 0.2
    likelihood: str = "replay"
    reasoning: float = 0.3
    answer: float = 1.0
    decoding: str = ""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._set("likelihood", str(likelihood_of(self.likelihood)))
        for name in ("reasoning", "answer"):
            self._set(name, self._number(name, zero=True))
        if not self.reasoning and not self.answer:
            raise InputError("reasoning and answer both weigh 0, so nothing is learned; raise one of them")


def drawing(policy: BlockDiffusionPolicy, config: BlockDapoConfig) -> BlockDecoding:
    """How answers are drawn in training: the policy's own way, at the temperature and length that are trained.

    Raises `InputError` for a decoder of answers that draws nothing.
    """
    return replace(policy.decoding, max_tokens=config.max_tokens, temperature=config.temperature)


def decoding_text(policy: BlockDiffusionPolicy) -> str:
    """All that decides how a policy of given weights answers, in words, but for how many at a time."""
    own, blocks = policy.decoding, policy.blocks
    return (
        f"{own.rule} end={own.end} rounds={own.max_rounds} answer={own.answer} tokens={own.max_tokens} "
        f"blocks={blocks.size} shift={blocks.shift} clean={blocks.clean} mask={policy.mask_id}"
    )


def check_scored(likelihood: Likelihood, decoding: BlockDecoding) -> None:
    """Raise `InputError` where an estimator does not score what a decoding draws answers from.

    An answer that was filled in by a decoder has the probability that this one gave it: only that of "plackett-luce" is
    known to an estimator, `gpl`, which in turn needs the slots that it filled.
    """
    if decoding.answer is None and isinstance(likelihood, Gpl):
        raise InputError(
            f"the likelihood is {likelihood!s}, but answers are written freely and have no slots; decode with "
            f"answer={_HEAD!r}, or name another likelihood, such as 'replay'"
        )
    if decoding.answer is not None and not (isinstance(likelihood, Gpl) and decoding.answer == _HEAD):
        raise InputError(
            f"answers are filled in by {decoding.answer}, whose law {likelihood!s} does not know; train with "
            f"answer={_HEAD!r} and likelihood 'gpl(rest=replay)', or with answers that are written freely"
        )
