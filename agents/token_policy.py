"""A small autoregressive policy that writes its answer word by word, as a language model does, and can be wrong.

May import torch, numpy and the layers below. Suffixes: `_B` requests, `_N` answers to one request, `_K` candidates or
places, `_T` = K + 1 words of an answer, `_V` = 1 + K words there are, `_D` width.

The words of a request are `END` and 1..K, its candidates by their incoming place. Nothing masks a word that was
written before, and nothing but the policy's own state remembers it: the policy may repeat, omit, stop early, or fail
to stop. It is told the incoming place of every candidate, which `ListwisePolicy` is not, so that copying the order can
be learned as such: it is the easy way to be valid. It stands in for a language model in experiments on rewards, where
a policy that cannot be wrong has nothing to show.

    logit_t(v) = (W h_t + U context) . key_v / sqrt(D),      h_t = GRU(h_t-1, word_t-1),      word_0 = END

with key_v and word_v made from the candidate's token on its way out of the set transformer, h_0 and the context from
the request's. An answer ends with `END`, or with the word after the last that a ranking can have. The network is ours;
choosing among the inputs by a query is that of pointer networks (Vinyals et al. 2015, 1506.03134).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rerank_env.agents.network import INFERENCE_ROWS, PADDED_LOGIT, NetworkConfig, NetworkPolicy, Samples, Seen
from rerank_env.agents.observations import Observation
from rerank_env.data.requests import Requests
from rerank_env.rewards.arrays import PAD, IntArray
from rerank_env.rewards.errors import InputError

END = 0
"""The word that ends an answer; it also stands before the first."""


@dataclass(frozen=True)
class TokenConfig(NetworkConfig):
    """The size of a `TokenPolicy`; `InputError` on sizes that cannot be built.

    `places` how many incoming places are told apart, later ones share the last; the others as in `NetworkConfig`.
    """

    dim: int = 32
    layers: int = 1
    feedforward: int = 64
    places: int = 10

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        self._check_whole("places", least=1)


class _Read(NamedTuple):
    """Requests as the writer uses them; `real_BV` says which words a request has."""

    words_BVD: Tensor
    keys_BVD: Tensor
    context_BD: Tensor
    real_BV: Tensor


class TokenPolicy(NetworkPolicy):
    """A policy that writes words, with exact probabilities, and may write what is no ranking. A `Policy`."""

    kind = "token"
    Config = TokenConfig
    widest = "places"
    config: TokenConfig

    def forward(self, observation: Seen, tokens_BNT: Tensor) -> Tensor:
        """Log-probabilities [B, N, T, V] of every word at each place of given answers, after the words before it.

        `tokens_BNT` int64 as in `Samples`: words up to `END` or the last there can be, then -1. The words of padded
        candidates are impossible. What stands where an answer has no word means nothing. Raises `InputError` for
        another shape, or answers that the policy cannot write.
        """
        seen = self._received(observation)
        _check(tokens_BNT, seen.sizes_B, seen.candidates_BK.shape[1])
        read, tokens_BNT = self._read(seen), tokens_BNT.to(seen.candidates_BK.device)
        before_BNT = torch.cat([torch.full_like(tokens_BNT[..., :1], END), tokens_BNT[..., :-1].clamp(min=END)], -1)
        return self._step(read, before_BNT, self._started(read, tokens_BNT.shape[1]))[0]

    def rank(self, requests: Requests, *, rng: np.random.Generator) -> IntArray:
        """The likeliest word each time, as int64 [B, K]; `rankings_of` says what is no ranking. Nothing is random."""
        del rng  # greedy
        rankings_BK: IntArray = self._answered(self._received(requests), 1, None).rankings_BNK[:, 0].cpu().numpy()
        return rankings_BK

    def sample(self, observation: Seen, n: int, *, generator: torch.Generator) -> Samples:
        """`n` independent answers to each request and how likely they were. No gradient; dropout is off.

        Noise is drawn in float64 on the generator's own device and moved.
        """
        if n < 1:
            raise InputError(f"cannot draw {n} answers a request; ask for at least 1")
        return self._answered(self._received(observation), n, generator)

    def log_prob(self, observation: Seen, tokens_BNT: Tensor) -> Tensor:
        """Log-probability of each word, [B, N, T], 0 behind the end; their sum is that of the answer."""
        log_p_BNTV: Tensor = self(observation, tokens_BNT)
        chosen_BNT1 = tokens_BNT.to(log_p_BNTV.device).unsqueeze(-1)
        return log_p_BNTV.gather(-1, chosen_BNT1.clamp(min=END)).masked_fill(chosen_BNT1 == PAD, 0.0).squeeze(-1)

    def spelled(self, rankings_BNK: Tensor, sizes_B: Tensor) -> Tensor:
        """The words that say these rankings, then `END`: [B, N, K + 1]."""
        words_BNK = rankings_BNK + 1
        tokens_BNT = torch.cat([words_BNK, torch.full_like(words_BNK[..., :1], PAD)], dim=-1)
        place_T = torch.arange(tokens_BNT.shape[-1], device=tokens_BNT.device)
        sizes_B11 = sizes_B[:, None, None]
        return tokens_BNT.masked_fill(place_T == sizes_B11, END).masked_fill(place_T > sizes_B11, PAD)

    def _build(self) -> None:
        dim = self.config.dim
        self.place = nn.Embedding(self.config.places, dim)
        self.word = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.end = nn.Parameter(torch.zeros(2, dim))
        self.start = nn.Linear(dim, dim)
        self.writer = nn.GRU(dim, dim, batch_first=True)
        self.query = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, dim, bias=False)

    def _draw(self, generator: torch.Generator | None) -> None:
        bound = 1.0 / sqrt(self.config.dim)  # torch's own for a GRU
        for weight in (*self.writer.parameters(), self.end):
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    def _read(self, seen: Observation) -> _Read:
        tokens_BTD, real_BT, _ = self.tokens(seen)
        width = seen.candidates_BK.shape[1]
        places_K = torch.arange(width, device=tokens_BTD.device).clamp(max=self.config.places - 1)
        placed_BKD = tokens_BTD[:, -width:] + self.place(places_K)
        out_BTD = self.encoder(torch.cat([tokens_BTD[:, :-width], placed_BKD], dim=1), real_BT)
        candidates_BKD, context_BD = out_BTD[:, -width:], out_BTD[:, 0]
        word_B1D, key_B1D = self.end[:, None, None].expand(-1, len(seen), -1, -1)
        return _Read(
            words_BVD=torch.cat([word_B1D, self.word(candidates_BKD)], dim=1),
            keys_BVD=torch.cat([key_B1D, self.key(candidates_BKD)], dim=1),
            context_BD=context_BD,
            real_BV=torch.cat([real_BT[:, :1], real_BT[:, -width:]], dim=1),
        )

    def _started(self, read: _Read, n: int) -> Tensor:
        """The writer's first state for `n` answers to each request, [1, B * N, D]."""
        state_BD = torch.tanh(self.start(read.context_BD))
        return state_BD.repeat_interleave(n, dim=0).unsqueeze(0)

    def _step(self, read: _Read, before_BNT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, N, T, V] of what follows each of the words `before_BNT`, and the state behind them."""
        rows, n, steps = before_BNT.shape
        row_B11 = torch.arange(rows, device=before_BNT.device)[:, None, None]
        words_BNTD = read.words_BVD[row_B11, before_BNT]
        states, state = self.writer(words_BNTD.flatten(0, 1), state)
        query_BMD = self.query(states).view(rows, n * steps, self.config.dim) + self.context(read.context_BD)[:, None]
        logits_BMV = query_BMD @ read.keys_BVD.transpose(1, 2) / sqrt(self.config.dim)
        logits_BMV = logits_BMV.masked_fill(~read.real_BV[:, None], PADDED_LOGIT)
        return logits_BMV.log_softmax(-1).view(rows, n, steps, logits_BMV.shape[-1]), state

    @torch.no_grad()
    def _answered(self, seen: Observation, n: int, generator: torch.Generator | None) -> Samples:
        """`n` answers to each request, drawn, or greedy without a generator; a bounded number of requests at a time."""
        was_training = self.training
        self.eval()
        try:
            starts = range(0, max(1, len(seen)), INFERENCE_ROWS)
            parts = [self._answer(seen.rows(start, start + INFERENCE_ROWS), n, generator) for start in starts]
        finally:
            self.train(was_training)
        return Samples(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _answer(self, seen: Observation, n: int, generator: torch.Generator | None) -> Samples:
        read = self._read(seen)
        rows, words = read.real_BV.shape
        tokens_BNT = torch.full((rows, n, words), PAD, dtype=torch.int64, device=read.real_BV.device)
        logprobs_BNT, entropies_BNT = read.keys_BVD.new_zeros(2, rows, n, words)
        last_BN = torch.full_like(tokens_BNT[..., 0], END)
        writing_BN = torch.ones_like(last_BN, dtype=torch.bool)
        state = self._started(read, n)
        for place in range(words):
            log_p_BN1V, state = self._step(read, last_BN.unsqueeze(-1), state)
            log_p_BNV = log_p_BN1V.squeeze(2)
            last_BN = _chosen(log_p_BNV, generator)
            tokens_BNT[..., place] = last_BN.masked_fill(~writing_BN, PAD)
            chosen_BN = log_p_BNV.gather(-1, last_BN.unsqueeze(-1)).squeeze(-1)
            logprobs_BNT[..., place] = chosen_BN.masked_fill(~writing_BN, 0.0)
            entropies_BNT[..., place] = -(log_p_BNV.exp() * log_p_BNV).sum(-1).masked_fill(~writing_BN, 0.0)
            writing_BN = writing_BN & (last_BN != END) & (place < seen.sizes_B)[:, None]
        return Samples(rankings_of(tokens_BNT, seen.sizes_B), tokens_BNT, logprobs_BNT, entropies_BNT)


def _chosen(log_p_BNV: Tensor, generator: torch.Generator | None) -> Tensor:
    """A word each, drawn by the largest of log-probability plus Gumbel noise, or the likeliest without a generator."""
    if not log_p_BNV.isfinite().all():
        raise InputError(
            "the logits of a request are not finite, so nothing can be written by them; the model has diverged: go "
            "back to an earlier checkpoint or lower the learning rate"
        )
    if generator is None:
        return log_p_BNV.argmax(-1)
    arrivals_BNV = torch.empty(log_p_BNV.shape, dtype=torch.float64, device=generator.device)
    noise_BNV = -arrivals_BNV.exponential_(generator=generator).log()
    return (log_p_BNV + noise_BNV.to(log_p_BNV)).argmax(-1)


def rankings_of(tokens_BNT: Tensor, sizes_B: Tensor) -> Tensor:
    """What an environment is told, int64 [B, N, K]: the candidates as written, -1 behind an early end.

    So repetitions stand as they are and omissions as -1, and neither is a ranking. An answer that did not stop has a
    word more than there are places and comes back as -1 throughout.
    """
    last_B11 = sizes_B[:, None, None].expand(-1, tokens_BNT.shape[1], 1)
    overlong_BN1 = tokens_BNT.gather(-1, last_B11) > END
    return (tokens_BNT[..., :-1] - 1).clamp(min=PAD).masked_fill(overlong_BN1, PAD)


def _check(tokens_BNT: Tensor, sizes_B: Tensor, width: int) -> None:
    if tokens_BNT.ndim != 3 or tokens_BNT.shape[0] != len(sizes_B) or tokens_BNT.shape[2] != width + 1:
        raise InputError(
            f"answers have shape {tuple(tokens_BNT.shape)} but ({len(sizes_B)}, any number, {width + 1}) was expected; "
            "give one word a candidate and one more, padded with -1"
        )
    tokens_BNT, sizes_B11 = tokens_BNT.to(sizes_B.device), sizes_B[:, None, None]
    ended_BNT = torch.cat([torch.zeros_like(tokens_BNT[..., :1]), (tokens_BNT[..., :-1] == END).cumsum(-1)], dim=-1) > 0
    beyond_BNT = ended_BNT | (torch.arange(width + 1, device=sizes_B.device) > sizes_B11)
    wrong_BNT = torch.where(beyond_BNT, tokens_BNT != PAD, (tokens_BNT < END) | (tokens_BNT > sizes_B11))
    if wrong_BNT.any():
        row, which, _ = (int(x) for x in wrong_BNT.nonzero()[0])
        raise InputError(
            f"answer {which} to request {row} is {tokens_BNT[row, which].tolist()}; write words 1..{int(sizes_B[row])} "
            f"up to the first {END}, at most one more than there are candidates, and {PAD} behind them"
        )
