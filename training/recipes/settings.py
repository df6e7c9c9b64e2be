"""What a GR2 run is told, in groups a stage each; a line such as "dapo.steps=200" changes it (`changes`).

Groups are frozen dataclasses of plain values. Where a group has fields of a trainer's own configuration (`sft`, `opd`,
`dapo`, `midtrain`), they have the same names there, and are checked there too, before anything starts. May import
`rerank_env.agents.evidence`, `rerank_env.rewards` and the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rerank_env.agents.evidence.words import DEFAULT
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError

LEARN_FROM = ("train", "validation", "both")
TEACHERS = ("rule", "local", "server")
STARTS = ("midtrain", "sft-targeted", "sft-rejection")
"""The stages whose policy OPD may begin with, and reinforcement too, which may also begin with that of OPD."""

ROWS = ("sft-targeted", "sft-rejection", "teacher", "opd", "dapo-naive", "dapo", "dapo-gain", "internalise")
"""The stages that make a policy which the table can compare."""

REWARDS = ("reward", "naive", "gain")
"""The settings of reinforcement that name a reward."""

SEEDED = ("dapo-naive", "dapo", "dapo-gain", "internalise")
"""Those that make a policy a seed."""

DISTILLED = ("teacher", "sft-rejection")
"""The stages whose policy OPD may imitate."""


@dataclass(frozen=True, kw_only=True)
class ListsSettings:
    """Which lists are learned from: `learn_from` those of the training split, of validation, or of both; at most `most`
    of them (0: all), drawn at random. The lists of so many validation users as have `watch` of them choose and stop: no
    list of validation that is watched is learned from.
    """

    learn_from: str = "train"
    most: int = 0
    watch: int = 500


@dataclass(frozen=True, kw_only=True)
class Ids:
    """Semantic IDs: fields of `CoderSettings` and the `epochs` of its RQ-VAE."""

    method: str = "rq-vae"
    text: str = "tfidf-svd"
    collaborative: float = 0.5
    epochs: int = 30


@dataclass(frozen=True, kw_only=True)
class Remarked:
    """What is remarked on in prompts: `features`, with commas between them, in `levels`; see `EvidenceRemarks`."""

    features: str = ",".join(DEFAULT)
    levels: int = 10


@dataclass(frozen=True, kw_only=True)
class Model:
    """The student. `base` names a pretrained model, by hub id or path; "" is one from nothing: `width`, `layers`,
    `heads`, a `vocabulary` of so many tokens, and what it reads, `context`. `adapter` is the rank of LoRA adapters, 0
    trains all weights. `dtype` of the weights; `device` "auto" is an accelerator where there is one.
    """

    base: str = ""
    width: int = 128
    layers: int = 4
    heads: int = 4
    vocabulary: int = 2048
    context: int = 1024
    adapter: int = 0
    dtype: str = "float32"
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Prompts: a `template`, how answers with reasons are written and how direct ones are, and a `budget` of characters
    (0: none).
    """

    template: str = "compact"
    text_format: str = "tagged-list"
    direct_format: str = "list"
    budget: int = 0


@dataclass(frozen=True, kw_only=True)
class Midtrain:
    """Mid-training: fields of `MidtrainConfig`; 0 `steps` leave the stage out."""

    warmup_steps: int = 100
    warmup_lr: float = 5e-4
    steps: int = 1000
    lr: float = 1e-4
    batch: int = 16
    micro_batch: int = 16
    length: int = 256
    save_every: int = 200
    questions: int = 500


@dataclass(frozen=True, kw_only=True)
class TracesSettings:
    """Who explains: `teacher` "rule", "local" (the model `name`) or "server" (the model `name` at `url`), asked at most
    `tries` times a request in rejection mode, for at most `most` requests (0: all), at `temperature`. With
    `copies` every request is asked about so many times, each in an order of its own: more to learn from where teachers
    are cheap.
    """

    teacher: str = "rule"
    name: str = ""
    url: str = ""
    tries: int = 8
    most: int = 0
    copies: int = 1
    temperature: float = 1.0
    batch: int = 256
    concurrency: int = 8
    max_tokens: int = 512


@dataclass(frozen=True, kw_only=True)
class Sft:
    """Supervised fine-tuning: fields of `SftConfig` and the weights of `training_examples`."""

    lr: float = 1e-4
    epochs: int = 3
    batch: int = 64
    micro_batch: int = 16
    save_every: int = 200
    reasoning_weight: float = 0.3
    answer_weight: float = 1.0
    direct_share: float = 0.3


@dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """Whom OPD imitates: a model of this shape (or pretrained `base`, which must share the student's vocabulary), mid-
    trained and fine-tuned as the student is, on the rejection traces, with learning rate `lr`; then frozen.
    """

    base: str = ""
    width: int = 192
    layers: int = 6
    heads: int = 6
    adapter: int = 0
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Opd:
    """On-policy distillation, from the policy of stage `start` towards that of stage `teacher`: fields of `OpdConfig`.
    The reward is that of `Dapo`.
    """

    start: str = "midtrain"
    teacher: str = "teacher"
    steps: int = 200
    learning_rate: float = 1e-4
    groups_per_step: int = 32
    group_size: int = 1
    micro_batch: int = 32
    max_tokens: int = 128
    divergence: str = "reverse_kl"
    form: str = "full"
    topk: int = 16
    distill_weight: float = 1.0
    reward_weight: float = 0.0
    save_every: int = 50
    validate_every: int = 50


