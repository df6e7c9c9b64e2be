"""Texts as vectors without a language model: TF-IDF and its truncated singular vectors (latent semantic analysis).

May import numpy, torch (to save), the layers below, and inside functions scikit-learn. For where no model can be had:
it knows words, not what they mean, and gives texts without a known word a row of zeros (Deerwester et al., JASIS 1990).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rerank_env.agents import pretrained
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import Float32Array, FloatArray
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError

NAME = "tfidf-svd"


@dataclass(frozen=True, eq=False)
class TfidfSvd:
    """A text encoder that was fitted on the texts of a catalogue, and reads others with the words it knows.

    `words` [W], sorted; `idf_W` float64 their inverse document frequencies; `components_DW` float32 the directions.
    """

    words: tuple[str, ...]
    idf_W: FloatArray
    components_DW: Float32Array

    @classmethod
    def fit(cls, texts: Sequence[str], *, rng: np.random.Generator, width: int = 256, rarest: int = 2) -> TfidfSvd:
        """Learn words that at least `rarest` texts have, and at most `width` directions.

        Raises `InputError` where no word is that frequent, `MissingExtraError` without scikit-learn.
        """
        vectorizer, directions = _sklearn()
        whole("width", width, least=1)
        counter = vectorizer(min_df=whole("rarest", rarest, least=1), sublinear_tf=True)
        try:
            weights = counter.fit_transform(texts)
        except ValueError as error:
            raise InputError(
                f"no word is in {rarest} of the {len(texts)} texts; give more texts or rarest=1"
            ) from error
        kept = min(width, *(side - 1 for side in weights.shape))
        if kept < 1:
            raise InputError(f"{weights.shape[0]} texts with {weights.shape[1]} words have no directions; give more")
        svd = directions(kept, random_state=int(rng.integers(2**31))).fit(weights)
        components = np.ascontiguousarray(svd.components_, dtype=np.float32)
        return cls(tuple(counter.get_feature_names_out()), np.asarray(counter.idf_, dtype=np.float64), components)

    @property
    def identity(self) -> str:
        """The hash of all it has learned."""
        digest = hashlib.sha256("\n".join(self.words).encode(errors="surrogatepass"))
        digest.update(self.idf_W.tobytes() + self.components_DW.tobytes())
        return f"{NAME} {digest.hexdigest()}"

    def __call__(self, texts: Sequence[str], *, progress: bool | None = None) -> Float32Array:
        """Rows [I, D] float32 of length 1, or 0 where a text has no known word; too fast for a `progress` bar."""
        del progress
        vectorizer, _ = _sklearn()
        counter = vectorizer(vocabulary=self.words, sublinear_tf=True)
        counter.idf_ = self.idf_W
        if not len(texts):
            return np.zeros((0, len(self.components_DW)), dtype=np.float32)
        rows = np.asarray(counter.transform(texts) @ self.components_DW.T, dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Float32Array = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-12)
        return unit

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        tensors = {"idf": torch.from_numpy(self.idf_W), "components": torch.from_numpy(self.components_DW)}
        pretrained.write(directory, NAME, {"words": self.words}, tensors)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> TfidfSvd:
        """What `save_pretrained` wrote; `CheckpointError` where a file is missing, torn or does not belong."""
        config, tensors = pretrained.read(directory, NAME)
        words, idf, components = tuple(config.get("words", ())), tensors.get("idf"), tensors.get("components")
        if idf is None or components is None or idf.shape != (len(words),) or components.shape[1:] != (len(words),):
            raise CheckpointError(f"the words and numbers of {NAME} in {directory} do not fit; save it again")
        return cls(words, idf.numpy(), components.numpy())


def _sklearn() -> tuple[Any, Any]:
    """The classes that count words and that find directions."""
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'{NAME} needs scikit-learn, which is not installed; run: pip install "rerank-env[semantic-ids]"'
        ) from error
    return TfidfVectorizer, TruncatedSVD
