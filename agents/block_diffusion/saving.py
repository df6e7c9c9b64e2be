"""A block-diffusion policy in one folder, as `rerank_env.agents.language.saving` writes one, and what it has besides.

    policy.json   also `blocks` (size, shift, reading of finished ones) and `mask`, the token and its number

so that any user of transformers reads model and tokenizer, and nobody takes the policy for an autoregressive one. May
import the modules `decoding` and `masks` and the layers below.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.evidence.remarks import EvidenceRemarks
from rerank_env.agents.language import saving
from rerank_env.prompts import PromptWriter
from rerank_env.rewards.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy

KIND = "block-diffusion"
FIELDS = ("blocks", "mask")
"""What a record has besides those of `saving.FIELDS`."""


def save(policy: BlockDiffusionPolicy, folder: str | os.PathLike[str], *, with_base: bool = True) -> None:
    """Write a policy; see `rerank_env.agents.language.saving.save`, whose errors it raises."""
    more = {"blocks": asdict(policy.blocks), "mask": [policy.tokenizer.mask_token, policy.mask_id]}
    saving.save(policy, folder, with_base=with_base, more=more)


def load(
    folder: str | os.PathLike[str],
    *,
    writer: PromptWriter | None = None,
    remarks: EvidenceRemarks | None = None,
    decoding: BlockDecoding | None = None,
    dtype: Any = None,
    device: Any = None,
    adapter: str | os.PathLike[str] | None = None,
) -> tuple[saving.Loaded, Blocks]:
    """The parts of a policy that `save` left; see `BlockDiffusionPolicy.from_pretrained`."""
    if not (Path(folder) / saving.RECORD).is_file():
        raise CheckpointError(
            f"{os.fspath(folder)} has no {saving.RECORD}, so nothing says how completions are cut into blocks; make a "
            "LanguagePolicy of a plain model, and convert that"
        )
    if saving.kind_of(folder) == saving.KIND:
        raise CheckpointError(
            f"{os.fspath(folder)} holds an autoregressive policy; read it with LanguagePolicy.from_pretrained, and "
            "convert that with rerank_env.agents.block_diffusion.convert"
        )
    loaded = saving.load(
        folder, writer=writer, remarks=remarks, decoding=decoding, dtype=dtype, device=device, adapter=adapter,
        kind=KIND, settings=BlockDecoding, more=FIELDS,
    )  # fmt: skip
    assert loaded.record is not None, "the folder has one"
    try:
        blocks = Blocks(**loaded.record["blocks"])
    except (TypeError, InputError) as error:
        raise CheckpointError(
            f"the blocks in {Path(folder) / saving.RECORD} do not make sense ({error}); save the policy again"
        ) from error
    mask = [loaded.tokenizer.mask_token, loaded.tokenizer.mask_token_id]
    if mask != loaded.record["mask"]:
        raise CheckpointError(
            f"the mask token of the tokenizer in {os.fspath(folder)} is {mask}, but {loaded.record['mask']} was saved; "
            "use the release of transformers that saved it"
        )
    return loaded, blocks
