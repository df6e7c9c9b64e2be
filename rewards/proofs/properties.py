"""What a sound reward promises: one function a property, each of which looks for a breach in one case. Those on other
answers in the batch are in `company`.

A breach is told in words, the request first; None means that there is none. May import numpy only.

Together they say more: where the better order never costs, moving worse candidates up from the incoming order earns no
more than echoing it, so that the limit on echoing is a limit on that as well.

What *relabelling* asks depends on what a reward may look at. A candidate's number is its incoming place, so renaming
candidates in general turns one request into another. It leaves a request as it is where the two that change numbers
are equal in everything: such an exchange must change no score, and this is the same as to say that the score depends
on nothing but the gains in the answer's order and the gains in the incoming order ("incoming", the default). A reward
that does not look at the incoming order either ("gains": NDCG and other list metrics) is held to every renaming, gains
moving along. A reward that pays for who moved where ("places": whatever counts swaps) is held to none, and can be
escaped by exchanging two equal candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rerank_env.rewards.arrays import BoolArray, FloatArray, IntArray
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.expression import number_text
from rerank_env.rewards.proofs.trials import Case, Subject, UndefinedError, listed, named, renamed

MOST_TO_EXCHANGE = 12
"""In longer answers only neighbours change places."""


def is_finite(subject: Subject, case: Case) -> str | None:
    """One finite number an answer, whatever the request: nothing relevant, everything, ties, extreme gains."""
    answers_NK = case.answers_NK
    try:
        values_N = subject.earned(case, answers_NK)
    except UndefinedError:
        for answers in (answers_NK[:1], answers_NK[:2], answers_NK):
            try:
                subject.earned(case, answers)
            except UndefinedError as fault:
                asked = " and ".join(named(answer_K, case.size) for answer_K in answers[:2])
                return case.told(f"{asked}{', ...' if len(answers) > 2 else ''}: the reward {fault}")
        raise
    return first(~np.isfinite(values_N), lambda n: case.told(_earns(case, n, values_N), *case.companions()))


def is_bounded(subject: Subject, case: Case) -> str | None:
    """A valid answer earns what is declared, and any other exactly the declared score of an invalid one."""
    reward, values_N = subject.reward, subject.earned(case, case.answers_NK)
    stray_N = (values_N < reward.low - subject.slack) | (values_N > reward.high + subject.slack)
    declared = f"declared are {number_text(reward.low)} to {number_text(reward.high)}"
    if breach := first(stray_N, lambda n: case.told(f"{_earns(case, n, values_N)}; {declared}", *case.companions())):
        return breach
    paid_N = subject.paid_invalid(case)
    spoilt = [named(answer_K, case.size) for answer_K in case.invalid_NK] + ["a text that did not parse"]
    return first(
        paid_N != reward.invalid,
        lambda n: case.told(
            f"{spoilt[n]}, which is no ranking, earns {number_text(paid_N[n])}; "
            f"declared is {number_text(reward.invalid)} for what is no ranking"
        ),
    )


def is_pure(subject: Subject, case: Case) -> str | None:
    """The same answers earn the same bits again, and what was passed in is what it was."""
    given = case.copy()
    first_B, after = subject.values_of(given), _arrays(given)
    for name, values_BK in _arrays(case).items():
        changed_B = (values_BK != after[name]).any(axis=1)
        if changed_B.any():
            row = int(changed_B.argmax())
            change = f"{values_BK[row].tolist()} to {after[name][row].tolist()}"
            return case.take(np.array([row])).told(f"scoring answer {case.ranking(row)} changes {name} from {change}")
    second_B = subject.values(case)
    differs_B = ~((first_B == second_B) | (np.isnan(first_B) & np.isnan(second_B)))
    return first(
        differs_B,
        lambda row: case.take(np.array([row])).told(
            f"answer {case.ranking(row)} earns {number_text(first_B[row])} at the first call",
            f"answer {case.ranking(row)} earns {number_text(second_B[row])} at the second",
        ),
    )


def pays_invalid_least(subject: Subject, case: Case) -> str | None:
    """An answer that is no ranking earns less than every ranking."""
    invalid, values_N = subject.reward.invalid, subject.earned(case, case.answers_NK)
    spoilt = f"{named(case.invalid_NK[0], case.size)}, which is no ranking, earns {number_text(invalid)}"
    return first(values_N <= invalid, lambda n: case.told(_earns(case, n, values_N), spoilt, *case.companions()))


def pays_identity_as_declared(subject: Subject, case: Case) -> str | None:
    """Echoing the incoming order earns no more than declared."""
    values_N = subject.earned(case, case.answers_NK[:1])
    declared = f"declared is at most {number_text(subject.identity)} for echoing the incoming order"
    too_much_N = values_N > subject.identity + subject.slack
    return first(too_much_N, lambda n: case.told(f"{_earns(case, n, values_N)}; {declared}", *case.companions()))


def ignores_labels(subject: Subject, case: Case) -> str | None:
    """Renaming candidates changes no score; which renamings are asked for, see the head of the module."""
    if breach := _ignores_original_numbers(subject, case):
        return breach
    if subject.looks_at == "places":
        return None
    answers_NK, values_N = case.answers_NK, None
    for a, b in _pairs_to_rename(subject, case):
        values_N = subject.earned(case, answers_NK) if values_N is None else values_N
        others_NK, other = renamed(answers_NK, a, b), case.exchanged(a, b)
        others_N = subject.earned(other, others_NK)
        differs_N = np.abs(others_N - values_N) > subject.slack
        if differs_N.any():
            n = int(differs_N.argmax())
            if case.are_equal(a, b):
                where, why = "", f"{a} and {b} are equal and have only changed places"
            else:
                where = f" where the gains are {listed(other.shown('relevance_BK'))}"
                why = f"{a} and {b} have only exchanged their numbers"
            return case.told(
                _earns(case, n, values_N),
                f"{named(others_NK[n], case.size)} earns {number_text(others_N[n])}{where}, though candidates {why}",
                *case.companions(),
            )
    return None


def _ignores_original_numbers(subject: Subject, case: Case) -> str | None:
    """The same for the numbers by which shuffled copies of a request tell its candidates apart."""
    if case.slates.canonical_BK is None:
        return None
    values_N = subject.earned(case, case.answers_NK)
    for a in range(case.size - 1):
        renumbered_N = subject.earned(case.renumbered(a, a + 1), case.answers_NK)
        differs_N = np.abs(renumbered_N - values_N) > subject.slack
        if differs_N.any():
            n = int(differs_N.argmax())
            return case.told(
                _earns(case, n, values_N),
                f"the same answer earns {number_text(renumbered_N[n])} where the original numbers {a} and {a + 1} are "
                "exchanged throughout",
                *case.companions(),
            )
    return None


def pays_the_better_order(subject: Subject, case: Case) -> str | None:
    """Where two candidates of an answer change places and the better one comes to stand above, the score never falls.

    Neighbours, and any two where there are not too many: functions with this property are known as decreasing in
    transposition (Hollander, Proschan and Sethuraman 1977).
    """
    answers_NK, size = case.answers_NK, case.size
    worth_K = _worth(subject, case)
    farthest = size - 1 if size <= MOST_TO_EXCHANGE else 1
    tried = [(p, p + step) for step in range(1, farthest + 1) for p in range(size - step)]
    rises_NP = np.stack([worth_K[answers_NK[:, q]] > worth_K[answers_NK[:, p]] for p, q in tried], axis=1)
    which_M, pair_M = np.nonzero(rises_NP.T)[::-1]  # neighbours first
    if not len(which_M):
        return None
    places_M2 = np.array(tried)[pair_M]
    after_MK = answers_NK[which_M]
    np.put_along_axis(after_MK, places_M2, np.take_along_axis(after_MK, places_M2[:, ::-1], axis=1), axis=1)
    values_N = subject.earned(case, np.concatenate([answers_NK, after_MK]))
    before_M, after_M = values_N[: len(answers_NK)][which_M], values_N[len(answers_NK) :]

    def told(m: int) -> str:
        (p, q), n = places_M2[m], int(which_M[m])
        worse, better = int(answers_NK[n, p]), int(answers_NK[n, q])
        return case.told(
            _earns(case, n, values_N),
            f"{named(after_MK[m], size)} earns {number_text(after_M[m])}, though candidate {better}, worth "
            f"{number_text(worth_K[better])}, took the higher place from candidate {worse}, worth "
            f"{number_text(worth_K[worse])}",
            *case.companions(),
        )

    return first(after_M < before_M - subject.slack, told)


def first(breaches_N: BoolArray, told: Callable[[int], str]) -> str | None:
    """What is told of the first breach, if there is one."""
    return told(int(breaches_N.argmax())) if breaches_N.any() else None


def _earns(case: Case, n: int, values_N: FloatArray) -> str:
    return f"{named(case.answers_NK[n], case.size)} earns {number_text(values_N[n])}"


def _arrays(case: Case) -> dict[str, IntArray | FloatArray]:
    """All that a reward is given by reference."""
    return {"rankings_BK": case.rankings_BK, **case.slates.by_candidate}


def _pairs_to_rename(subject: Subject, case: Case) -> list[tuple[int, int]]:
    """Exchanges from which every renaming that is asked for can be put together."""
    if subject.looks_at == "gains":
        return [(a, a + 1) for a in range(case.size - 1)]
    pairs = []
    for a in range(case.size):
        equal = [b for b in range(a + 1, case.size) if case.are_equal(a, b)]
        pairs += [(a, b) for b in equal[:1]]
    return pairs


def _worth(subject: Subject, case: Case) -> FloatArray:
    """How good each candidate of the first request is, float64 [K]."""
    worth_BK = np.asarray(subject.worth(case.slates))
    if worth_BK.shape != case.slates.relevance_BK.shape or worth_BK.dtype.kind not in "fiub":
        raise InputError(
            f"worth returned shape {worth_BK.shape} and dtype {worth_BK.dtype} for slates of shape "
            f"{case.slates.relevance_BK.shape}; return one number a candidate"
        )
    row_K: FloatArray = worth_BK[0].astype(np.float64)
    return row_K
