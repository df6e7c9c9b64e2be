"""What is told before the first stage of a run: settings that a stage would refuse hours later, what is missing.

Settings are checked by making of them what a stage makes of them, as far as no data are needed for that. May import
torch, the extra `language`, its neighbours and the layers below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rerank_env.agents.evidence.words import WORDS
from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.placing import device_named, dtype_named
from rerank_env.agents.language.scratch import SMALLEST
from rerank_env.prompts import template_of
from rerank_env.rewards import parse_reward
from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError
from rerank_env.rewards.formats import FORMATS, has_reasoning
from rerank_env.training.language import dapo, midtrain, opd
from rerank_env.training.language.sft_settings import SftConfig
from rerank_env.training.recipes.inputs import coder_of, features_of
from rerank_env.training.recipes.learning import TRACES, WEIGHTS, server_of
from rerank_env.training.recipes.policies import decoding_of, finer
from rerank_env.training.recipes.settings import REWARDS, Gr2Settings, without


def check(settings: Gr2Settings, todo: Collection[str] = ()) -> None:
    """Raise where a stage would refuse its settings, a library or a key is missing: before any of `todo` starts."""
    told, seed = asdict(settings), settings.seed
    if settings.midtrain.steps:
        with naming("midtrain"):
            midtrain.MidtrainConfig(**told["midtrain"], **told["memory"], seed=seed)
    with naming("sft"):
        SftConfig(**without(told["sft"], *WEIGHTS), **told["memory"], seed=seed)
    with naming("surrogate, stopping or memory"):
        dapo.DapoConfig(**finer(told), seed=seed)
    with naming("opd"):
        opd.OpdConfig(**without(told["opd"], "start", "teacher"), **finer(told), seed=seed)
    reinforced = without(told["dapo"], "start", *REWARDS)
    for group, given in (("dapo", reinforced), ("internalise", reinforced | told["internalise"])):
        with naming(group):
            dapo.DapoConfig(**given, **finer(told), seed=seed)
    for reward in REWARDS:
        with naming(f"dapo.{reward}"):
            parse_reward(told["dapo"][reward])
    whole("answering.max_tokens", settings.answering.max_tokens, least=1)
    whole("evaluation.resamples", settings.evaluation.resamples, least=1)
    with naming("answering"):
        decoding_of(told)
    for text_format in (settings.wording.text_format, settings.wording.direct_format):
        one_of("text format", text_format, FORMATS)
    with naming("wording.template"):
        template_of(settings.wording.template)
    if not has_reasoning(settings.wording.text_format):
        raise InputError(
            f"wording.text_format is {settings.wording.text_format!r}, which has no room for reasons; use a tagged one"
        )
    with naming("ids"):
        coder_of(told)
    _remarked(told["remarks"])
    _models(told, todo)
    if any(name.startswith(TRACES) for name in todo):
        _asked(told)


@contextmanager
def naming(group: str) -> Iterator[None]:
    """Say of what is refused inside which settings it is of."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{group}: {error}") from error


def _remarked(remarks: Mapping[str, Any]) -> None:
    features = features_of(remarks)
    for feature in features:
        one_of("feature in remarks.features", feature, WORDS)
    if not features or len(set(features)) < len(features):
        raise InputError(f"remarks.features is {remarks['features']!r}; name at least one feature, and each once")
    whole("remarks.levels", remarks["levels"], least=2)


def _models(settings: Mapping[str, Any], todo: Collection[str]) -> None:
    """Dtype and device of all models, the folders they are in, and the shapes of those that are made from nothing."""
    dtype_named(settings["model"]["dtype"], what="model.dtype")
    if settings["model"]["device"] != "auto":
        device_named(settings["model"]["device"], what="model.device")
    if not settings["model"]["base"]:
        whole("model.vocabulary", settings["model"]["vocabulary"], least=SMALLEST)
    for group in ("model", *(["teacher"] if "teacher" in todo else [])):
        shape = settings[group]
        _found(f"{group}.base", shape["base"])
        for size in ("width", "layers", "heads") if not shape["base"] else ():
            whole(f"{group}.{size}", shape[size], least=1)
        if not shape["base"] and shape["width"] % (2 * shape["heads"]):
            raise InputError(
                f"{group}.width is {shape['width']}, no even multiple of {shape['heads']} heads; change one of them"
            )


def _found(name: str, model: str) -> None:
    """Raise where what names a model is a path, and no name on the hub, and there is no such folder."""
    if (model.startswith((".", "/", "~")) or model.count("/") > 1) and not Path(model).is_dir():
        raise InputError(f"{name} is {model!r}, and there is no such folder; give one that there is, or a hub id")


def _asked(settings: Mapping[str, Any]) -> None:
    """The teacher whom traces are asked of, where it is a model."""
    traces = settings["traces"]
    if traces["teacher"] == "server":
        server_of(settings)
    if traces["teacher"] == "local":
        if not traces["name"]:
            raise InputError("traces.name is '', and the local teacher needs a model; give its hub id or folder")
        _found("traces.name", traces["name"])
        Decoding(max_tokens=traces["max_tokens"], temperature=traces["temperature"])
