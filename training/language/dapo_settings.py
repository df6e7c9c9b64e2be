"""What a DAPO run of a language model is told, checked once, and what TRL is told of it.

May import TRL where arguments are made of the settings, and `rerank_env`. A step asks `groups_per_step` requests and
samples `group_size` answers to each; its rollouts are cut into `updates_per_step` equal parts, one update of the
weights each. With one update every ratio is 1 and no clip is reached, which is the cheapest and what GR2's formula
needs least.

Nothing here assumes one process: a step's groups are dealt to the processes, whole groups each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rerank_env.agents.language.decoding import Decoding
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.rewards import parse_reward
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.training.language.checkpoints import KEPT
from rerank_env.training.language.groups import SCALES
from rerank_env.training.language.lengths import POLICIES, LengthRule
from rerank_env.training.language.shuffles import MODES
from rerank_env.training.language.stopping import StopRule

_SCHEDULES = {"none": "constant_with_warmup", "cosine": "cosine", "linear": "linear"}
"""TRL's name of each decay of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class DapoConfig:
    """How to train; the defaults are DAPO's (2503.14476) and GR2's (2602.07774) where they name one.

    `learning_rate` at its peak, reached after `warmup_steps` updates, then `decay` "none", "cosine" or "linear".
    `epsilon_low`, `epsilon_high`: the clip. `temperature`: answers are sampled at it, and scored at it. `max_tokens`:
    of an answer. `length_policy`, `soft_tokens`, `soft_penalty`: see `lengths`. `shuffle`: see `shuffles`. `metric`:
    the raw metric that decides which groups are dead, and that validation measures; never a shaped reward.
    `max_resamples`: rounds of fresh requests for dead groups. `advantage_scale`: "std" or "none". `beta`: weight of the
    KL to the policy that training started from.

    Validation comes every `validate_every` steps, checkpoints every `save_every`, both also at the end; `stopping` says
    when to give up. `micro_batch` rollouts go through the model at once on each process, fewer where that does not
    divide a process' share. `seed` decides all sampling. Raises `InputError` or `UnknownNameError` naming the field.
    """

    steps: int = 600
    groups_per_step: int = 64
    group_size: int = 8
    updates_per_step: int = 1
    learning_rate: float = 1e-6
    warmup_steps: int = 10
    decay: str = "none"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epsilon_low: float = 0.2
    epsilon_high: float = 0.28
    beta: float = 0.0
    advantage_scale: str = "std"
    temperature: float = 1.0
    max_tokens: int = 512
    length_policy: str = "invalid"
    soft_tokens: int | None = None
    soft_penalty: float = 1.0
    shuffle: str = "across"
    metric: str = "ndcg@10"
    max_resamples: int = 3
    validate_every: int = 25
    save_every: int = 50
    stopping: StopRule = field(default_factory=StopRule)
    micro_batch: int = 8
    gradient_checkpointing: bool = False
    seed: int = 0

    least_group: ClassVar[int] = 2
    """Answers to a request that are compared with each other; distillation alone needs no more than one."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("steps", "groups_per_step", "updates_per_step", "max_tokens", "validate_every", "save_every"):
            self._set(name, whole(name, getattr(self, name), least=1))
        for name in ("warmup_steps", "max_resamples", "seed"):
            self._set(name, whole(name, getattr(self, name), least=0))
        self._set("group_size", whole("group_size", self.group_size, least=self.least_group))
        self._set("micro_batch", whole("micro_batch", self.micro_batch, least=1))
        for name in ("learning_rate", "max_grad_norm", "epsilon_low", "epsilon_high", "temperature"):
            self._set(name, self._number(name, zero=False))
        for name in ("weight_decay", "beta", "soft_penalty"):
            self._set(name, self._number(name, zero=True))
        one_of("learning rate decay", self.decay, _SCHEDULES)
        one_of("advantage scale", self.advantage_scale, SCALES)
        one_of("length policy", self.length_policy, POLICIES)
        one_of("shuffle", self.shuffle, MODES)
        parse_reward(self.metric)
        if self.epsilon_low >= 1.0:
            raise InputError(f"epsilon_low is {self.epsilon_low}; a ratio cannot fall below 0, so give less than 1")
        if self.groups_per_step * self.group_size % self.updates_per_step:
            raise InputError(
                f"updates_per_step is {self.updates_per_step}, which does not divide the "
                f"{self.groups_per_step * self.group_size} rollouts of a step; give a number that does"
            )
        self.length_rule  # noqa: B018 - checks its part now

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _number(self, name: str, *, zero: bool) -> float:
        value = finite(name, getattr(self, name))
        if value < 0 or (value == 0 and not zero):
            raise InputError(f"{name} is {value}; give a number {'of at least' if zero else 'above'} 0")
        return value

    @property
    def length_rule(self) -> LengthRule:
        """What becomes of an answer that is too long."""
        return LengthRule(self.length_policy, self.max_tokens, soft_tokens=self.soft_tokens, penalty=self.soft_penalty)

    def identity(self) -> dict[str, Any]:
        """Every field by name, JSON-ready: what a resumed run must agree in."""
        return asdict(self)


def arguments(config: DapoConfig, directory: Path, *, device: str, processes: int = 1) -> Any:
    """The `trl.GRPOConfig` of a run on `processes` devices of the kind `device`.

    Raises `InputError` where the groups or the rollouts of a step cannot be dealt evenly to the processes.
    """
    try:
        from trl import GRPOConfig
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'DAPO needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
        ) from error

    micro, parts = dealt(config, processes)
    if config.groups_per_step * config.group_size < 2:
        raise InputError("a step has one rollout, and TRL wants two or more; raise groups_per_step or group_size")
    made: Any = GRPOConfig(
        output_dir=str(directory),
        max_steps=config.steps * config.updates_per_step,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=parts // config.updates_per_step,
        steps_per_generation=parts,
        num_generations=config.group_size if config.group_size > 1 else micro * parts * processes,
        loss_type="dapo",
        epsilon=config.epsilon_low,
        epsilon_high=config.epsilon_high,
        beta=0.0,  # the trainer has a reference of its own; see `reference`
        scale_rewards="group" if config.advantage_scale == "std" else "none",
        temperature=config.temperature,
        max_completion_length=config.max_tokens,
        disable_dropout=True,
        shuffle_dataset=False,
        learning_rate=config.learning_rate,
        lr_scheduler_type=_SCHEDULES[config.decay],
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.gradient_checkpointing,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=config.save_every * config.updates_per_step,
        save_total_limit=KEPT,
        report_to="none",
        disable_tqdm=True,
        seed=config.seed,
        bf16=device == "cuda",
        use_cpu=device == "cpu",
    )
    made.num_generations = config.group_size  # TRL refuses groups of one where it is told of them
    return made


def dealt(config: DapoConfig, processes: int) -> tuple[int, int]:
    """How many rollouts go through the model at once on one process, and how many such parts a step has there."""
    if config.groups_per_step % processes:
        raise InputError(
            f"groups_per_step is {config.groups_per_step} on {processes} processes; give a multiple, so that every "
            "group stays on one of them"
        )
    share, left = divmod(config.groups_per_step * config.group_size // processes, config.updates_per_step)
    if left:
        raise InputError(
            f"updates_per_step is {config.updates_per_step}, which does not divide the rollouts of one process; give "
            "a number that does"
        )
    micro = next(size for size in range(min(config.micro_batch, share), 0, -1) if share % size == 0)
    return micro, share // micro * config.updates_per_step


def sampling(policy: TextPolicy[Decoding, Any], config: DapoConfig) -> Decoding:
    """How answers are drawn in training: from all of the law that is trained, the model's own at the temperature."""
    return replace(
        policy.decoding,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_p=1.0,
        constrained=False,
    )
