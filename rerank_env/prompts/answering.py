"""How a template asks for an answer, one sentence for each text format. May import the standard library only."""

from __future__ import annotations

THINK = (
    "Think first, between <think> and </think>, and use these tags and the next two once only. Then answer, between "
    "<answer> and </answer> and with nothing after it, with"
)
"""How the tagged formats begin."""


def _answers(named: str, three: str, first: str, second: str, third: str, *, quote: str = "") -> dict[str, str]:
    """How to answer, by text format: `named` says what with, the rest is an example for `three` candidates."""
    elements = [first, second, third]
    listed, arrows = f"[{', '.join(elements)}]", " > ".join(f"[{element}]" for element in elements)
    quoted = f"[{', '.join(f'{quote}{element}{quote}' for element in elements)}]"
    as_list = f"{named}, best first, each exactly once, in square brackets with commas between them"
    as_arrows = f"{named}, best first, each exactly once and in square brackets, with > between them"
    as_json = f'"explanation", a short string that gives your reasons, and "ranking", a list of {named}, best first'
    json = f'{{{{"explanation": "...", "ranking": {quoted}}}}}'
    bodies = {
        "list": (f"Answer with {as_list}, and nothing else.", listed),
        "arrows": (f"Answer with {as_arrows}, and nothing else.", arrows),
        "json": (f"Answer with one JSON object and nothing else: {as_json}, each exactly once.", json),
        "tagged-list": (f"{THINK} {as_list}.", f"<think>...</think><answer>{listed}</answer>"),
        "tagged-arrows": (f"{THINK} {as_arrows}.", f"<think>...</think><answer>{arrows}</answer>"),
        "tagged-json": (
            f"{THINK} one JSON object: {as_json}, each exactly once.",
            f"<think>...</think><answer>{json}</answer>",
        ),
    }
    return {name: f"{order} {three} could be answered as {example}." for name, (order, example) in bodies.items()}


BY_NUMBER = _answers("the numbers of all candidates", "Three candidates", "3", "1", "2")
"""For answers that name candidates by their numbers."""

BY_ID = _answers(
    "the IDs of all candidates, exactly as they stand in the list",
    "Three candidates called ID_A, ID_B and ID_C",
    *("ID_C", "ID_A", "ID_B"),
    quote='"',
)
"""For answers that name candidates by their semantic IDs."""
