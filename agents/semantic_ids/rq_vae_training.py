"""Training an RQ-VAE on a catalogue: what is minimised, and how codebooks move.

May import torch, numpy and the layers below. The loss of a batch is

    mean squared error of the reconstruction                                    (on inputs of variance 1)
    + commitment * Σ_m |r_m - sg(e_m)|²  [+ Σ_m |sg(r_m) - e_m|², without EMA]  (van den Oord et al., 1711.00937, eq. 3)
    + diversity * mean_m C Σ_j p_mj²     p_m the batch mean of a softmax over negative squared distances, 1 where even
    + contrastive * -log e^{h_i·h_p/T} / Σ_n e^{h_i·h_n/T}      h of length 1, p bought directly before or after i

with norms as means over the latent's dimensions. Departures, ours: encoder and decoder begin at the inputs' principal
directions, because k-means on an untrained encoder clusters noise and a short training never makes up for it;
distances in the diversity loss are in units of the batch's mean distance to the nearest code, so that it does not fade
as the latent grows or shrinks; EMA codes follow the mean of what was assigned to them in the batch, and those that
nothing was assigned to stay. Suffixes as in `rq_vae.py`, and `_P` pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from rerank_env.agents.semantic_ids.clustering import centres, nearest
from rerank_env.agents.semantic_ids.rq_vae import Quantised, RqVae, RqVaeConfig, distances
from rerank_env.rewards.arrays import Float32Array
from rerank_env.rewards.errors import InputError

INITIAL_STEPS = 20
"""Lloyd's steps when codebooks begin; training moves them on."""


@dataclass(frozen=True)
class EpochLog:
    """Means over an epoch: `reconstruction` relative to the inputs' variance, the other losses unweighted."""

    epoch: int
    reconstruction: float
    commitment: float
    diversity: float
    contrastive: float
    resets: int


def fit(
    rows_ID: Float32Array,
    config: RqVaeConfig,
    *,
    generator: torch.Generator,
    pairs_P2: npt.ArrayLike | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[EpochLog], None] | None = None,
) -> RqVae:
    """A trained RQ-VAE in evaluation mode, on `device`; the same state of `generator` gives the same one on one CPU.

    `rows_ID` are the items' embeddings. `pairs_P2` are pairs of items that were bought one after the other, for the
    contrastive loss; from training purchases only. `progress` is told of every epoch. Raises `InputError` for fewer
    than two different rows, rows that are not finite, and a contrastive weight without pairs.
    """
    rows_ID = np.ascontiguousarray(rows_ID, dtype=np.float32)
    if rows_ID.ndim != 2 or not np.isfinite(rows_ID).all() or not (rows_ID != rows_ID[:1]).any():
        raise InputError(f"the embeddings have shape {rows_ID.shape}; give finite rows, at least two of them different")
    model = RqVae(config, rows_ID.shape[1], generator=generator)
    model.mean_D.copy_(torch.from_numpy(rows_ID.mean(axis=0)))
    model.scale.copy_(torch.tensor(float((rows_ID - rows_ID.mean(axis=0)).std())))
    model.to(device).train()
    inputs_ID = model.standard(torch.from_numpy(rows_ID).to(device))
    if config.pca_start:
        _begin(model, inputs_ID)
    positives = _Positives(pairs_P2, len(rows_ID), device) if config.contrastive else None
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    idle_MC = torch.zeros(model.codebooks_MCZ.shape[:2], dtype=torch.long, device=device)
    if config.kmeans_init:
        _place(model, inputs_ID, generator)
    for epoch in range(config.epochs):
        sums = torch.zeros(5, dtype=torch.float64)
        order_I = torch.randperm(len(inputs_ID), generator=generator).to(device)
        for items_B in order_I.split(config.batch):
            sums += len(items_B) * _step(model, optimizer, inputs_ID, items_B, positives, idle_MC, generator)
        if progress is not None:
            fitted, committed, diverse, attracted, resets = (sums / len(inputs_ID)).tolist()
            progress(EpochLog(epoch + 1, fitted, committed, diverse, attracted, round(resets)))
    return model.eval().requires_grad_(False)


