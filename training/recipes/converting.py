"""The stages of Diffusion-GR2 that make policies: the conversion, and what is learned after it.

Each function that takes `Work` is a stage. The teacher is the policy that GR2 reinforced with the first seed. Where it
has adapters they are merged into its weights before the conversion; new ones are put on for fine-tuning, and what is
under them stays as it was converted, the row of the mask token among it: the mean of the rows of all tokens. May import
torch, the extra `language` and the layers below. Suffixes: `_B` requests, `_N` answers to one request, `_K` candidates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rerank_env import durable
from rerank_env.agents.block_diffusion.conversion import convert
from rerank_env.agents.block_diffusion.decoding import BlockDecoding
from rerank_env.agents.block_diffusion.masks import Blocks
from rerank_env.agents.block_diffusion.policy import BlockDiffusionPolicy
from rerank_env.agents.language.policy import LanguagePolicy
from rerank_env.data.requests import Requests
from rerank_env.rewards import parse_reward, rankings
from rerank_env.rewards.errors import InputError
from rerank_env.training.block_diffusion import cft, dapo, opd
from rerank_env.training.block_diffusion.cft_settings import CftConfig
from rerank_env.training.block_diffusion.dapo_settings import BlockDapoConfig, drawing
from rerank_env.training.block_diffusion.noise import Noise
from rerank_env.training.block_diffusion.opd_settings import BlockOpdConfig
from rerank_env.training.language import groups
from rerank_env.training.language.examples import training_examples
from rerank_env.training.language.traces import LocalTeacher, Traces, collect
from rerank_env.training.recipes.diffusion_settings import IMITATION
from rerank_env.training.recipes.learning import TRACES, traced
from rerank_env.training.recipes.policies import (
    POLICY,
    adapted,
    decoding_of,
    finer,
    keep_policy,
    load_blocks,
    load_policy,
    materials,
    seed_folder,
    watched,
)
from rerank_env.training.recipes.reinforcing import PREFLIGHT, Way, refuse_dead, runs
from rerank_env.training.recipes.settings import without
from rerank_env.training.recipes.stages import Work

NOISE = ("low", "high", "draw", "weights", "complementary", "names_share", "end")
"""The settings of fine-tuning that are of its noise."""

VALID = 0.99
"""Below this share of rankings after fine-tuning, advice is given."""

LOOKED = 32
"""Requests whose answers are looked at before reinforcement."""


def blocks_of(settings: Mapping[str, Any]) -> Blocks:
    """How completions are cut. Raises as `Blocks` does."""
    return Blocks(**settings["blocks"])


def block_decoding_of(settings: Mapping[str, Any]) -> BlockDecoding:
    """How every policy of block diffusion writes: greedily. Raises as `BlockDecoding` does."""
    told, asked = settings["decode"], settings["answering"]
    return BlockDecoding(
        rule=told["rule"],
        end=told["end"],
        max_rounds=told["max_rounds"] or None,
        answer=told["answer"] or None,
        max_tokens=asked["max_tokens"],
        batch_size=asked["batch"],
    )


def cft_of(settings: Mapping[str, Any]) -> CftConfig:
    """How to fine-tune, by the groups `cft` and `memory` and the seed. Raises as `CftConfig` and `Noise` do."""
    told = settings["cft"]
    noise = Noise(**{name: told[name] for name in NOISE})
    return CftConfig(
        **without(told, "lessons", *NOISE), noise=noise, **settings.get("memory", {}), seed=settings["seed"]
    )


def convert_policy(work: Work) -> Mapping[str, Any]:
    """Stage: the teacher's weights, read block by block; nothing is learned."""
    found = materials(work).found
    teacher = load_policy(seed_folder(work.inputs["dapo"], work.settings["teacher"]) / POLICY, work.settings)
    policy = converted(teacher, blocks=blocks_of(work.settings), decoding=block_decoding_of(work.settings))
    keep_policy(work, policy)
    return {"mask token": policy.mask_id, **watched(policy, found.watch)}


def converted(teacher: LanguagePolicy, *, blocks: Blocks, decoding: BlockDecoding) -> BlockDiffusionPolicy:
    """The block-diffusion policy of the teacher's weights, adapters merged into them; the teacher is used up."""
    if hasattr(teacher.model, "peft_config"):
        teacher.model = teacher.model.merge_and_unload()
    return convert(teacher, blocks=blocks, decoding=decoding, in_place=True)


def imitate(work: Work) -> Mapping[str, Any]:
    """Stage: what the teacher answers greedily to what is learned from, right or wrong, as traces."""
    given, told = materials(work), work.settings["imitation"]
    taught = load_policy(seed_folder(work.inputs["dapo"], work.settings["teacher"]) / POLICY, work.settings)
    requests = copied(given.found.learn, told["copies"])
    traces = collect(
        requests,
        LocalTeacher(taught, decoding=decoding_of(work.settings), name="dapo"),
        given.writer,
        mode="imitation",
        tries=1,
        directory=work.training / TRACES,
        seed=work.settings["seed"],
        batch=told["batch"],
        prepare=given.remarks.on,
        on_progress=lambda done: work.tell("the teacher's answers", done, len(requests)),
    )
    if not len(traces.accepted()):
        raise InputError(
            f"none of the {len(traces)} answers of the teacher is a ranking with reasons, so there is nothing to "
            "imitate; teach it longer (sft.epochs), or learn other traces with cft.lessons=traces-rejection"
        )
    traces.save(work.folder / TRACES)
    measured: dict[str, float] = traces.statistics().numbers()
    return measured


