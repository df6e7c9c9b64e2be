"""What on-policy distillation of a block-diffusion policy is told.

May import `rerank_env.rewards` and `rerank_env.training`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rerank_env.rewards.arguments import one_of
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig
from rerank_env.training.block_diffusion.targets import PLACES
from rerank_env.training.language.divergences import check
from rerank_env.training.language.opd import check_weights

FORMS = ("full", "topk")
"""How divergences are computed, see `training.language.divergences`; none from the tokens that were drawn, as these are
drawn on another canvas than that on which most hidden places are asked.
"""


@dataclass(frozen=True, kw_only=True)
class BlockOpdConfig(BlockDapoConfig):
    """As `BlockDapoConfig`, with two weights and the divergence; the defaults are Diffusion-GR2's (2607.01170).

    `reward_weight`, `distill_weight`: of what `BlockDapoConfig` says and of the divergence; where rewards weigh 0 they
    are only watched, groups may be of one, and no `likelihood` is computed. `reasoning` and `answer` weigh the parts of
    both. `divergence`: "forward_kl", "reverse_kl" or "jsd" with `jsd_beta`. `form`: "full", or "topk", over the `topk`
    tokens that the teacher finds likeliest. `places`: on which canvases the student is asked, see `targets`.
    `teacher_temperature`: of the teacher's law; the student's is taken at `temperature`, at which it writes. `teacher`:
    what tells the teacher from others, filled in by `run`.

    Raises as `BlockDapoConfig`, `divergences.check` and `opd.check_weights` do, `UnknownNameError` for other forms and
    places, and `InputError` for a `beta` where rewards weigh 0: it is the weight of a part of their loss.
    """

    steps: int = 1500
    groups_per_step: int = 128
    group_size: int = 4
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    reward_weight: float = 0.0
    distill_weight: float = 1.0
    divergence: str = "forward_kl"
    form: str = "full"
    jsd_beta: float = 0.5
    topk: int = 16
    places: str = "committed"
    teacher_temperature: float = 1.0
    teacher: str = ""

    least_group: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        for name in ("reward_weight", "distill_weight"):
            self._set(name, self._number(name, zero=True))
        self._set("teacher_temperature", self._number("teacher_temperature", zero=False))
        one_of("form of a divergence", self.form, FORMS)
        one_of("kind of places", self.places, PLACES)
        check(self.divergence, self.form, beta=self.jsd_beta, k=self.topk)
        check_weights(self.reward_weight, self.distill_weight, group_size=self.group_size)
        if self.beta and not self.reward_weight:
            raise InputError(
                f"beta is {self.beta} but rewards weigh 0, and it is a part of their loss; give a beta of 0, or a "
                "reward_weight"
            )
