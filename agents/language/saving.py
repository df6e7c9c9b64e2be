"""A language policy in one folder: model and tokenizer as transformers write them, and `policy.json` beside.

    config.json, model.safetensors, tokenizer.json, ...   what any user of transformers can read
    adapter_config.json, adapter_model.safetensors, base/  in their place, where the model has a PEFT adapter
    semantic_ids.npz, remarks/                             where the policy has any
    policy.json                                            text format, template, decoding; sizes and digests of all

Everything is written beside the folder first and then moved into it, `policy.json` last, so that a full disk leaves the
policy that was there before, and a mixture of two is noticed. Other files of the folder stay. May import transformers,
peft, numpy and the layers below. No pickle.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rerank_env import durable
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.placing import device_named, dtype_named
from rerank_env.agents.language.wording import described, writer_of
from rerank_env.prompts import PromptWriter
from rerank_env.prompts.items import IdTable
from rerank_env.rewards.errors import CheckpointError, InputError, MissingExtraError
from rerank_env.semantic_ids import SemanticIds

if TYPE_CHECKING:
    from rerank_env.agents.language.text_policy import TextPolicy

KIND = "language"
READERS = {
    KIND: "rerank_env.agents.language.LanguagePolicy",
    "block-diffusion": "rerank_env.agents.block_diffusion.BlockDiffusionPolicy",
}
"""What reads which kind of policy."""

RECORD = "policy.json"
VERSION = 2
"""Goes up when a reader has to know of something new."""

READ = (1, VERSION)
"""The versions that can be read; the first was written without some of `FIELDS` for a time."""

FIELDS = (
    "text_format", "template", "template_hash", "prompt_budget", "ids", "decoding", "adapter", "remarks", "tokenizer",
    "probe", "files",
)  # fmt: skip
"""What a record has besides its kind and version."""

_IDS, _REMARKS, _BASE = "semantic_ids.npz", "remarks", "base"

_DIGESTED = 1 << 26
"""Bytes up to which a file's digest is kept too: all but weights, whose own format and size tell enough."""

_FREE = frozenset({"README.md"})
"""Files that anybody may rewrite."""


class Loaded(NamedTuple):
    """The parts of a policy; `decoding` is of the class that was asked for, `record` None for a plain model."""

    model: Any
    tokenizer: Any
    writer: PromptWriter
    remarks: EvidenceRemarks | None
    decoding: Any
    record: Mapping[str, Any] | None


