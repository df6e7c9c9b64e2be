"""Block diffusion: a language model that writes many tokens at once, block by block, made of an autoregressive one.

Needs the extra `language` (torch, transformers, and peft for adapters). Names load on first use.

- `conversion`: from a trained autoregressive policy, weights one to one; `policy`: the agent; `saving`: its folder
- `masks`: who sees whom; `model`: the laws of any number of noisy blocks in one pass
- `decoding`: its settings; `rules`: what a round commits; `sampling`: the loop; `draws`: what is drawn in a round;
  `drafts`: completions that are being written; `cache`: what finished blocks leave;
  `trajectory`: how a completion was decoded
- `answers`: decoders of rankings from the scores of slots and candidates; `filling`: answers filled in by one;
  `answering`: where an answer begins, and its slots
- `likelihood`: estimators of log-probabilities by name
"""

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.agents.block_diffusion.answers import answer_decoder_of
    from rerank_env.agents.block_diffusion.conversion import check_convertible, convert
    from rerank_env.agents.block_diffusion.decoding import BlockDecoding
    from rerank_env.agents.block_diffusion.masks import Blocks
    from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits
    from rerank_env.agents.block_diffusion.policy import BlockAnswers, BlockDiffusionPolicy
    from rerank_env.agents.block_diffusion.rules import rule_of
    from rerank_env.agents.block_diffusion.sampling import Sampled, sample
    from rerank_env.agents.block_diffusion.trajectory import Trajectory

__all__ = [
    "BlockAnswers",
    "BlockDecoding",
    "BlockDiffusionPolicy",
    "Blocks",
    "Canvas",
    "Row",
    "Sampled",
    "Trajectory",
    "answer_decoder_of",
    "canvas_logits",
    "check_convertible",
    "convert",
    "rule_of",
    "sample",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "BlockAnswers": "policy",
        "BlockDecoding": "decoding",
        "BlockDiffusionPolicy": "policy",
        "Blocks": "masks",
        "Canvas": "model",
        "Row": "model",
        "Sampled": "sampling",
        "Trajectory": "trajectory",
        "answer_decoder_of": "answers",
        "canvas_logits": "model",
        "check_convertible": "conversion",
        "convert": "conversion",
        "rule_of": "rules",
        "sample": "sampling",
    },
    extra="language",
)
