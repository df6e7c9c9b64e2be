"""Audits of a reward on requests: all that an audit can use is in them, for the command, the demo and the benchmark.

May import numpy and `rerank_env`.
"""

from __future__ import annotations

from typing import Any

from rerank_env.data.requests import Requests
from rerank_env.prompts import build_prompts
from rerank_env.rewards import AuditReport, Reward, audit


def audit_requests(
    reward: Reward | str, requests: Requests, *, text_format: str = "list", **options: Any
) -> AuditReport:
    """What every attack earns under `reward` on `requests`: `rewards.audit`, which takes the other `options`.

    The requests say who asks, how popular each candidate is, and what prompt is echoed. Raises as `rewards.audit` and
    `build_prompts` do.
    """
    return audit(
        reward,
        requests.slates,
        text_format=text_format,
        users_B=requests.users_B,
        popularity_BK=requests.popularity_BK,
        prompts=build_prompts(requests, text_format=text_format),
        **options,
    )
