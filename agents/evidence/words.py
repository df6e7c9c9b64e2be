"""What features of evidence are called in a prompt: one short word each, so that a tokenizer makes one token of it.

May import `rerank_env.rewards` and the modules of this package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rerank_env.agents.evidence.features import Evidence
from rerank_env.rewards.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Remark:
    """What a feature of `Evidence` is called in a prompt: one word, and what it means, for the legend.

    Raises `InputError` for a word that is not one run of letters, digits, hyphens and underscores beginning with a
    letter, and for a meaning that is no text.
    """

    feature: str
    word: str
    meaning: str

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.word, str) or not re.fullmatch(r"[^\W\d_][\w-]*", self.word):
            raise InputError(f"the word for a feature is {self.word!r}; give one word that begins with a letter")
        for field in ("feature", "meaning"):
            if not isinstance(getattr(self, field), str):
                raise InputError(f"the {field} of the remark {self.word!r} is no text; give one")


WORDS = {
    remark.feature: remark
    for remark in (
        Remark("score_z", "stage", "the score of the earlier stage, compared with the other candidates"),
        Remark("next_last", "next", "users who took it right after the latest entry of the history"),
        Remark("near_last_3", "near", "users who took it within three steps after one of the three latest entries"),
        Remark("text_max", "text", "likeness of its text to the most similar entry of the history"),
        Remark("lift_mean", "lift", "how much more often than by chance it is taken together with the history"),
        Remark("popularity", "fame", "users who took it at all"),
        Remark("together_cosine_recent", "with", "users who took it together with recent entries of the history"),
        Remark("near_rate", "rate", "the share of users who took it within three steps after the latest entry"),
        Remark("after_all", "after", "users who took it some time after entries of the history"),
        Remark("covered", "cover", "the share of the history that anybody took together with it"),
        Remark("text_last", "like", "likeness of its text to the latest entry of the history"),
        Remark("label_max", "kind", "likeness of its labels to the most similar entry of the history"),
        Remark("label_mean", "class", "likeness of its labels to the history on average"),
        Remark("embedding_max", "sense", "likeness of its embedding to the most similar entry of the history"),
    )
}
"""The features that have a word, by name; for others, give a `Remark`."""

DEFAULT = ("score_z", "next_last", "near_last_3", "text_max", "lift_mean")
"""What is remarked on where nobody says: chosen one after the other for what each added on validation requests."""


def remarks_of(features: Sequence[str | Remark], evidence: Evidence) -> list[Remark]:
    """A remark for each of `features`: names of `WORDS`, or a `Remark` each.

    Raises `UnknownNameError` for a feature that `evidence` does not have, `InputError` for one without a word, for a
    word that comes twice, and for no features.
    """
    if isinstance(features, str) or not features:
        raise InputError(f"features is {features!r}; give a list of names, one or more of {', '.join(WORDS)}")
    remarks = []
    for feature in features:
        name = feature.feature if isinstance(feature, Remark) else feature
        if name not in evidence.names:
            raise UnknownNameError.of("feature", name, evidence.names)
        if not isinstance(feature, Remark) and name not in WORDS:
            raise InputError(f"the feature {name!r} has no word of its own; give Remark({name!r}, word, meaning)")
        remarks.append(feature if isinstance(feature, Remark) else WORDS[name])
    words = [remark.word for remark in remarks]
    for word in words:
        if words.count(word) > 1:
            raise InputError(f"two features are called {word!r}; give each a word of its own")
    return remarks
