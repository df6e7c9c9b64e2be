"""Reasoning traces: requests, what a teacher said of each, and whether it named the right candidate.

A teacher is shown requests and answers in text. In *targeted* mode it is told the target and explains it; in
*rejection* mode it is told nothing and is asked again until it names the target or has had its tries (GR2, section on
reasoning traces; caps and lists are ours, see `collecting`). Needs the extra `language`.

    from rerank_env.training.language.traces import RuleTeacher, Traces, collect

    collect(requests, RuleTeacher(remarks), writer, mode="rejection", directory="runs/traces", seed=0)
    Traces.load("runs/traces").statistics()

- `proposals`: what a teacher says, and how it is read; `prompting`: the hint that names the target
- `rules`: a teacher that reads evidence; `teachers`: models that run here or behind a server
- `collecting`: asking until all is settled, safe to kill; `settling`: one batch of it; `cluster`: the same on Ray
- `store`: what is on the disk; `manifest`: what it was made of; `journal`: what was paid and is not in a part yet;
  `statistics`: how it went
- `leaks`: no rejection prompt says the answer; `drawing`: orders and seeds that depend on nothing but the row
"""

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.training.language.traces.collecting import collect
    from rerank_env.training.language.traces.leaks import check_no_leak
    from rerank_env.training.language.traces.proposals import Proposal, Teacher
    from rerank_env.training.language.traces.rules import RuleTeacher
    from rerank_env.training.language.traces.store import Traces
    from rerank_env.training.language.traces.teachers import LocalTeacher, ServerTeacher

__all__ = ["LocalTeacher", "Proposal", "RuleTeacher", "ServerTeacher", "Teacher", "Traces", "check_no_leak", "collect"]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "LocalTeacher": "teachers",
        "Proposal": "proposals",
        "RuleTeacher": "rules",
        "ServerTeacher": "teachers",
        "Teacher": "proposals",
        "Traces": "store",
        "check_no_leak": "leaks",
        "collect": "collecting",
    },
    extra="language",
)