@dataclass(frozen=True, kw_only=True)
class Dapo:
    """Reinforcement from the policy of stage `start`: three `reward`s, and fields of `DapoConfig` for all of them."""

    start: str = "sft-rejection"
    reward: str = "gr2"
    naive: str = "naive"
    gain: str = "gain"
    steps: int = 300
    learning_rate: float = 1e-4
    groups_per_step: int = 16
    group_size: int = 8
    micro_batch: int = 64
    max_tokens: int = 128
    length_policy: str = "invalid"
    shuffle: str = "across"
    metric: str = "ndcg@10"
    max_resamples: int = 2
    validate_every: int = 50
    save_every: int = 50


@dataclass(frozen=True, kw_only=True)
class Internalise:
    """The second round of reinforcement, on direct answers: what differs from `Dapo`."""

    steps: int = 150
    learning_rate: float = 1e-4
    max_tokens: int = 48


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What an update of reinforcement and distillation maximises: the clip's `epsilon_low` and `epsilon_high`, and
    `beta`, the weight of the KL to the policy that training started from. Fields of `DapoConfig`.
    """

    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    beta: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When reinforcement and distillation give up: fields of `StopRule`, with 0 for None (`patience`: never for want of
    a better validation, `window`: never because reward and held-out metric part).
    """

    patience: int = 0
    window: int = 6
    agreement: float = 0.6


@dataclass(frozen=True, kw_only=True)
class Memory:
    """`gradient_checkpointing`, in all trainers: activations are computed again, not kept; slower, and far smaller."""

    gradient_checkpointing: bool = False


@dataclass(frozen=True, kw_only=True)
class Server:
    """`key_variable`: the environment variable that holds the key of the server at `traces.url`, "" where it asks for
    none. The key itself is read when it is needed, and written nowhere.
    """

    key_variable: str = ""


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How answers are asked for wherever they are measured: `max_tokens` at most, `batch` at a time, greedily."""

    max_tokens: int = 128
    batch: int = 256


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Of how many bootstrap `resamples` the intervals of the table are."""

    resamples: int = 2000


@dataclass(frozen=True, kw_only=True)
class Gr2Settings:
    """All of a run. `seed` decides everything that is made once; `seeds` are those of each reinforcement row; `rows`
    are the stages whose policies the table compares, and stages that none of them needs are left out.
    """

    seed: int = 0
    seeds: tuple[int, ...] = (0, 1, 2)
    rows: tuple[str, ...] = ROWS
    lists: ListsSettings = field(default_factory=ListsSettings)
    ids: Ids = field(default_factory=Ids)
    remarks: Remarked = field(default_factory=Remarked)
    model: Model = field(default_factory=Model)
    wording: Wording = field(default_factory=Wording)
    answering: Answering = field(default_factory=Answering)
    midtrain: Midtrain = field(default_factory=Midtrain)
    traces: TracesSettings = field(default_factory=TracesSettings)
    sft: Sft = field(default_factory=Sft)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    opd: Opd = field(default_factory=Opd)
    dapo: Dapo = field(default_factory=Dapo)
    internalise: Internalise = field(default_factory=Internalise)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    surrogate: Surrogate = field(default_factory=Surrogate)
    stopping: Stopping = field(default_factory=Stopping)
    memory: Memory = field(default_factory=Memory)
    server: Server = field(default_factory=Server)

    def __post_init__(self) -> None:
        """Check what no trainer's configuration checks; `InputError` or `UnknownNameError` naming the field."""
        whole("seed", self.seed, least=0)
        seeds = tuple(whole("seeds", seed, least=0) for seed in self.seeds)
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds are {', '.join(map(str, seeds)) or 'none'}; give at least one, and each once")
        for row in self.rows:
            one_of("row", row, ROWS)
        if "dapo" not in self.rows or len(set(self.rows)) < len(self.rows):
            raise InputError(f"rows are {', '.join(self.rows) or 'none'}; name 'dapo' among them, and each once")
        one_of("lists.learn_from", self.lists.learn_from, LEARN_FROM)
        one_of("traces.teacher", self.traces.teacher, TEACHERS)
        one_of("opd.start", self.opd.start, STARTS)
        one_of("opd.teacher", self.opd.teacher, DISTILLED)
        if self.opd.start == self.opd.teacher:
            raise InputError(
                f"opd.start and opd.teacher are both {self.opd.start!r}, and nobody learns from itself; change one"
            )
        one_of("dapo.start", self.dapo.start, (*STARTS, "opd"))
        for group in fields(self):
            value = getattr(self, group.name)
            for setting in fields(value) if hasattr(value, "__dataclass_fields__") else ():
                _check(f"{group.name}.{setting.name}", getattr(value, setting.name))
        whole("lists.watch", self.lists.watch, least=1)
        whole("traces.tries", self.traces.tries, least=1)
        whole("traces.copies", self.traces.copies, least=1)

    def group(self, *names: str) -> dict[str, Any]:
        """The named groups and single fields as plain data, for a stage's settings."""
        told = asdict(self)
        return {name: told[name] for name in names}

    def changed_in(self, *names: str) -> dict[str, Any]:
        """Of the named groups what is not at its default, and no group that is: a stage made before there was such a
        setting has the fingerprint of one that leaves it alone.
        """
        found = {
            name: {key: value for key, value in group.items() if value != getattr(_DEFAULTS[name], key)}
            for name, group in self.group(*names).items()
        }
        return {name: group for name, group in found.items() if group}


def without(group: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The settings of a group but for those named."""
    return {name: value for name, value in group.items() if name not in names}


_DEFAULTS: Mapping[str, Any] = {
    "surrogate": Surrogate(), "stopping": Stopping(), "memory": Memory(), "server": Server()
}  # fmt: skip
"""The groups whose fields a stage is told of only where they were changed."""


def _check(name: str, value: object) -> None:
    if isinstance(value, str | bool):
        return
    if finite(name, value) < 0:
        raise InputError(f"{name} is {value}; give a number of at least 0")
