"""What a run of Diffusion-GR2 is told besides what one of GR2 is, in groups a stage each.

Groups are frozen dataclasses of plain values; fields of a trainer's own configuration have the same names there, and
are checked there too, before anything starts. Defaults are the paper's (2607.01170) where it names one, else ours. May
import its neighbour `settings` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rerank_env.rewards.arguments import one_of, whole
from rerank_env.rewards.errors import InputError
from rerank_env.training.recipes.settings import Gr2Settings

IMITATION, CFT, OPD, RL = "traces-imitation", "cft", "block-opd", "block-dapo"
"""The stages that collect what is learned, and those that teach block diffusion."""

REJECTION = "traces-rejection"
LESSONS = (IMITATION, REJECTION)
"""The stages whose traces conversion fine-tuning may learn."""

BEGINS = (CFT, OPD)
"""The stages whose policy reinforcement may begin with."""

LEARNED = ("dapo",)
"""The rows of GR2's table that this recipe needs: its teacher. The table of this recipe has its own."""


@dataclass(frozen=True, kw_only=True)
class BlocksSettings:
    """How completions are cut and seen: fields of `Blocks`."""

    size: int = 32
    shift: bool = True
    clean: str = "causal"


@dataclass(frozen=True, kw_only=True)
class Decode:
    """How every policy of the run writes, and is saved: fields of `BlockDecoding`, with 0 `max_rounds` and "" `answer`
    for None. Length and batch are those of `answering`.
    """

    rule: str = "threshold(0.9)"
    end: str = "block"
    max_rounds: int = 0
    answer: str = ""


@dataclass(frozen=True, kw_only=True)
class Imitation:
    """Traces of what the autoregressive teacher answers greedily, `copies` of each request, each shuffled anew, `batch`
    of them at a time.
    """

    copies: int = 1
    batch: int = 1024


@dataclass(frozen=True, kw_only=True)
class Cft:
    """Conversion fine-tuning on the traces of stage `lessons`: fields of `CftConfig`, and of its `Noise`.

    What the teacher answers greedily has one mode for each prompt, so that places can be told side by side
    (sequence-level distillation: Kim and Rush 2016; why it helps parallel decoding: Gu et al. 2018). The accepted
    traces that the teacher itself was taught, which the paper takes, have many.
    """

    lessons: str = IMITATION
    lr: float = 1e-5
    epochs: int = 3
    batch: int = 64
    micro_batch: int = 16
    save_every: int = 200
    reasoning: float = 0.3
    answer: float = 1.0
    low: float = 0.05
    high: float = 1.0
    draw: str = "without_replacement"
    weights: str = "bound"
    complementary: bool = True
    names_share: float = 0.5
    end: str = "with_names"


@dataclass(frozen=True, kw_only=True)
class BlockOpd:
    """On-policy distillation from the autoregressive policy: fields of `BlockOpdConfig`. The reward is that of
    `BlockDapo`, and only watched where it weighs nothing.
    """

    steps: int = 1500
    learning_rate: float = 1e-6
    groups_per_step: int = 128
    group_size: int = 4
    micro_batch: int = 8
    max_tokens: int = 512
    temperature: float = 1.0
    shuffle: str = "across"
    metric: str = "ndcg@10"
    reasoning: float = 0.3
    answer: float = 1.0
    divergence: str = "forward_kl"
    form: str = "full"
    topk: int = 16
    jsd_beta: float = 0.5
    places: str = "committed"
    teacher_temperature: float = 1.0
    distill_weight: float = 1.0
    reward_weight: float = 0.0
    likelihood: str = "replay"
    validate_every: int = 50
    save_every: int = 50


@dataclass(frozen=True, kw_only=True)
class BlockDapo:
    """Reinforcement from the policy of stage `start`, for `reward`: fields of `BlockDapoConfig`."""

    start: str = OPD
    reward: str = "gr2"
    steps: int = 600
    learning_rate: float = 5e-7
    groups_per_step: int = 32
    group_size: int = 8
    updates_per_step: int = 1
    micro_batch: int = 8
    max_tokens: int = 512
    temperature: float = 1.0
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    beta: float = 0.0
    likelihood: str = "replay"
    reasoning: float = 0.3
    answer: float = 1.0
    length_policy: str = "invalid"
    shuffle: str = "across"
    metric: str = "ndcg@10"
    max_resamples: int = 2
    validate_every: int = 50
    save_every: int = 50


@dataclass(frozen=True, kw_only=True)
class DiffusionSettings(Gr2Settings):
    """All of a run: those of GR2, which decide the stages that both have, and those of block diffusion.

    `gr2` is the folder of a run of GR2 from which finished stages that would be made in the same way are taken over: ""
    the one called gr2-DATA-SIZE beside the run's own, if there is one; "none" for none. Of the first of `seeds` is the
    teacher. `stopping` and `memory` hold for all stages, `surrogate` for those of GR2 alone.

    Raises as `Gr2Settings` does, and `InputError` for other `rows` than the teacher's.
    """

    rows: tuple[str, ...] = LEARNED
    gr2: str = ""
    blocks: BlocksSettings = field(default_factory=BlocksSettings)
    decode: Decode = field(default_factory=Decode)
    imitation: Imitation = field(default_factory=Imitation)
    cft: Cft = field(default_factory=Cft)
    block_opd: BlockOpd = field(default_factory=BlockOpd)
    block_dapo: BlockDapo = field(default_factory=BlockDapo)

    def __post_init__(self) -> None:
        """Check what no trainer's configuration checks."""
        super().__post_init__()
        if self.rows != LEARNED:
            raise InputError(
                f"rows are {', '.join(self.rows)}, but the table of this recipe always has the teacher and what block "
                "diffusion makes of it; leave rows alone, or run gr2"
            )
        one_of("block_dapo.start", self.block_dapo.start, BEGINS)
        one_of("cft.lessons", self.cft.lessons, LESSONS)
        whole("imitation.copies", self.imitation.copies, least=1)
        whole("imitation.batch", self.imitation.batch, least=1)
