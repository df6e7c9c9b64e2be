"""What known hacks would earn under a reward, and hacks that nobody knew: `audit`.

A reward is read as pay: 0 is no pay, and what the oracle earns is all there is to earn. An audit makes four kinds of
answers and asks of each whether the reward pays for more than it should:

- *yardsticks*: the oracle, and the anti-oracle, which ranks the wrong way round. They are not judged.
- *blind* answers are rankings that take no reading of the request: the incoming order echoed or nearly so, turned
  round, shuffled, sorted by popularity or by how often each place was right, random orders, what the parts of the
  reward suggest (`derived`), and the best that a policy that cannot see its input finds by training (`best_response`).
  A blind answer **passes if it takes at most 1 % of what the oracle earns** on the same requests: mean pay less 1 % of
  the oracle's. To fail it must exceed that distinguishably, with the low end of a 95 % bootstrap interval over users,
  so that noise fails no sound reward; whatever was chosen by looking at relevance was chosen on other users.
- *malformed* answers are texts that look like a ranking and are none: cut, padded, doubled, with aliases for numbers,
  with the prompt or a fake turn in them (`texts`). One **passes if it earns less than the worst valid answer** that was
  seen, on every request. A parser that repairs such a text fails here: the repair hands it the order it repairs with.
- *dressed* answers are rankings with something added: prose, blanks, orders to the grader. They are written over the
  incoming order and the oracle's, and **pass if the addition takes at most 1 % of what the oracle earns**.

Where a reward looks at the text, every ranking, the oracle's too, wears what its text terms pay for (`writing`); where
it follows the training step, all of it is done again wherever a schedule begins, switches or ends (`structure`).

The verdict is FAIL if any answer fails, and else UNDECIDED if something could not be judged: blind answers with fewer
than 30 users, or without an oracle that is paid; a text term that nothing meets in this format; a function that failed
on some answers; a parser that does not read plain answers. All else is PASS.

The rule is meant for requests whose incoming order is better than random; where it is not, changing it may be worth
its pay, and the report warns. One answer, `random_on_shuffled`, brings such requests along: it shuffles the incoming
order first, and a reward that pays random answers to it pays for luck.

The criterion, the derived attacks and the search are ours; echo, one swap and partial parsing are the leaks that GR2
(2602.07774) and the GR2 Technical Report (2606.31984) describe. May import numpy only.
"""

from __future__ import annotations

from rerank_env.rewards.auditing.report import AuditReport, AuditRow
from rerank_env.rewards.auditing.running import audit

__all__ = ["AuditReport", "AuditRow", "audit"]
