"""What an answer is worth: rewards for re-ranking that can be checked, composed and named.

A `Slates` holds the requests, a ranking answers one, a `Verdict` says whether it is a ranking at all, and a `Reward`
turns answers into one number a request. Three instances show how rewards are composed.

1. A metric is a reward. It has a range, and a score for answers that are no ranking:

   >>> slates = Slates.of([[0, 0, 1], [2, 0, 1]])
   >>> Ndcg()([[2, 0, 1], [0, 0, 0]], slates).tolist()
   [1.0, 0.0]

2. A condition decides when a term is paid. GR2 found that a bonus for valid format is harvested by echoing the incoming
   order, so it pays the bonus only to answers that do some good; `gr2()` is this sum:

   >>> reward = RankPromotion() + 0.2 * ValidFormat().when(Improved() | KeptFirst())
   >>> print(reward)
   rank_promotion + 0.2*valid_format.when(improved | kept_first)
   >>> parse_reward(str(reward)) == reward == gr2()
   True

3. A difference removes what was there before. `gain()`, our default, pays the quality of the answer minus the quality
   of the incoming order, and gates it: echoing earns exactly 0 and an invalid answer less than any valid one:

   >>> print(gain())
   ndcg@10.over_incoming().gate(valid, otherwise=-1.1)
   >>> gain()([[0, 1, 2], [0, 0, 0]], slates).tolist()
   [0.0, -1.1]

Nothing here needs more than numpy, except `testing`, which needs hypothesis and is loaded on first use.
"""

from __future__ import annotations

if __name__ != "rerank_env.rewards":
    raise ImportError("write `from rerank_env import rewards`; a bare `import rewards` would load a second copy of it")

import importlib
from typing import TYPE_CHECKING, Any

from rerank_env.rewards import metrics, rankings
from rerank_env.rewards.algebra import Constant
from rerank_env.rewards.answers import Answers, Failure
from rerank_env.rewards.auditing import AuditReport, AuditRow, audit
from rerank_env.rewards.clicks import ClickCredit, click_credit
from rerank_env.rewards.conditions import (
    Improved,
    IncomingIsIdeal,
    KeptFirst,
    NearIdentity,
    NotIdentity,
    TauAtLeast,
    Valid,
    WasFirst,
    Worsened,
)
from rerank_env.rewards.context import Context
from rerank_env.rewards.copies import Copying, copying
from rerank_env.rewards.counterfactual import ShuffledGroups, shuffled_groups
from rerank_env.rewards.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    FetchError,
    InputError,
    MissingExtraError,
    RankingError,
    RerankError,
    RewardError,
    ServerError,
    SlateError,
    UnknownNameError,
    UnsoundRewardError,
)
from rerank_env.rewards.formats import answer_text
from rerank_env.rewards.function import FunctionCondition, FunctionReward
from rerank_env.rewards.groups import Consistency
from rerank_env.rewards.mistakes import Faults, faults
from rerank_env.rewards.names import parse_reward, register_condition, register_reward
from rerank_env.rewards.parsing import Parsed, ParsedBatch, parse, parse_batch
from rerank_env.rewards.presets import gain, gr2, gr2_hardened, gr2_industrial, gr2_industrial_hardened, naive
from rerank_env.rewards.rankings import Verdict
from rerank_env.rewards.registry import reward_names
from rerank_env.rewards.repairing import Repaired, repair
from rerank_env.rewards.reward import Bounds, Condition, Reward, Score
from rerank_env.rewards.schedules import Linear, Since
from rerank_env.rewards.scoring import Scored, Scorer
from rerank_env.rewards.slates import Slates
from rerank_env.rewards.textual import Cites, Length, Overlong
from rerank_env.rewards.verifiable import (
    Ap,
    Auc,
    Err,
    ExactSet,
    Hit,
    Mrr,
    Ndcg,
    PairwiseAccuracy,
    RankPromotion,
    Rbp,
    Recall,
    ValidFormat,
)

if TYPE_CHECKING:
    from rerank_env.rewards import testing

__all__ = [
    "Answers",
    "Ap",
    "Auc",
    "AuditReport",
    "AuditRow",
    "Bounds",
    "CheckpointError",
    "Cites",
    "ClickCredit",
    "Condition",
    "Consistency",
    "Constant",
    "Context",
    "Copying",
    "DataError",
    "DivergedError",
    "Err",
    "ExactSet",
    "Failure",
    "Faults",
    "FetchError",
    "FunctionCondition",
    "FunctionReward",
    "Hit",
    "Improved",
    "IncomingIsIdeal",
    "InputError",
    "KeptFirst",
    "Length",
    "Linear",
    "MissingExtraError",
    "Mrr",
    "Ndcg",
    "NearIdentity",
    "NotIdentity",
    "Overlong",
    "PairwiseAccuracy",
    "Parsed",
    "ParsedBatch",
    "RankPromotion",
    "RankingError",
    "Rbp",
    "Recall",
    "Repaired",
    "RerankError",
    "Reward",
    "RewardError",
    "Score",
    "Scored",
    "Scorer",
    "ServerError",
    "ShuffledGroups",
    "Since",
    "SlateError",
    "Slates",
    "TauAtLeast",
    "UnknownNameError",
    "UnsoundRewardError",
    "Valid",
    "ValidFormat",
    "Verdict",
    "WasFirst",
    "Worsened",
    "answer_text",
    "audit",
    "click_credit",
    "copying",
    "faults",
    "gain",
    "gr2",
    "gr2_hardened",
    "gr2_industrial",
    "gr2_industrial_hardened",
    "metrics",
    "naive",
    "parse",
    "parse_batch",
    "parse_reward",
    "rankings",
    "register_condition",
    "register_reward",
    "repair",
    "reward_names",
    "shuffled_groups",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Load `testing` on first use, as it needs hypothesis."""
    if name == "testing":
        return importlib.import_module("rerank_env.rewards.testing")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
