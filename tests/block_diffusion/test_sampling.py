"""The sampler: what a loop without cache and batches writes, whose record is scored again to the same numbers."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from rerank_env.agents.block_diffusion.masks import Blocks  # noqa: E402
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits  # noqa: E402
from rerank_env.agents.block_diffusion.rules import Static, Threshold, rule_of  # noqa: E402
from rerank_env.agents.block_diffusion.sampling import Sampled, redrawn, sample  # noqa: E402
from rerank_env.agents.block_diffusion.trajectory import NEVER, Trajectory  # noqa: E402
from rerank_env.agents.language.decoding import Decoding  # noqa: E402
from rerank_env.agents.language.generation import generate  # noqa: E402
from rerank_env.rewards.errors import InputError, UnknownNameError  # noqa: E402

VOCABULARY, END, PAD, MASK = 16, 13, 14, 15
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.4, "tie_word_embeddings": False,
}  # fmt: skip
LAYOUTS = [
    Blocks(size, shift, clean) for size, shift, clean in itertools.product((3, 4), (True, False), ("block", "causal"))
]


def tiny(kind: str = "Qwen3", **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | changes))
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny(head_dim=8)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Of unequal length; the last three begin with the same 20 tokens."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(0, 13, (length,), generator=generator).tolist() for length in (5, 1, 20, 3, 2)]
    return [drawn[0], drawn[1], drawn[2], drawn[2] + drawn[3], drawn[2] + drawn[4]]


def sampled(model: Any, prompts: Sequence[list[int]], *, seed: int = 0, **how: Any) -> Sampled:
    how = {"blocks": Blocks(4), "rule": Threshold(0.5), "max_tokens": 10, "eos_ids": END} | how
    generator = torch.Generator().manual_seed(seed) if how.get("temperature") else None
    return sample(model, PAD, how.pop("eos_ids"), MASK, prompts, generator=generator, **how)


def plain(model: Any, prompt: list[int], blocks: Blocks, least: float, most: int, end: str) -> dict[str, list[Any]]:
    """Greedy decoding by a threshold with one row, no cache and plain loops: the reference."""
    tokens: list[int] = []
    told: dict[str, list[Any]] = {"written": [], "committed": [], "pushed": [], "scores": []}
    while True:
        size = min(blocks.size, most - len(tokens))
        canvas, committed, pushed, scores = [MASK] * size, [NEVER] * size, [False] * size, [0.0] * size
        for number in range(size):
            until = size
            if end == "prefix" and END in canvas:
                until = canvas.index(END)
            hidden = [place for place in range(until) if canvas[place] == MASK]
            if not hidden:
                break
            row = Row(prompt, tokens, [Canvas(len(tokens) // blocks.size, list(canvas), hidden)])
            with torch.no_grad():
                law = canvas_logits(model, [row], blocks=blocks, mask_id=MASK, pad_id=PAD)[0].log_softmax(-1)
            best = {place: (float(own.max()), int(own.argmax())) for place, own in zip(hidden, law, strict=True)}
            sure = [place for place in hidden if np.exp(best[place][0]) >= least]
            alone = [0] if blocks.shift and 0 in hidden and 0 not in sure else []  # it may not wait, so others do
            sure = [] if alone else sure
            for place in sure or alone or [max(hidden, key=lambda place: best[place][0])]:
                scores[place], canvas[place] = best[place]
                committed[place], pushed[place] = number, not sure
        tokens = tokens + canvas
        for name, more in zip(told, (canvas, committed, pushed, scores), strict=True):
            told[name] += more
        if END in canvas or len(tokens) == most:
            return told


@pytest.mark.parametrize("blocks", LAYOUTS, ids=str)
@pytest.mark.parametrize("end", ["block", "prefix"])
def test_greedy_decoding_is_that_of_a_plain_loop_without_cache(
    model: Any, prompts: list[list[int]], blocks: Blocks, end: str
) -> None:
    made = sampled(model, prompts, blocks=blocks, end=end, rule=Threshold(0.6), eos_ids=[END], batch_size=3)
    for prompt, trajectory in zip(prompts, made.trajectories, strict=True):
        told = plain(model, prompt, blocks, 0.6, 10, end)
        assert list(trajectory.written) == told["written"]
        assert list(trajectory.committed) == told["committed"]
        assert list(trajectory.pushed) == told["pushed"]
        assert trajectory.scores == pytest.approx(told["scores"], abs=1e-4)
        cut = told["written"].index(END) + 1 if END in told["written"] else 10
        assert (trajectory.length, trajectory.finished) == (cut, END in told["written"])


def scored(
    model: Any, prompts: Sequence[list[int]], made: Sequence[Trajectory], blocks: Blocks, temperature: float
) -> list[list[float]]:
    """The log-probabilities of what was committed, by its place, on the canvases that are rebuilt."""
    rows = [Row(prompt, own.tokens, own.canvases(tail=True)) for prompt, own in zip(prompts, made, strict=True)]
    with torch.no_grad():
        logits = canvas_logits(model, rows, blocks=blocks, mask_id=MASK, pad_id=PAD)
    found = []
    for trajectory, logits_NV in zip(made, logits, strict=True):
        log_p = (logits_NV / (temperature or 1.0)).log_softmax(-1)
        scores = [0.0] * len(trajectory.written)
        for number, place in enumerate(trajectory.order(tail=True)):
            scores[place] = float(log_p[number, trajectory.written[place]])
        found.append(scores)
    return found


@pytest.mark.parametrize("rule", ["threshold(0.5)", "static(2)", "factor(1.0)", "entropy(1.0)"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_replay_on_the_rebuilt_canvases_gives_the_recorded_log_probabilities(
    model: Any, prompts: list[list[int]], rule: str, temperature: float
) -> None:
    for blocks, end in zip(LAYOUTS, itertools.cycle(["block", "prefix"])):
        how = {"blocks": blocks, "rule": rule_of(rule), "temperature": temperature, "end": end, "n": 2}
        made = sampled(model, prompts, **how, eos_ids=[END, 3], max_tokens=11).trajectories
        repeated = [prompt for prompt in prompts for _ in range(2)]
        for trajectory, scores in zip(made, scored(model, repeated, made, blocks, temperature), strict=True):
            assert trajectory.scores == pytest.approx(scores, abs=1e-4)


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=24), min_size=1, max_size=5),
    st.integers(1, 6), st.integers(1, 9), st.sampled_from(LAYOUTS), st.integers(0, 99),
)  # fmt: skip
def test_what_a_row_writes_does_not_depend_on_batches(
    prompts: list[list[int]], batch_size: int, most: int, blocks: Blocks, seed: int
) -> None:
    how: dict[str, Any] = {
        "blocks": blocks, "max_tokens": most, "temperature": 1.0, "eos_ids": [END, 5], "n": 2, "seed": seed,
    }  # fmt: skip
    whole, parts = (sampled(SHARED, prompts, batch_size=size, **how).trajectories for size in (64, batch_size))
    for one, other in zip(whole, parts, strict=True):
        assert (one.written, one.committed, one.pushed) == (other.written, other.committed, other.pushed)
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
    first = sampled(SHARED, prompts[:1], **how).trajectories  # fewer prompts draw the same numbers first
    assert [own.written for own in first] == [own.written for own in whole[:2]]


SHARED = tiny(head_dim=8)


OTHERS = {"Llama": {}, "GPTNeoX": {}, "Gemma": {"head_dim": 8}, "Phi": {}, "GPTBigCode": {"n_positions": 33}}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks transformers for it
@pytest.mark.parametrize("kind", [*OTHERS, "adapter"])
def test_other_families_and_adapters_are_replayed_to_the_same_numbers(prompts: list[list[int]], kind: str) -> None:
    """The last of `OTHERS` has a learned position for each of the 23 tokens of the longest prompt and 10 behind it, and
    no more.
    """
    if kind == "adapter":
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        model = get_peft_model(tiny(head_dim=8), adapter).eval()
    else:
        model = tiny(kind, **OTHERS[kind], bos_token_id=None, eos_token_id=None, pad_token_id=None)
    made = sampled(model, prompts, temperature=1.0, n=2, batch_size=4).trajectories
    repeated = [prompt for prompt in prompts for _ in range(2)]
    for trajectory, scores in zip(made, scored(model, repeated, made, Blocks(4), 1.0), strict=True):
        assert trajectory.scores == pytest.approx(scores, abs=1e-4)


def test_prompts_in_another_order_are_answered_in_that_order(model: Any, prompts: list[list[int]]) -> None:
    made = sampled(model, prompts).trajectories
    order = [3, 0, 4, 2, 1]
    moved = sampled(model, [prompts[p] for p in order]).trajectories
    assert [own.written for own in moved] == [made[p].written for p in order]


def test_blocks_that_are_written_later_change_nothing_before_them(model: Any, prompts: list[list[int]]) -> None:
    short = sampled(model, prompts, max_tokens=8, eos_ids=[]).trajectories
    long = sampled(model, prompts, max_tokens=16, eos_ids=[]).trajectories
    for one, other in zip(short, long, strict=True):
        assert other.written[:8] == one.written
        assert other.scores[:8] == pytest.approx(one.scores, abs=1e-4)


class _NoMask:
    """What `generate` is constrained with, so that it does not write the mask token either."""

    def start(self, prompt: int) -> None:
        return None

    def after(self, state: None, token: int) -> None:
        return None

    def masked(self, states: Sequence[None], scores_RV: Any) -> Any:
        return scores_RV.index_fill(1, torch.tensor([MASK]), -torch.inf)

    def processor(self, prompt_length: int, prompts: Sequence[int], copies: int) -> Any:
        raise AssertionError("only for models whose caches cannot be shared")


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["threshold(0.9)", "static(3)"])
def test_blocks_of_one_shifted_token_are_what_the_causal_model_writes(
    prompts: list[list[int]], kind: str, temperature: float, rule: str
) -> None:
    model = tiny(kind)
    seen = calls(model)
    made = sampled(model, prompts, blocks=Blocks(1), rule=rule_of(rule), temperature=temperature, n=2, eos_ids=[END, 3])
    blocks_calls, seen[:] = list(seen), []
    told = generate(
        model, PAD, [END, 3], prompts, n=2, constraint=_NoMask(), generator=torch.Generator().manual_seed(0),
        decoding=Decoding(max_tokens=10, temperature=temperature),
    )  # fmt: skip
    assert [own.tokens for own in made.trajectories] == told.ids
    assert [own.finished for own in made.trajectories] == told.finished
    for trajectory, logprobs in zip(made.trajectories, told.logprobs, strict=True):
        assert trajectory.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert blocks_calls == seen  # as many passes over as many tokens


def calls(model: Any) -> list[tuple[int, ...]]:
    """The rows and tokens that the model reads from now on."""
    seen: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, __, told: seen.append(tuple(told["input_ids"].shape)), with_kwargs=True)
    return seen


@pytest.mark.parametrize("blocks", LAYOUTS, ids=str)
def test_a_row_alone_takes_a_pass_for_each_round(blocks: Blocks, prompts: list[list[int]]) -> None:
    model = tiny(head_dim=8)
    for prompt in prompts:
        seen = calls(model)
        made = sampled(model, [prompt], blocks=blocks, max_tokens=11, eos_ids=[], temperature=0.5)
        trajectory = made.trajectories[0]
        needed = 0
        for block, rounds in enumerate(trajectory.block_rounds):
            for number in range(rounds):
                hidden = [place for place, own in enumerate(trajectory.canvas(block, number).tokens) if own == MASK]
                needed += hidden != [0] or not blocks.shift or (block > 0 and number == 0)  # else the law is known
        assert made.forwards == needed == len(seen) - 1  # the first reads the prompt
        assert needed >= sum(trajectory.block_rounds) - trajectory.blocks
        if not blocks.shift:
            assert needed == sum(trajectory.block_rounds)
        widths = [width for _, width in seen[1:]]
        assert sorted(set(widths)) in ([blocks.size], [blocks.size, 2 * blocks.size])
        assert widths.count(2 * blocks.size) == trajectory.blocks - 1  # no pass for a clean block by itself
        model._forward_pre_hooks.clear()


def test_rows_that_finish_leave_the_batch(prompts: list[list[int]]) -> None:
    model = tiny(head_dim=8)
    seen = calls(model)
    made = sampled(model, prompts, temperature=2.0, n=8, max_tokens=24, eos_ids=[1, 2, 3])
    lengths = sorted({own.length for own in made.trajectories})
    assert len(lengths) > 4
    rows = [count for count, width in seen if width in (4, 8)][-made.forwards :]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < 10 < rows[0] == 40


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_of_text_end_completions(model: Any, prompts: list[list[int]], temperature: float) -> None:
    ends = [1, 2, 3]
    for end in ("block", "prefix"):
        made = sampled(
            model, prompts, end=end, eos_ids=ends, temperature=temperature, n=4, max_tokens=22, rule=Static(2)
        ).trajectories
        assert any(own.finished for own in made)
        for own in made:
            assert not any(token in ends for token in own.tokens[:-1])
            assert own.finished == (own.tokens[-1] in ends)
            assert own.finished or own.length == 22
            behind = own.committed[own.length :]
            if end == "block":
                assert NEVER not in own.committed
            else:  # what was hidden when the end was committed stays so
                assert all(number <= own.committed[own.length - 1] for number in behind)
                assert len(own.written) - own.length < 4


def test_the_last_round_that_is_allowed_commits_everything(model: Any, prompts: list[list[int]]) -> None:
    free = sampled(model, prompts, rule=Threshold(0.6), eos_ids=[]).trajectories
    for most in (1, 2):
        made = sampled(model, prompts, rule=Threshold(0.6), eos_ids=[], max_rounds=most).trajectories
        for own in made:
            assert max(own.block_rounds) <= most
            scores = torch.tensor(own.scores).exp()
            for place, forced in enumerate(own.pushed):
                waits = bool(scores[place - place % 4] < 0.6)  # for the first of its block, which is not sure
                assert forced == bool(scores[place] < 0.6) or (forced and waits)
        if most == 1:  # the first block's first round is the same with and without the limit
            for own, other in zip(made, free, strict=True):
                sure = [place for place in range(4) if not own.pushed[place]]
                assert all(other.written[place] == own.written[place] for place in sure)


def test_the_mask_token_is_never_drawn_however_likely(model: Any, prompts: list[list[int]]) -> None:
    likely = copy.deepcopy(model)
    likely.lm_head.weight.data[MASK] *= 50
    for temperature in (0.0, 3.0):
        both = [sampled(which, prompts, temperature=temperature, n=3).trajectories for which in (model, likely)]
        assert [own.written for own in both[0]] == [own.written for own in both[1]]
        assert [own.scores for own in both[0]] == [own.scores for own in both[1]]


def test_frequencies_of_decodings_are_the_products_of_their_rounds(model: Any) -> None:
    """Two places, one commit a round: every decoding's probability by enumeration of all that can be drawn.

    Tokens are not shifted, so that either place may come first.
    """
    prompt, blocks, temperature, rows = [5, 6, 7], Blocks(2, shift=False), 0.6, 6000

    def laws(canvases: list[list[int]]) -> list[Any]:
        row = Row(prompt, [], [Canvas(0, own, [p for p in range(2) if own[p] == MASK]) for own in canvases])
        with torch.no_grad():
            return (canvas_logits(model, [row], blocks=blocks, mask_id=MASK, pad_id=PAD)[0] / temperature).softmax(-1)

    first = laws([[MASK, MASK]])
    then = [laws([[token, MASK] if place == 0 else [MASK, token] for token in range(MASK)]) for place in range(2)]
    exact: Counter[tuple[int, int, int]] = Counter()
    for a, b in itertools.product(range(MASK), repeat=2):
        place = 0 if first[0, a] >= first[1, b] else 1
        token = (a, b)[place]
        for other in range(MASK):
            tokens = (token, other) if place == 0 else (other, token)
            exact[(*tokens, place)] += float(first[0, a] * first[1, b] * then[place][token, other])
    assert sum(exact.values()) == pytest.approx(1, abs=1e-4)
    made = sampled(
        model, [prompt], blocks=blocks, rule=Static(2), temperature=temperature, n=rows, max_tokens=2, eos_ids=[],
        batch_size=rows,
    ).trajectories  # fmt: skip
    counts = Counter((*own.written, own.committed.index(0)) for own in made)
    assert set(counts) <= set(exact)
    likely = [key for key, p in exact.items() if p * rows > 20]
    assert len(likely) > 10
    for key in likely:
        p = exact[key]
        assert abs(counts[key] / rows - p) < 4.5 * (p * (1 - p) / rows) ** 0.5, key


def test_numbers_of_later_rounds_are_uniform_and_follow_from_the_first_without_resembling_it() -> None:
    first_N = np.random.default_rng(0).random(20_000)
    rounds = [redrawn(first_N, np.full(len(first_N), number)) for number in range(4)]
    assert (rounds[0] == first_N).all()
    for one, other in itertools.combinations(rounds, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.03  # 4 standard errors of 20,000^-1/2
    for own in rounds:
        assert (own >= 0).all() and (own < 1).all()
        shares = np.histogram(own, bins=20, range=(0, 1))[0] / len(own)
        assert abs(shares - 0.05).max() < 4.5 * (0.05 * 0.95 / len(own)) ** 0.5
    assert (redrawn(first_N, np.full(len(first_N), 3)) == rounds[3]).all()


def test_no_prompts_have_no_completions(model: Any) -> None:
    assert sampled(model, []) == Sampled([], 0)


def test_a_model_in_training_mode_is_left_in_it(model: Any) -> None:
    training = copy.deepcopy(model).train()
    sampled(training, [[1, 2]])
    assert training.training


def test_what_cannot_be_sampled_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="prompt 1 has no tokens"):
        sampled(model, [[1], []])
    with pytest.raises(InputError, match="pass a generator"):
        sample(model, PAD, END, MASK, [[1]], blocks=Blocks(2), rule=Static(1), max_tokens=2, temperature=1.0)
    with pytest.raises(InputError, match="mask token and ends texts"):
        sampled(model, [[1]], eos_ids=[MASK])
    with pytest.raises(UnknownNameError, match="did you mean 'prefix'"):
        sampled(model, [[1]], end="prefx")
    with pytest.raises(InputError, match="max_rounds is 0"):
        sampled(model, [[1]], max_rounds=0)
    with pytest.raises(InputError, match="cannot hold finished blocks"):
        sampled(tiny("Mistral", sliding_window=4), [[1]])


def test_logits_that_are_no_numbers_are_refused(model: Any) -> None:
    broken = copy.deepcopy(model)
    broken.lm_head.weight.data[2] = torch.nan
    with pytest.raises(InputError, match="logits for prompt 0 are not finite"):
        sampled(broken, [[1, 2]])
