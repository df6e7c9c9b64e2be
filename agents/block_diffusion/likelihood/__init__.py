"""Named estimators of the likelihood of completions that were written by block diffusion.

Needs the extra `language`. Names load on first use.

- `plans`: canvases to look at, what the model says on them, and ratios; `names`: estimators by name
- `replay`: exact, given the order of decoding; `masked`: from a few masks; `gpl`: exact, of an answer's slots
"""

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.agents.block_diffusion.likelihood.gpl import Gpl
    from rerank_env.agents.block_diffusion.likelihood.masked import Coupled, Elbo, MeanField
    from rerank_env.agents.block_diffusion.likelihood.names import likelihood_of, log_probs
    from rerank_env.agents.block_diffusion.likelihood.plans import (
        Likelihood,
        Plan,
        Scored,
        Setting,
        Written,
        log_ratios,
        score,
    )
    from rerank_env.agents.block_diffusion.likelihood.replay import ArOrder, Replay

__all__ = [
    "ArOrder",
    "Coupled",
    "Elbo",
    "Gpl",
    "Likelihood",
    "MeanField",
    "Plan",
    "Replay",
    "Scored",
    "Setting",
    "Written",
    "likelihood_of",
    "log_probs",
    "log_ratios",
    "score",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "ArOrder": "replay",
        "Coupled": "masked",
        "Elbo": "masked",
        "Gpl": "gpl",
        "Likelihood": "plans",
        "MeanField": "masked",
        "Plan": "plans",
        "Replay": "replay",
        "Scored": "plans",
        "Setting": "plans",
        "Written": "plans",
        "likelihood_of": "names",
        "log_probs": "names",
        "log_ratios": "plans",
        "score": "plans",
    },
    extra="language",
)
