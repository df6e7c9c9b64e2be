"""What a step of DAPO is made of: requests asked, answers drawn and scored, dead groups replaced.

May import torch, transformers, TRL, and `rerank_env`. TRL's trainer does the bookkeeping of sampling and the metrics;
ours is what it lacks. The numbers that answers are drawn by follow from (seed, step, round) and the answer's place in
the step, so several processes draw what one would. Suffixes: `_N` rollouts of one process, `_B` groups, `_T` tokens of
an answer.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rerank_env.agents.language.generation import generate
from rerank_env.agents.language.text_policy import TextPolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import Reward, parse_reward
from rerank_env.rewards.arrays import BoolArray, IntArray
from rerank_env.rewards.errors import InputError, MissingExtraError
from rerank_env.rewards.rankings import identity_rankings
from rerank_env.training.language import groups, resampling
from rerank_env.training.language.checkpoints import DurableCheckpoints, FiniteUpdates
from rerank_env.training.language.dapo_settings import DapoConfig, arguments, sampling
from rerank_env.training.language.reference import copied, scoring
from rerank_env.training.language.shuffles import Shown, Shuffles
from rerank_env.training.language.signals import Outcomes, WatchedReward, unshuffled

try:
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOTrainer
    from trl.models import unwrap_model_for_generation
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'DAPO needs {error.name}, which is not installed; run: pip install "rerank-env[language]"'
    ) from error


class DrawingTrainer(DurableCheckpoints, FiniteUpdates, GRPOTrainer):
    """TRL's trainer with our rollouts; see `trainer.DapoTrainer`, which learns from them.

    The first draw of every step is logged, before dead groups are replaced: `raw` (the named metric), `gain` (raw minus
    that of the incoming order), `identity`, `near_identity`, `echo` (the order that was shown), `valid`, `finished`,
    `dead_share`, and TRL's own, `reward` among them; then `resamples` (rounds) and `trained_groups`; and with `beta`
    `kl`, that to the policy that training started from. Raises `InputError` where the launcher's WORLD_SIZE is no
    number.
    """

    _buffered_inputs: Any
    _logs: Any
    _metrics: Any

    def __init__(
        self,
        policy: TextPolicy[Any, Any],
        requests: Requests,
        reward: str | Reward,
        *,
        config: DapoConfig,
        directory: Path,
        **others: Any,
    ) -> None:
        self.config, self.requests, self.policy = config, requests, policy
        device = next(policy.model.parameters()).device.type
        made = arguments(config, directory, device=device, processes=_processes())
        self.paid = WatchedReward(
            reward,
            policy.writer.text_format,
            metric=config.metric,
            lengths=config.length_rule,
            eos_ids=frozenset(policy.eos_ids),
            decode=policy.texts,
        )
        start = copied(policy.model) if config.beta else None
        super().__init__(
            model=policy.model,
            reward_funcs=self.paid,
            args=made,
            train_dataset=Dataset.from_dict({"prompt": [""], "request": [0]}),  # what TRL insists on; see the loader
            processing_class=policy.tokenizer,
            **others,
        )
        self.remove_callback(PrinterCallback)
        if start is not None:
            self.beta = config.beta
            self.ref_model = scoring(start, temperature=config.temperature, device=self.accelerator.device)
        self.shuffles = Shuffles(
            requests, policy.writer, mode=config.shuffle, seed=config.seed, prompt_ids=policy.prompt_ids
        )
        self.schedule = resampling.schedule(
            len(requests), steps=config.steps, groups=config.groups_per_step, seed=config.seed
        )
        incoming_BK = identity_rankings(requests.sizes_B, requests.candidates_BK.shape[1])
        self.incoming_raw_B = parse_reward(config.metric)(incoming_BK, unshuffled(requests.slates))
        self._asked: tuple[int, int, Shown]

    def advantages(self, answers: Outcomes) -> Tensor:
        """The advantage of each answer, float32 [N]; see `groups`."""
        size = self.config.group_size
        values_BG = groups.advantages(
            answers.reward_N.reshape(-1, size), answers.counted_N.reshape(-1, size), scale=self.config.advantage_scale
        )
        return torch.from_numpy(values_BG.ravel()).float().to(self.accelerator.device)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The number of the step, once for every part of it; every process takes its own requests by that."""
        draws: Any = np.arange(self.config.steps).repeat(self.args.steps_per_generation * self.num_iterations).tolist()
        loader: DataLoader[Any] = DataLoader(draws, batch_size=1, collate_fn=list)
        return loader

    def _run_epoch(self, **given: Any) -> None:
        """As transformers', which makes one update before it looks whether training is over."""
        if not self.control.should_training_stop:
            super()._run_epoch(**given)

    def _local(self, rows_B: IntArray) -> IntArray:
        share = len(rows_B) // self.accelerator.num_processes
        return rows_B[self.accelerator.process_index * share :][:share]

    def _generate_and_score_completions(self, inputs: Sequence[int]) -> dict[str, Any]:
        """One step's rollouts on this process, the dead groups among them replaced as far as may be."""
        draw, size = int(inputs[0]), self.config.group_size
        asked = self.schedule[draw]
        share = self._local(asked)
        first = self._rollouts(share, draw, 0)
        answers = self.paid.last
        dead_B = self._dead(answers)
        kept, missing, rounds = [resampling.taken(first, _rows(~dead_B, size))], int(dead_B.sum()), 0
        while rounds < self.config.max_resamples and (most := self.largest(missing)):
            rounds += 1
            key = (self.config.seed, draw, rounds)
            wanted = most * self.accelerator.num_processes
            fresh = resampling.fresh_rows(asked, wanted, requests=len(self.requests), key=key)
            asked = np.concatenate([asked, fresh])
            with self._unlogged():
                batch = self._rollouts(self._local(fresh), draw, rounds)
            live = np.flatnonzero(~self._dead(self.paid.last))[:missing]
            kept.append(resampling.taken(batch, resampling.rows_of_groups(live, size)))
            missing -= len(live)
        if missing:
            left = resampling.rows_of_groups(np.flatnonzero(dead_B)[:missing], size)
            rest = resampling.taken(first, left)
            kept.append(rest | {"tool_mask": torch.zeros_like(rest["tool_mask"])})
        whole = resampling.joined(
            [part for part in kept if len(part["advantages"])], pad_id=self._tokenizer.pad_token_id
        )
        self._report(answers, share, dead_B, missing, rounds)
        whole = resampling.arranged(whole, size, updates=self.config.updates_per_step, key=(self.config.seed, draw))
        trained = (whole["completion_mask"] * whole["tool_mask"]).sum()
        written = whole["completion_mask"].sum()
        counts = self.accelerator.gather(torch.stack([trained, written])[None]).sum(dim=0)
        return whole | {"num_items_in_batch": counts[0], "num_tokens_in_batch": counts[1]}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """As TRL's, with the rollouts in the order they were arranged in: TRL shuffles them apart from their groups."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = resampling.in_order(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _rollouts(self, rows_B: IntArray, draw: int, round_: int) -> dict[str, Any]:
        """A group of answers to each request, scored; `tool_mask` has what the rule for lengths leaves."""
        shown = self.shuffles.show(rows_B, self.config.group_size, draw=draw, round_=round_)
        self._asked = draw, round_, shown
        batch: dict[str, Any] = super()._generate_and_score_completions(shown.rows())
        answers = self.paid.last
        batch["advantages"] = self.advantages(answers)
        counted_N = torch.from_numpy(answers.counted_N).to(batch["completion_mask"].device)
        batch["tool_mask"] = batch["completion_mask"] * counted_N[:, None]
        return batch

    def _dead(self, answers: Outcomes) -> BoolArray:
        size = self.config.group_size
        return groups.equal_groups(answers.raw_N.reshape(-1, size), answers.counted_N.reshape(-1, size))

    def largest(self, number: int) -> int:
        """The largest of one number a process."""
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max())

    def _tokenize_prompts(self, _prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return self._asked[2].token_ids, None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], _images: Any, _fields: Any, num_generations: int, *_: Any
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Outcomes drawn from numbers that (seed, step, round) decide, whoever draws; equal prompts are read once."""
        draw, round_ = self._asked[:2]
        copies = 1 if self.config.shuffle == "inside" else num_generations
        generator = keyed(self.config.seed, draw, round_)
        others = self.accelerator.process_index * len(prompt_ids)
        torch.rand((others, self.config.max_tokens), dtype=torch.float64, generator=generator)  # what they draw by
        with unwrap_model_for_generation(
            self.model_wrapped, self.accelerator, gather_deepspeed3_params=self.args.ds3_gather_for_generation
        ) as model:
            return self.drawn(model, prompt_ids[::copies], n=copies, generator=generator)

    def drawn(
        self, model: Any, prompts: list[list[int]], *, n: int, generator: torch.Generator
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`n` answers to each prompt in tokens, row by row, and the log-probability of each token.

        `model` is out of what wraps it; an answer is drawn by `config.max_tokens` numbers of the `generator`.
        """
        decoding = sampling(self.policy, self.config)
        made = generate(
            model, self.policy.pad_id, self.policy.eos_ids, prompts, decoding=decoding, generator=generator, n=n
        )
        return made.ids, made.logprobs

    @property
    def validating(self) -> Any:
        """How answers are written where they are measured: greedily, and not constrained."""
        return replace(self.policy.decoding, temperature=0.0, constrained=False)

    def _report(self, answers: Outcomes, rows_B: IntArray, dead_B: BoolArray, missing: int, rounds: int) -> None:
        size = self.config.group_size
        gain_N = answers.raw_N - self.incoming_raw_B[rows_B].repeat(size)
        means = {
            "raw": answers.raw_N,
            "gain": gain_N,
            "identity": answers.identity_N,
            "near_identity": answers.near_identity_N,
            "echo": answers.echo_N,
            "valid": answers.valid_N,
            "finished": answers.finished_N,
            "dead_share": dead_B,
        }
        values = torch.tensor([float(np.asarray(v, dtype=np.float64).mean()) for v in means.values()])
        values = values.to(self.accelerator.device)
        said = self._metrics["train"]
        for name, value in zip(means, self.accelerator.gather(values[None]).mean(dim=0).tolist(), strict=True):
            said[name].append(value)
        left = self.accelerator.gather(torch.tensor([missing], device=self.accelerator.device)).sum()
        said["resamples"].append(float(rounds))
        said["trained_groups"].append(float(self.config.groups_per_step - int(left)))

    @contextmanager
    def _unlogged(self) -> Iterator[None]:
        """What TRL logs inside is forgotten."""
        kept = self._metrics, self._logs
        self._metrics = {mode: defaultdict(list) for mode in kept[0]}
        self._logs = {
            name: defaultdict(deque) if isinstance(value, defaultdict) else deque() for name, value in kept[1].items()
        }
        try:
            yield
        finally:
            self._metrics, self._logs = kept


def keyed(*key: int) -> torch.Generator:
    """A generator that `key` alone decides."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


def _rows(which_B: BoolArray, size: int) -> IntArray:
    return resampling.rows_of_groups(np.flatnonzero(which_B), size)


def _processes() -> int:
    """How many processes this one was launched with, itself included, as `accelerate launch` and torchrun say it."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not (size.isdecimal() and int(size)):
        raise InputError(f"WORLD_SIZE is {size!r}; start the processes with `accelerate launch`")
    return int(size)