def save(
    policy: TextPolicy[Any, Any],
    folder: str | os.PathLike[str],
    *,
    with_base: bool = True,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write a policy, with `more` that its kind keeps in the record; the folder is made where needed.

    A PEFT model is written as its adapter, and its base model with it unless `with_base` is False: then the base is
    looked up again, by its name, or where it is a folder by the way from this one to it, so that both can be moved
    together. Raises `CheckpointError` where the disk refuses, `InputError` for what cannot be
    written: a budget with a count of its own, IDs that are neither `SemanticIds` nor a list, several adapters.
    """
    from safetensors import SafetensorError

    target = Path(folder)
    record: dict[str, Any] = {"kind": policy.kind, "version": VERSION, **described(policy.writer), **(more or {})}
    record |= {"decoding": asdict(policy.decoding), "adapter": None, "remarks": policy.remarks is not None}
    record |= {"tokenizer": type(policy.tokenizer).__name__, "probe": _probe(policy.tokenizer)}
    ids = policy.writer.ids
    packed = None if ids is None else _packed(ids.table)
    with durable.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
            place = Path(made)
            try:
                record["adapter"] = _write_model(policy.model, place, target, with_base=with_base)
                policy.tokenizer.save_pretrained(place)
            except SafetensorError as error:  # what it makes of a refusal of the disk
                raise CheckpointError(
                    f"{target} could not be written ({error}); free some space, and save it again"
                ) from error
            if packed is not None:
                (place / _IDS).write_bytes(packed)
            if policy.remarks is not None:
                policy.remarks.save(place / _REMARKS)
            names = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
            record["files"] = {name: _marks(place / name) for name in names if name not in _FREE}
            _moved(place, target, names, record)


def load(
    name_or_folder: str | os.PathLike[str],
    *,
    writer: PromptWriter | None = None,
    remarks: EvidenceRemarks | None = None,
    decoding: Any = None,
    dtype: Any = None,
    device: Any = None,
    adapter: str | os.PathLike[str] | None = None,
    kind: str = KIND,
    settings: Callable[..., Any] = Decoding,
    more: Sequence[str] = (),
) -> Loaded:
    """The parts of a policy that `save` left, or of a plain model; see `LanguagePolicy.from_pretrained`.

    `kind` of policy, the class of its `settings` of decoding, and what its record has `more` than `FIELDS`.
    """
    folder = Path(name_or_folder)
    given = None if dtype in (None, "auto") else dtype_named(dtype)
    place_of_weights = None if device is None else device_named(device)
    record = _read(folder, kind, (*FIELDS, *more)) if (folder / RECORD).is_file() else None
    if record is None:
        _looked_for(folder, os.fspath(name_or_folder), described=writer is not None)
    if record is None and writer is None:
        raise InputError(
            f"{os.fspath(name_or_folder)} has no {RECORD}, so nothing says how requests are put in words; pass writer"
        )
    options: dict[str, Any] = {"dtype": "auto" if given is None else given}
    told = None if record is None else record["adapter"]
    base = os.fspath(name_or_folder) if told is None else _base_of(folder, told)
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Left to itself transformers takes the class that the model's type usually has, and its rules of splitting words.
    reader = AutoTokenizer if record is None else getattr(transformers, record["tokenizer"], AutoTokenizer)
    try:
        tokenizer = reader.from_pretrained(name_or_folder)
        model = AutoModelForCausalLM.from_pretrained(base, **options)
        for place in ([] if told is None else [folder]) + ([] if adapter is None else [Path(adapter)]):
            model = _with_adapter(model, place, base)
    except (OSError, ValueError) as error:
        remedy = "save it again" if folder.is_dir() else "check the name, and the network where it is on the hub"
        raise CheckpointError(f"the model in {name_or_folder} cannot be read ({error}); {remedy}") from error
    if record is not None and _probe(tokenizer) != record["probe"]:
        raise CheckpointError(
            f"the tokenizer in {folder} reads texts differently than when it was saved; use the release of "
            "transformers that saved it"
        )
    if place_of_weights is not None:
        model = model.to(place_of_weights)
    model.train(False)
    if record is not None:
        writer = writer or writer_of(record, _ids_of(folder) if record["ids"] else None, tokenizer)
        decoding = decoding or _decoding_of(folder, record["decoding"], settings)
        if remarks is None and record["remarks"]:
            remarks = EvidenceRemarks.load(folder / _REMARKS)
    assert writer is not None, "was checked above"
    return Loaded(model, tokenizer, writer, remarks, decoding or settings(), record)


def _looked_for(folder: Path, name: str, *, described: bool) -> None:
    """Raise `InputError` where there is no policy and no model in `folder`, saying what is wrong with its name.

    A name that can be one on the hub is one where it is `described` how requests are put in words.
    """
    inner = folder / "policy"
    if (inner / RECORD).is_file():
        raise InputError(f"{name} holds a policy in a folder of its own; give {inner}")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if not folder.exists() and (is_path or not described):
        raise InputError(f"{name} does not exist; give a folder that save_pretrained left, or a hub id and a writer")


def _write_model(model: Any, place: Path, target: Path, *, with_base: bool) -> str | None:
    """Write weights and configuration; what the base of an adapter is called, None where there is no adapter.

    A base that is a folder is called by the way to it from `target`, where what is written will be; it begins with a
    dot, as no name on the hub does.
    """
    if not hasattr(model, "peft_config"):
        model.save_pretrained(place)
        return None
    if list(model.peft_config) != ["default"]:
        raise InputError(f"the model has the adapters {list(model.peft_config)}; merge all but one, called 'default'")
    if with_base:
        copy.deepcopy(model).unload().save_pretrained(place / _BASE)
        model.save_pretrained(place, save_embedding_layers=False)
        return _BASE
    name = model.peft_config["default"].base_model_name_or_path
    if not name:
        raise InputError("the model under the adapter has no name to be found by; save it with with_base=True")
    model.save_pretrained(place)
    if not Path(name).is_dir():
        return str(name)
    way = Path(os.path.relpath(Path(name).resolve(), target.resolve())).as_posix()
    way = way if way.startswith(".") else f"./{way}"
    (place / "README.md").unlink(missing_ok=True)  # PEFT's form for a card, which names the folder
    config = place / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_bytes()), "base_model_name_or_path": way}, indent=2) + "\n")
    return way


def _base_of(folder: Path, told: str) -> str:
    """Where the base of an adapter is, by what `_write_model` called it."""
    return os.fspath((folder / told).resolve()) if told == _BASE or told.startswith(".") else told


def _with_adapter(model: Any, place: Path, base: str) -> Any:
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'adapters need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
        ) from error
    adapted = PeftModel.from_pretrained(model, place, is_trainable=True)
    adapted.peft_config["default"].base_model_name_or_path = base  # it was read from the file, which may have moved
    return adapted


def _probe(tokenizer: Any) -> list[int]:
    """How a tokenizer reads a text with what prompts and answers have: numbers, words, tags, other scripts."""
    return list(tokenizer("<think>1. Über 42 | near 9, [3] > [10]</think>\n<answer>[2, 1]</answer>")["input_ids"])


def _marks(path: Path) -> list[Any]:
    size = path.stat().st_size
    return [size, hashlib.sha256(path.read_bytes()).hexdigest() if size <= _DIGESTED else ""]


def _moved(place: Path, target: Path, names: list[str], record: Mapping[str, Any]) -> None:
    """Move what was written into the folder, the record last, and take away what only the record before it named."""
    before: set[str] = set()
    if (target / RECORD).is_file():
        try:
            before = set(json.loads((target / RECORD).read_bytes())["files"])
        except (ValueError, KeyError, TypeError):  # torn, or of another program: nothing is known to be old
            before = set()
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with (place / name).open("rb") as file:
            os.fsync(file.fileno())
        (place / name).replace(target / name)
    for name in before - set(names):
        (target / name).unlink(missing_ok=True)
    durable.replace(target / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def kind_of(folder: str | os.PathLike[str]) -> str:
    """The kind of policy that a folder's record says it holds. Raises `CheckpointError` where it says nothing of it."""
    path = Path(folder) / RECORD
    try:
        return str(json.loads(path.read_bytes())["kind"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); save the policy again") from error


def _read(folder: Path, kind: str, fields: Sequence[str]) -> dict[str, Any]:
    """The record, every file that it names looked at. Raises `CheckpointError`."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
        if record["kind"] != kind or record["version"] not in READ:
            reader = READERS.get(record["kind"], "the class that saved it")
            raise CheckpointError(
                f"{folder} holds a {record['kind']!r} policy of version {record['version']}, not a {kind!r} policy of "
                f"version {VERSION}; use {reader}, and the release that saved it"
            )
        missing = [name for name in fields if name not in record]
        if missing:
            raise CheckpointError(
                f"{folder / RECORD} says nothing of {', '.join(missing)}, so an earlier release saved the policy; use "
                "that release, or train and save it again with this one"
            )
        for name, (size, digest) in record["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size or (digest and _marks(path)[1] != digest):
                raise CheckpointError(f"{name} and {RECORD} in {folder} were not saved together; save the policy again")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder / RECORD} cannot be read ({error}); save the policy again") from error
    return record


def _decoding_of(folder: Path, told: Mapping[str, Any], settings: Callable[..., Any]) -> Any:
    try:
        return settings(**told)
    except (TypeError, InputError) as error:
        raise CheckpointError(
            f"the decoding in {folder / RECORD} does not make sense ({error}); pass decoding, or save the policy again"
        ) from error


def _packed(table: IdTable) -> bytes:
    buffer = io.BytesIO()
    if isinstance(table, SemanticIds):
        np.savez(
            buffer, codes=table.codes_IL, sizes=np.array(table.sizes), drawn_from=table.drawn_from_I,
            told=np.array([table.catalogue, table.method]),
        )  # fmt: skip
    elif isinstance(table, list | tuple):
        np.savez(buffer, texts=np.array(table))
    else:
        raise InputError(f"IDs of type {type(table).__name__} cannot be saved; give SemanticIds, or a list of texts")
    return buffer.getvalue()


def _ids_of(folder: Path) -> IdTable:
    try:
        with np.load(folder / _IDS, allow_pickle=False) as found:
            if "texts" in found:
                texts: list[str] = found["texts"].tolist()
                return texts
            catalogue, method = found["told"].tolist()
            sizes = tuple(found["sizes"].tolist())
            return SemanticIds(found["codes"], sizes, found["drawn_from"], catalogue, method)
    except Exception as error:  # zip and npy readers have a dozen ways to say that bytes are not theirs
        raise CheckpointError(f"{folder / _IDS} cannot be read ({error}); save the policy again") from error
