"""RQ-VAE: an autoencoder whose code in the middle is a short row of numbers.

May import torch, numpy and the layers below. Residual quantisation (Lee et al., 2203.01941; as item IDs: Rajput et al.,
2305.05065): the encoder's output is replaced by the nearest vector of the first codebook, what is left over by the
nearest of the second, and so on; the sum goes to the decoder, and gradients go straight through to the encoder. Trained
in `rq_vae_training.py`. Suffixes: `_B` items of a batch, `_I` items, `_D` input, `_Z` latent width, `_M` levels that
are quantised, `_C` codes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents import pretrained
from rerank_env.rewards.arguments import finite, whole
from rerank_env.rewards.arrays import Float32Array, IntArray
from rerank_env.rewards.errors import CheckpointError, InputError

KIND = "rq-vae"

INFERENCE_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class RqVaeConfig:
    """What an RQ-VAE is and how it is trained; `InputError`, naming the field, on what cannot be.

    The ID: `levels` codes of `codes` each, the last `random_levels` of them drawn at random, not learned.
    The network: `latent` wide in the middle, `hidden` layers of the encoder, mirrored in the decoder.
    Training: `epochs` passes over the catalogue in batches of `batch` items with AdamW at `learning_rate`.
    `commitment` weighs the pull of the encoder to its codes.

    Techniques, each off at the value in brackets: `ema`, how much a code keeps of itself each time it follows the mean
    of what was assigned to it (0: learned by gradient); `pca_start` of encoder and decoder, at the principal directions
    of the inputs (False: random weights); `kmeans_init` of the codebooks, level by level (False: small random vectors);
    `diversity`, the weight of the balance loss (0); `dead_after` so many batches without use, a code moves to the
    residual of the item that was reconstructed worst (0); `contrastive`, the weight of pulling items together that were
    bought one after the other (0), at `temperature`.
    """

    levels: int = 4
    codes: int = 256
    random_levels: int = 1
    latent: int = 64
    hidden: tuple[int, ...] = (256,)
    epochs: int = 30
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    commitment: float = 0.25
    ema: float = 0.99
    pca_start: bool = True
    kmeans_init: bool = True
    diversity: float = 0.0
    dead_after: int = 0
    contrastive: float = 0.1
    temperature: float = 0.1

    def __post_init__(self) -> None:
        """Check every field, since a configuration may come from a file."""
        for name in ("levels", "codes", "latent", "epochs", "batch"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=1))
        for name in ("random_levels", "dead_after"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=0))
        for name in ("learning_rate", "weight_decay", "commitment", "ema", "diversity", "contrastive", "temperature"):
            value = finite(name, getattr(self, name))
            if value < 0:
                raise InputError(f"{name} is {value}; give a number of at least 0")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "hidden", tuple(whole("a hidden layer", width, least=1) for width in self.hidden))
        for name in ("pca_start", "kmeans_init"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; give True or False")
        if not self.random_levels < self.levels:
            raise InputError(
                f"{self.random_levels} of {self.levels} levels would be random; leave at least one that means something"
            )
        if self.ema >= 1 or self.temperature == 0 or self.learning_rate == 0:
            raise InputError("ema must be below 1, and temperature and learning_rate above 0; give such numbers")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each level's codebook, random levels included."""
        return (self.codes,) * self.levels


class Quantised(NamedTuple):
    """`codes_BM` int64; `residuals_MBZ` what each level was given, `chosen_MBZ` what it chose; their sum `sum_BZ`."""

    codes_BM: Tensor
    residuals_MBZ: Tensor
    chosen_MBZ: Tensor
    sum_BZ: Tensor