def _step(
    model: RqVae,
    optimizer: torch.optim.Optimizer,
    inputs_ID: Tensor,
    items_B: Tensor,
    positives: _Positives | None,
    idle_MC: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """One update; the batch's losses, as `EpochLog` names them, and its resets."""
    config = model.config
    given_BD = inputs_ID[items_B]
    latent_BZ = model.encoder(given_BD)
    quantised = model.quantise(latent_BZ)
    middle_BZ = latent_BZ + (quantised.sum_BZ - latent_BZ).detach()
    errors_B = (model.decoder(middle_BZ) - given_BD).square().mean(dim=1)
    zero = torch.zeros((), device=latent_BZ.device)
    diverse = attracted = zero
    committed = (quantised.residuals_MBZ - quantised.chosen_MBZ.detach()).square().mean(dim=(1, 2)).sum()
    loss = errors_B.mean() + config.commitment * committed
    if not config.ema:
        loss = loss + (quantised.residuals_MBZ.detach() - quantised.chosen_MBZ).square().mean(dim=(1, 2)).sum()
    if config.diversity:
        diverse = diversity(quantised, model.codebooks_MCZ)
        loss = loss + config.diversity * diverse
    if positives is not None:
        partners_B, has_B = positives.drawn(items_B, generator)
        if has_B.any():
            other_BZ = model.encoder(inputs_ID[partners_B[has_B]])
            attracted = contrastive(latent_BZ[has_B], other_BZ, items_B[has_B], partners_B[has_B], config.temperature)
            loss = loss + config.contrastive * attracted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    resets = _move_codes(model, quantised, errors_B.detach(), idle_MC)
    logged = torch.stack([errors_B.mean(), committed, diverse, attracted]).detach().cpu().double()
    return torch.cat([logged, torch.tensor([resets * len(inputs_ID) / len(items_B)], dtype=torch.float64)])


def diversity(quantised: Quantised, codebooks_MCZ: Tensor) -> Tensor:
    """mean_m C Σ_j p_mj² of a batch: 1 where all codes are equally near on average, C where one is near to all."""
    losses = []
    for residual_BZ, codebook_CZ in zip(quantised.residuals_MBZ, codebooks_MCZ, strict=True):
        far_BC = distances(residual_BZ, codebook_CZ)
        unit = far_BC.detach().amin(dim=1).clamp_min(0).mean().clamp_min(1e-12)
        share_C = torch.softmax(-far_BC / unit, dim=1).mean(dim=0)
        losses.append(len(codebook_CZ) * share_C.square().sum())
    return torch.stack(losses).mean()


def contrastive(latent_BZ: Tensor, other_BZ: Tensor, items_B: Tensor, partners_B: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of finding each item's partner among the partners of the batch, by cosine over `temperature`.

    A partner of another item that is this item itself, or the same partner, is no negative.
    """
    logits_BB = functional.normalize(latent_BZ, dim=1) @ functional.normalize(other_BZ, dim=1).T / temperature
    same_BB = (partners_B[None] == partners_B[:, None]) | (partners_B[None] == items_B[:, None])
    same_BB.fill_diagonal_(False)
    wanted_B = torch.arange(len(items_B), device=items_B.device)
    return functional.cross_entropy(logits_BB.masked_fill(same_BB, -torch.inf), wanted_B)


@torch.no_grad()
def _move_codes(model: RqVae, quantised: Quantised, errors_B: Tensor, idle_MC: Tensor) -> int:
    """Let codebooks follow what was assigned to them, and dead codes move; how many did."""
    config, resets = model.config, 0
    for level, codebook_CZ in enumerate(model.codebooks_MCZ):
        codes_B, residual_BZ = quantised.codes_BM[:, level], quantised.residuals_MBZ[level].detach()
        counts_C = torch.bincount(codes_B, minlength=config.codes)
        if config.ema:
            sums_CZ = torch.zeros_like(codebook_CZ).index_add_(0, codes_B, residual_BZ)
            means_CZ = sums_CZ / counts_C.clamp_min(1)[:, None]
            rate_C1 = (1 - config.ema) * (counts_C > 0)[:, None]
            codebook_CZ.lerp_(means_CZ, rate_C1.to(codebook_CZ))
        idle_MC[level] = torch.where(counts_C > 0, 0, idle_MC[level] + 1)
        if config.dead_after:
            dead = torch.nonzero(idle_MC[level] >= config.dead_after).flatten()[: len(errors_B)]
            worst = errors_B.argsort(descending=True, stable=True)[: len(dead)]
            codebook_CZ[dead] = residual_BZ[worst]
            idle_MC[level, dead] = 0
            resets += len(dead)
    return resets


@torch.no_grad()
def _begin(model: RqVae, inputs_ID: Tensor) -> None:
    """Let encoder and decoder begin as the principal directions of the inputs; without more of them, as nothing."""
    covariance = (inputs_ID.T @ inputs_ID / len(inputs_ID)).cpu().double()
    directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, : model.config.latent].T
    straight = torch.zeros(model.config.latent, inputs_ID.shape[1])
    straight[: len(directions)] = directions
    model.encoder.begin(straight)
    model.decoder.begin(straight.T)


@torch.no_grad()
def _place(model: RqVae, inputs_ID: Tensor, generator: torch.Generator) -> None:
    """Put the codes of each level at the centres of what is left over there; codes without a centre stay."""
    left_IZ = np.concatenate([model.encoder(rows).float().cpu().numpy() for rows in inputs_ID.split(4096)])
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    for codebook_CZ in model.codebooks_MCZ:
        found = centres(left_IZ, len(codebook_CZ), rng=rng, steps=INITIAL_STEPS)
        codebook_CZ[: len(found)] = torch.from_numpy(found).to(codebook_CZ)
        left_IZ = left_IZ - found[nearest(left_IZ, found)]


class _Positives:
    """The items that were bought directly before or after each item, to draw from."""

    def __init__(self, pairs_P2: npt.ArrayLike | None, items: int, device: str | torch.device) -> None:
        pairs = np.empty((0, 2), dtype=np.int64) if pairs_P2 is None else np.asarray(pairs_P2, dtype=np.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise InputError(
                f"the contrastive loss was given pairs of shape {pairs.shape}; give rows of two items that were bought "
                "one after the other, or set contrastive=0"
            )
        if pairs.min() < 0 or pairs.max() >= items:
            raise InputError(f"pairs name items from {pairs.min()} to {pairs.max()}, but there are 0..{items - 1}")
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        order = np.argsort(pairs[:, 0], kind="stable")
        counts = np.bincount(pairs[:, 0], minlength=items)
        self.partners = torch.from_numpy(pairs[order, 1]).to(device)
        self.counts_I = torch.from_numpy(counts).to(device)
        self.starts_I = torch.from_numpy(np.cumsum(counts) - counts).to(device)

    def drawn(self, items_B: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A partner of each item, drawn as often as it was bought with it, and whether there is one."""
        counts_B = self.counts_I[items_B]
        drawn_B = torch.rand(len(items_B), generator=generator).to(items_B.device)
        place_B = (drawn_B * counts_B).long().clamp_max((counts_B - 1).clamp_min(0))
        place_B = (self.starts_I[items_B] + place_B).clamp_max(len(self.partners) - 1)
        return self.partners[place_B], counts_B > 0
