"""Which of several processes this one is: those that `accelerate launch` or `torchrun` started together.

One process is the main one and writes; the others compute along. May import `rerank_env.rewards`; torch and
accelerate are loaded where there is more than one process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from rerank_env.rewards.errors import InputError, MissingExtraError


@dataclass(frozen=True)
class Crew:
    """`rank` of this process, from 0, among `size`."""

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Crew:
        """What the launcher put into the environment (RANK, WORLD_SIZE); alone where there was none.

        Raises `InputError` for what is no rank and size.
        """
        rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise InputError(f"RANK is {rank!r} and WORLD_SIZE {size!r}; start the processes with `accelerate launch`")
        return cls(int(rank), int(size))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here. Raises `MissingExtraError` without accelerate, where there are several."""
        if self.size == 1:
            return
        try:
            import torch
            from accelerate import PartialState
            from accelerate.utils import parse_flag_from_env
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f'several processes need {error.name}, which is not installed; run: pip install "rerank-env[language]"'
            ) from error
        # where nobody says so, accelerate takes several processes without an accelerator for one each
        on_cpu = (
            parse_flag_from_env("ACCELERATE_USE_CPU") or not getattr(torch, "accelerator", torch.cuda).is_available()
        )
        PartialState(cpu=on_cpu).wait_for_everyone()