class RqVae(nn.Module):
    """Rows of numbers in, codes out, for items that it was trained on and for others.

    Inputs are centred and scaled by two numbers that training sets. With `ema` the codebooks have no gradient.
    """

    mean_D: Tensor
    scale: Tensor

    def __init__(self, config: RqVaeConfig, width: int, *, generator: torch.Generator | None = None) -> None:
        """Build it for inputs of `width` numbers; weights and codebooks are drawn from `generator`."""
        super().__init__()
        self.config = config
        self.register_buffer("mean_D", torch.zeros(whole("width", width, least=1)))
        self.register_buffer("scale", torch.ones(()))
        widths = (width, *config.hidden, config.latent)
        with torch.random.fork_rng(devices=[]):  # torch's own first draws are overwritten below
            self.encoder, self.decoder = Mapping(widths), Mapping(widths[::-1])
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        shape = (config.levels - config.random_levels, config.codes, config.latent)
        drawn = torch.empty(shape).uniform_(-1 / config.codes, 1 / config.codes, generator=generator)
        self.codebooks_MCZ = nn.Parameter(drawn, requires_grad=not config.ema)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each level's codebook, random levels included."""
        return self.config.sizes

    def standard(self, rows_BD: Tensor) -> Tensor:
        """The rows as the encoder reads them."""
        return (rows_BD - self.mean_D) / self.scale

    def quantise(self, latent_BZ: Tensor) -> Quantised:
        """Nearest codes, level by level, each of what the levels before left over; the lowest of equally near ones."""
        codes, residuals, chosen = [], [], []
        left_BZ = latent_BZ
        for codebook_CZ in self.codebooks_MCZ:
            codes_B = distances(left_BZ.detach(), codebook_CZ.detach()).argmin(dim=1)
            chosen_BZ = codebook_CZ[codes_B]
            codes.append(codes_B)
            residuals.append(left_BZ)
            chosen.append(chosen_BZ)
            left_BZ = left_BZ - chosen_BZ.detach()
        chosen_MBZ = torch.stack(chosen)
        return Quantised(torch.stack(codes, dim=1), torch.stack(residuals), chosen_MBZ, chosen_MBZ.sum(dim=0))

    def codes(self, rows_ID: Float32Array) -> IntArray:
        """The learned codes of each row, [I, M] int64, without random levels. Raises `InputError` on other widths."""
        return self._each(rows_ID)[0]

    def reconstructed(self, rows_ID: Float32Array) -> Float32Array:
        """What the decoder makes of each row's learned codes, [I, D] float32, on the scale of the input."""
        return self._each(rows_ID)[1]

    @torch.no_grad()
    def _each(self, rows_ID: Float32Array) -> tuple[IntArray, Float32Array]:
        rows_ID = np.asarray(rows_ID, dtype=np.float32)
        if rows_ID.ndim != 2 or rows_ID.shape[1] != len(self.mean_D):
            raise InputError(
                f"the rows have shape {rows_ID.shape} but the RQ-VAE reads {len(self.mean_D)} numbers an item; embed "
                "the items as those it was trained on"
            )
        codes = [np.empty((0, len(self.codebooks_MCZ)), dtype=np.int64)]
        rows = [np.empty((0, len(self.mean_D)), dtype=np.float32)]
        for start in range(0, len(rows_ID), INFERENCE_ROWS):
            given = torch.from_numpy(rows_ID[start : start + INFERENCE_ROWS]).to(self.mean_D)
            quantised = self.quantise(self.encoder(self.standard(given)))
            codes.append(quantised.codes_BM.cpu().numpy())
            rows.append((self.decoder(quantised.sum_BZ) * self.scale + self.mean_D).float().cpu().numpy())
        return np.concatenate(codes), np.concatenate(rows)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors` into `directory`; `CheckpointError` where that fails."""
        pretrained.write(directory, KIND, asdict(self.config), self.state_dict())

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> RqVae:
        """The RQ-VAE that `save_pretrained` wrote, on the CPU and in evaluation mode.

        Raises `CheckpointError` where a file is missing, torn or does not belong.
        """
        config, weights = pretrained.read(directory, KIND)
        try:
            if "mean_D" not in weights or weights["mean_D"].ndim != 1:
                raise InputError("there is no mean of the inputs")
            config["hidden"] = tuple(config["hidden"])
            model = cls(RqVaeConfig(**config), len(weights["mean_D"]))
        except (InputError, KeyError, TypeError) as error:
            raise CheckpointError(f"the RQ-VAE in {directory} cannot be built: {error}") from error
        pretrained.check_weights(model, weights, directory)
        model.load_state_dict(weights)
        return model.eval()


def distances(points_BZ: Tensor, codebook_CZ: Tensor) -> Tensor:
    """Squared Euclidean distances [B, C]."""
    return (
        (points_BZ * points_BZ).sum(dim=1, keepdim=True)
        - 2 * points_BZ @ codebook_CZ.T
        + (codebook_CZ * codebook_CZ).sum(dim=1)
    )


class Mapping(nn.Module):
    """A linear map plus a network of linear layers with ReLU between them, which adds what the map cannot."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.straight = nn.Linear(widths[0], widths[-1], bias=False)
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        self.bent = nn.Sequential(*layers[:-1])

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of the first width as rows of the last."""
        mapped: Tensor = self.straight(rows) + self.bent(rows)
        return mapped

    @torch.no_grad()
    def begin(self, straight: Tensor) -> None:
        """Make it exactly this linear map, until training bends it."""
        self.straight.weight.copy_(straight)
        last = self.bent[-1]
        assert isinstance(last, nn.Linear)
        last.weight.zero_()
        last.bias.zero_()
