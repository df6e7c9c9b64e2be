"""The items that requests point into. May import numpy and `rerank_env.rewards`; `_I` items, `_F` item features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rerank_env.data.fields import as_field
from rerank_env.rewards.arrays import Float32Array, FloatArray
from rerank_env.rewards.errors import DataError


@dataclass(frozen=True, eq=False)
class Catalog:
    """What is known of every item.

    `texts` [I]: shown in prompts and renderings, one line each (runs of white space, line breaks included, are made one
    space). `features_IF` [I, F] float32, finite, known before any request is answered (statistics come from the
    training split only). `feature_names` [F]. `popularity_I` [I] float64: how often the training split holds the item,
    finite and >= 0. `labels` [I]: categories and brands of each item as text, or empty where none are known of any.
    Other numeric dtypes are converted. A catalogue is never written to, so copies are the catalogue itself.

    Raises `DataError`, naming the item, where the fields disagree or hold something else.
    """

    texts: tuple[str, ...]
    features_IF: Float32Array
    feature_names: tuple[str, ...]
    popularity_I: FloatArray
    labels: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Convert and check the fields."""
        for item, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise DataError(f"the text of item {item} is {text!r}; give a string")
        features_IF = as_field("features", self.features_IF, np.float32, axes=("items", "features"))
        popularity_I = as_field("popularity", self.popularity_I, np.float64, axes=("items",))
        object.__setattr__(self, "texts", tuple(" ".join(text.split()) for text in self.texts))
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        object.__setattr__(self, "features_IF", features_IF)
        object.__setattr__(self, "popularity_I", popularity_I)
        expected = (len(self.texts), len(self.feature_names))
        if features_IF.shape != expected:
            raise DataError(
                f"features have shape {features_IF.shape} but the catalogue has {expected[0]} texts and {expected[1]} "
                "feature names; give one row an item and one column a name"
            )
        if len(popularity_I) != len(self.texts):
            raise DataError(
                f"popularity has {len(popularity_I)} entries but the catalogue has {len(self.texts)} items; give one "
                "count an item"
            )
        if self.labels and len(self.labels) != len(self.texts):
            raise DataError(
                f"labels has {len(self.labels)} entries but the catalogue has {len(self.texts)} items; give one tuple "
                "an item, or none at all"
            )
        for item in np.flatnonzero(~np.isfinite(features_IF).all(axis=1))[:1]:
            raise DataError(f"features of item {item} are not finite; fill the gaps before building a catalogue")
        for item in np.flatnonzero(~(np.isfinite(popularity_I) & (popularity_I >= 0)))[:1]:
            raise DataError(f"popularity of item {item} is {float(popularity_I[item])}; expected a count, 0 or more")

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        features: npt.ArrayLike | None = None,
        popularity: npt.ArrayLike | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        labels: Sequence[Sequence[str]] = (),
    ) -> Catalog:
        """A catalogue of what there is: no features (F = 0) and popularity 0 where they are not given.

        Features are called `feature_0`, `feature_1`, ... where they have no names. Raises `DataError`.
        """
        items = len(texts)
        table = np.zeros((items, 0)) if features is None else features
        features_IF = as_field("features", table, np.float32, axes=("items", "features"))
        names = [f"feature_{f}" for f in range(features_IF.shape[1])] if feature_names is None else feature_names
        popularity_I = np.zeros(items) if popularity is None else np.asarray(popularity)
        return cls(tuple(texts), features_IF, tuple(names), popularity_I, tuple(tuple(marks) for marks in labels))

    def __len__(self) -> int:
        """How many items."""
        return len(self.texts)

    @cached_property
    def characters(self) -> str:
        """Every character of the texts, sorted, each once."""
        return "".join(sorted(set().union(*self.texts)))

    def __deepcopy__(self, memo: dict[int, object]) -> Catalog:
        """Itself: a catalogue is never written to."""
        return self
