"""An audit of requests is the audit of their slates, with all that the requests say besides."""

from __future__ import annotations

from rerank_env.data import load
from rerank_env.prompts import build_prompts
from rerank_env.rewards import audit
from rerank_env.training.audits import audit_requests


def test_users_popularity_and_prompts_come_from_the_requests() -> None:
    requests = load("synthetic", split="test", requests=60, slate_size=4, min_slate_size=2)
    found = audit_requests("gr2", requests, text_format="json", seed=3, search=False)
    popularity_BK = [
        [requests.catalog.popularity_I[item] if item >= 0 else 0 for item in items] for items in requests.candidates_BK
    ]
    assert found == audit(
        "gr2",
        requests.slates,
        text_format="json",
        seed=3,
        search=False,
        users_B=requests.users_B,
        popularity_BK=popularity_BK,
        prompts=build_prompts(requests, text_format="json"),
    )
    assert (found.n_requests, found.text_format) == (len(requests), "json")
    assert "popularity" in {row.name for row in found.rows}
