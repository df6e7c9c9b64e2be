"""From a log to semantic IDs in one call, and from new texts to IDs beside the old ones.

May import numpy, torch and the layers below; a text encoder and scikit-learn are loaded when they are used. `build`
embeds the items (text, purchases or both), trains a quantiser, and draws the random levels; the `ItemCoder` it returns
is what is needed to code items that come later, and can be saved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from rerank_env import durable
from rerank_env.agents.semantic_ids import tfidf
from rerank_env.agents.semantic_ids.assignment import assigned, extended
from rerank_env.agents.semantic_ids.collaborative import WIDTH, collaborative_embedding, consecutive
from rerank_env.agents.semantic_ids.inputs import COLLABORATIVE_WEIGHT, combined
from rerank_env.agents.semantic_ids.rq_kmeans import RqKMeans
from rerank_env.agents.semantic_ids.rq_vae import RqVae, RqVaeConfig
from rerank_env.agents.semantic_ids.rq_vae_training import EpochLog, fit
from rerank_env.agents.semantic_ids.text import MINILM, TextEncoder, TransformerEncoder, embedded
from rerank_env.data.interactions import Interactions
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.arrays import BoolArray, Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError
from rerank_env.semantic_ids import SemanticIds

METHODS = ("rq-kmeans", "rq-vae")
SETTINGS, QUANTISER, WORDS = "coder.json", "quantiser", "words"
VERSION = 1


class Quantiser(Protocol):
    """What gives rows of numbers their learned codes: an `RqVae` or an `RqKMeans`."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each level's codebook, random levels included."""

    def codes(self, rows_ID: Float32Array) -> IntArray:
        """The learned codes of each row, [I, M] int64."""

    def reconstructed(self, rows_ID: Float32Array) -> Float32Array:
        """What those codes keep of each row, [I, D] float32."""

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write it into a folder."""


@dataclass(frozen=True, kw_only=True)
class CoderSettings:
    """How IDs are made; `InputError` or `UnknownNameError`, naming the field, on what cannot be.

    `method` is "rq-vae" or "rq-kmeans". `text` names the encoder: "all-MiniLM-L6-v2", "tfidf-svd", a folder or hub
    identifier as `TransformerEncoder` takes, or None for purchases alone. `collaborative` is the weight of purchases
    beside the text (0: text alone), `width` how many numbers describe them. `vae` has the levels and codebooks of both
    methods, and how an RQ-VAE is trained. `seed` decides everything random.
    """

    method: str = "rq-vae"
    text: str | None = MINILM
    collaborative: float = COLLABORATIVE_WEIGHT
    width: int = WIDTH
    vae: RqVaeConfig = field(default_factory=RqVaeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field, since settings may come from a file."""
        one_of("method of semantic IDs", self.method, METHODS)
        weight = finite("collaborative", self.collaborative)
        if not 0 <= weight <= 1 or (self.text is None and not weight) or (self.text is not None and weight == 1):
            raise InputError(
                f"collaborative is {weight} and text is {self.text!r}; give a weight from 0 to below 1, or text=None "
                "for purchases alone"
            )
        object.__setattr__(self, "collaborative", weight)
        object.__setattr__(self, "width", whole("width", self.width, least=1))
        object.__setattr__(self, "seed", whole("seed", self.seed, least=0))

    def __str__(self) -> str:
        """The settings as one line, for the record of the IDs."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, eq=False)
class ItemCoder:
    """What gives items learned codes: settings, an encoder of texts (None: purchases alone) and a quantiser."""

    settings: CoderSettings
    encoder: TextEncoder | None
    quantiser: Quantiser

    def rows(
        self, texts: Sequence[str], collaborative_IE: Float32Array | None = None, *, progress: bool | None = None
    ) -> Float32Array:
        """The rows [I, D] float32 that are quantised; items without purchases have zeros for them, as new items do.

        Raises `InputError` where there are neither texts nor purchases to read, besides what the encoder raises.
        """
        return _rows(texts, self.settings, self.encoder, collaborative_IE, progress)

    def extend(self, ids: SemanticIds, texts: Sequence[str], *, rng: np.random.Generator) -> SemanticIds:
        """The IDs of a grown catalogue: the items of `ids` keep theirs, the texts after them get new ones.

        `texts` are all texts, old ones first. Raises `InputError` where other settings made `ids`, and as `rows` and
        `assignment.extended` do.
        """
        if ids.method != str(self.settings):
            raise InputError(
                f"the IDs were made by {ids.method!r} and this coder by {str(self.settings)!r}; extend them with the "
                "coder that made them"
            )
        ids.check_catalogue(texts[: len(ids)])
        return extended(ids, self.quantiser.codes(self.rows(texts[len(ids) :])), texts=texts, rng=rng)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write settings, quantiser and words into `directory`; an encoder that has a name is saved by it."""
        folder = Path(directory)
        self.quantiser.save_pretrained(folder / QUANTISER)
        if isinstance(self.encoder, tfidf.TfidfSvd):
            self.encoder.save_pretrained(folder / WORDS)
        identity = None if self.encoder is None else self.encoder.identity
        told = {
            "kind": "item-coder",
            "version": VERSION,
            "encoder": identity,
            "settings": asdict(self.settings),
            "sha256": _digests(folder),
        }
        durable.replace(folder / SETTINGS, (json.dumps(told, indent=2) + "\n").encode())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> ItemCoder:
        """What `save_pretrained` wrote.

        Raises `CheckpointError` where a file is missing, torn or does not belong, and where the text encoder of that
        name is not the one that was used, besides what loading it raises.
        """
        folder = Path(directory)
        try:
            told = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            if (told["kind"], told["version"]) != ("item-coder", VERSION):
                raise InputError(f"it is {told['kind']!r} of version {told['version']}")
            vae = RqVaeConfig(**told["settings"].pop("vae"))
            settings = CoderSettings(**told["settings"], vae=vae)
            identity, digests = told["encoder"], told["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder / SETTINGS} cannot be read ({error}); save the coder again") from error
        if digests != _digests(folder):
            raise CheckpointError(f"the files in {folder} were not saved together; save the coder again")
        encoder: TextEncoder | None = None
        if settings.text == tfidf.NAME:
            encoder = tfidf.TfidfSvd.from_pretrained(folder / WORDS)
        elif settings.text is not None:
            encoder = TransformerEncoder(settings.text)
        if identity != (None if encoder is None else encoder.identity):
            raise CheckpointError(
                f"the text encoder {settings.text!r} is another one than the coder in {folder} was made with; bring "
                "that one back, or make the IDs anew"
            )
        kind = RqVae if settings.method == "rq-vae" else RqKMeans
        return cls(settings, encoder, kind.from_pretrained(folder / QUANTISER))


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file beside the settings, by its path."""
    files = (path for part in (QUANTISER, WORDS) for path in sorted((folder / part).rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass(frozen=True, eq=False)
class Built:
    """What `build` made: the IDs, what codes new items, and the rows [I, D] that were quantised."""

    ids: SemanticIds
    coder: ItemCoder
    rows_ID: Float32Array


def build(
    log: Interactions,
    seen_N: BoolArray,
    settings: CoderSettings | None = None,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[EpochLog], None] | None = None,
) -> Built:
    """Semantic IDs of all items of a log, from their texts and from the purchases that `seen_N` marks, no others.

    `progress` is told of every epoch of an RQ-VAE. Raises what the parts raise: `MissingExtraError`, `FetchError`,
    `DataError`, and `InputError` for a log that has too little in it.
    """
    settings = CoderSettings() if settings is None else settings
    rng = np.random.default_rng(settings.seed)
    encoder: TextEncoder | None = None
    if settings.text == tfidf.NAME:
        encoder = tfidf.TfidfSvd.fit(log.texts, rng=rng)
    elif settings.text is not None:
        encoder = TransformerEncoder(settings.text, device=str(device))
    bought_IE = None
    if settings.collaborative:
        bought_IE = collaborative_embedding(log, seen_N, rng=rng, width=settings.width)
    rows_ID = _rows(log.texts, settings, encoder, bought_IE, None)
    quantiser: Quantiser
    if settings.method == "rq-kmeans":
        random = settings.vae.random_levels
        quantiser = RqKMeans.fit(rows_ID, rng=rng, sizes=settings.vae.sizes, random_levels=random)
    else:
        generator = torch.Generator().manual_seed(settings.seed)
        pairs_P2 = consecutive(log, seen_N) if settings.vae.contrastive else None
        quantiser = fit(rows_ID, settings.vae, generator=generator, pairs_P2=pairs_P2, device=device, progress=progress)
    ids = assigned(quantiser.codes(rows_ID), quantiser.sizes, texts=log.texts, rng=rng, method=str(settings))
    return Built(ids, ItemCoder(settings, encoder, quantiser), rows_ID)


def _rows(
    texts: Sequence[str],
    settings: CoderSettings,
    encoder: TextEncoder | None,
    collaborative_IE: Float32Array | None,
    progress: bool | None,
) -> Float32Array:
    """What is quantised, as `ItemCoder.rows` says."""
    text_ID = None if encoder is None else embedded(texts, encoder, progress=progress)
    if settings.collaborative and collaborative_IE is None:
        if text_ID is None:
            raise InputError("these IDs are made of purchases alone, so new items have none; make them with a text")
        collaborative_IE = np.zeros((len(texts), settings.width), dtype=np.float32)
    return combined(text_ID, collaborative_IE, weight=settings.collaborative)