def copied(requests: Requests, copies: int) -> Requests:
    """All requests, and all again for each copy more."""
    return requests.take(np.tile(np.arange(len(requests)), copies))


def fine_tune_blocks(work: Work) -> Mapping[str, Any]:
    """Stage: hidden tokens of the accepted traces are filled in, reasoning and answer with a weight each."""
    given, config = materials(work), cft_of(work.settings)
    lessons = work.settings["cft"]["lessons"]
    policy = load_blocks(work.inputs["convert"] / POLICY, work.settings)
    policy.model = adapted(policy.model, work.settings["model"]["adapter"], seed=config.seed)
    dataset = training_examples(
        given.remarks.on(copied(given.found.learn, work.settings["imitation"]["copies"]))
        if lessons == IMITATION
        else traced(work.settings, given),
        Traces.load(work.inputs[lessons] / TRACES),
        given.writer,
        policy.tokenizer,
        reasoning_weight=1.0,  # the parts are weighed by the loss
        answer_weight=1.0,
        seed=config.seed,
    )
    steps = -(-len(dataset) // config.batch) * config.epochs
    result = cft.run(
        policy,
        None,
        dataset,
        blocks=policy.blocks,
        mask_id=policy.mask_id,
        directory=work.training / "cft",
        config=config,
        on_log=lambda step, _: work.tell("conversion fine-tuning", step, steps),
    )
    keep_policy(work, policy)
    last = next((entry for entry in reversed(result.log) if "loss" in entry), {})
    seen = watched(policy, given.found.watch)
    if work.crew.is_main:
        _say_valid(work, seen["watched valid"], config.epochs)
    return {"examples": len(dataset), "steps": result.steps, **({"loss": last["loss"]} if last else {}), **seen}


def _say_valid(work: Work, valid: float, epochs: int) -> None:
    work.say(f"after conversion fine-tuning {valid:.1%} of the answers to watched requests are rankings")
    if valid < VALID:
        work.say(
            f"advice: fewer than {VALID:.0%} is little to distil and reinforce from; fine-tune longer, with --set "
            f"cft.epochs={2 * epochs} --restart cft, or commit fewer tokens a round (decode.rule)"
        )


def distil_blocks(work: Work) -> Mapping[str, Any]:
    """Stage: what the student writes in blocks, each token pulled towards what the teacher would have written."""
    found, told = materials(work).found, work.settings["block_opd"]
    policy = load_blocks(work.inputs["cft"] / POLICY, work.settings)
    config = BlockOpdConfig(**told, **finer(work.settings), seed=work.settings["seed"])
    result = opd.run(
        policy,
        found.learn,
        load_policy(seed_folder(work.inputs["dapo"], work.settings["teacher"]) / POLICY, work.settings),
        directory=work.training,
        config=config,
        reward=work.settings["reward"],
        validation=found.watch,
        on_log=lambda step, _: work.tell("distillation in blocks", step, config.steps),
    )
    keep_policy(work, policy)
    return {"updates": result.updates, "best update": result.best_update, **watched(policy, found.watch)}


def reinforce_blocks(work: Work) -> Mapping[str, Any]:
    """Stage: the policy of another stage, reinforced in blocks for the `reward` of the settings, a run a seed."""
    start = work.inputs[work.settings["start"]] / POLICY
    way = Way(BlockDapoConfig, dapo.run, _look_first)
    return runs(work, materials(work), lambda _: load_blocks(start, work.settings), work.settings["block_dapo"], way)


def _look_first(
    work: Work, policy: BlockDiffusionPolicy, learn: Requests, _reward: str, config: BlockDapoConfig
) -> None:
    """Say, once a stage, how many of the answers that training would draw are rankings, and how many groups say
    nothing. Raises `InputError` where no answer is a ranking.
    """
    path = work.training / PREFLIGHT
    if work.crew.is_main and not path.is_file():
        rows_B = np.random.default_rng([config.seed, len(learn)]).permutation(len(learn))[:LOOKED]
        asked = learn.take(rows_B)
        rng = np.random.default_rng(config.seed)
        drawn = policy.answers(asked, n=config.group_size, rng=rng, decoding=drawing(policy, config))
        rankings_BNK, verdicts_BN = drawn.read()
        valid_BN = verdicts_BN == rankings.Verdict.OK
        metric = parse_reward(config.metric)
        raw_NB = [metric(rankings_BNK[:, copy], asked.slates) for copy in range(config.group_size)]
        dead_B = groups.equal_groups(np.stack(raw_NB, axis=1))
        seen = {"groups": len(asked), "dead_share": float(dead_B.mean()), "valid": float(valid_BN.mean())}
        durable.replace(path, (json.dumps(seen, indent=1) + "\n").encode())
        work.say(
            f"before training, {seen['dead_share']:.0%} of {len(asked)} groups say nothing and {seen['valid']:.0%} of "
            "their answers are rankings"
        )
    work.crew.wait()
    refuse_dead(work.folder.name, json.loads(path.read_bytes())["valid"], config, taught="cft")
