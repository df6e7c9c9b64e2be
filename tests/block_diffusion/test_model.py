"""The laws of noisy blocks: those of a causal model for blocks of one token, and blind to what may not be seen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="needs: pip install 'rerank-env[language]'")

from rerank_env.agents.block_diffusion.masks import Blocks  # noqa: E402
from rerank_env.agents.block_diffusion.model import Canvas, Row, canvas_logits  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
]

VOCABULARY, MASK, PAD = 40, 39, 0
BASE = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4}  # fmt: skip
GROUPED = BASE | {"num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3": GROUPED | {"head_dim": 8},
    "Qwen2": GROUPED,
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": None},
    "Gemma": GROUPED | {"head_dim": 8},
    "Phi": GROUPED,
    "Phi3": GROUPED | {"pad_token_id": 0},
    "GPTNeoX": BASE,
    "SmolLM3": GROUPED | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Olmo2": GROUPED,
    "StableLm": GROUPED,
    "Qwen3Moe": GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Falcon": BASE,
    "GPT2": {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
PROMPT, COMPLETION = [5, 6, 7], [8, 9, 10, 11, 12, 13, 14]


def of(family: str) -> Any:
    """A tiny random model of a family."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    return getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return of("Qwen3")


def laws(model: Any, rows: list[Row], blocks: Blocks) -> list[torch.Tensor]:
    """Logits without those of the mask token, which are checked to be -inf."""
    with torch.no_grad():
        found = canvas_logits(model, rows, blocks=blocks, mask_id=MASK, pad_id=PAD)
    for logits in found:
        assert logits.dtype == torch.float32
        assert (logits[:, MASK] == -torch.inf).all()
    return [logits[:, :MASK] for logits in found]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_blocks_of_one_token_every_family_says_what_it_says_as_a_causal_model(family: str) -> None:
    model = of(family)
    with torch.no_grad():
        straight = model(input_ids=torch.tensor([PROMPT + COMPLETION])).logits[0, len(PROMPT) - 1 : -1, :MASK]
    canvases = [Canvas(block, [MASK], [0]) for block in range(len(COMPLETION))]
    for clean in ("block", "causal"):
        assert close(laws(model, [Row(PROMPT, COMPLETION, canvases)], Blocks(1, clean=clean))[0], straight)


def by_itself(model: Any, row: Row, canvas: Canvas, blocks: Blocks) -> torch.Tensor:
    """The laws of one canvas read with nothing else: [prompt | clean tokens before | canvas], one mask, one pass."""
    start = canvas.block * blocks.size
    tokens = [*row.prompt, *row.completion[:start], *canvas.tokens]
    behind, width = len(row.prompt), len(tokens)
    seen = torch.zeros((width, width), dtype=torch.bool)
    for at in range(width):
        for to in range(width):
            same = (at - behind) // blocks.size == (to - behind) // blocks.size and min(at, to) >= behind
            seen[at, to] = to <= at or (same and (blocks.clean == "block" or at >= behind + start))
    mask = torch.zeros((1, 1, width, width)).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), attention_mask=mask, use_cache=False).logits[0]
    return logits[[behind + start + place - blocks.shift for place in canvas.wanted], :MASK]


TOKENS = st.integers(1, MASK - 1)


@st.composite
def rows(draw: Any, size: int) -> Row:
    """A row with canvases of any of its blocks, in any order, some of them twice, with some tokens hidden."""
    completion = draw(st.lists(TOKENS, max_size=3 * size))
    canvases = []
    for block in draw(st.lists(st.integers(0, len(completion) // size), max_size=4)):
        tokens = draw(st.lists(st.one_of(TOKENS, st.just(MASK)), min_size=1, max_size=size))
        canvases.append(Canvas(block, tokens, draw(st.lists(st.integers(0, len(tokens) - 1), max_size=3))))
    return Row(draw(st.lists(TOKENS, min_size=1, max_size=5)), completion, canvases)


@settings(max_examples=40)
@given(data=st.data(), size=st.integers(1, 4), shift=st.booleans(), clean=st.sampled_from(["block", "causal"]))
def test_one_pass_over_many_rows_is_a_pass_for_every_canvas(data: Any, size: int, shift: bool, clean: str) -> None:
    blocks = Blocks(size, shift=shift, clean=clean)
    few = data.draw(st.lists(rows(size), min_size=1, max_size=3))
    for row, found in zip(few, laws(QWEN3, few, blocks), strict=True):
        parts = [by_itself(QWEN3, row, canvas, blocks) for canvas in row.canvases]
        assert close(found, torch.cat([torch.zeros((0, MASK)), *parts]))


QWEN3 = of("Qwen3")


@pytest.mark.parametrize("shift", [True, False])
def test_rows_in_another_order_and_padded_by_others_say_the_same(model: Any, shift: bool) -> None:
    blocks = Blocks(3, shift=shift)
    few = [
        Row(PROMPT, COMPLETION, [Canvas(0, [8, MASK, MASK], [1, 2]), Canvas(2, [MASK], [0])]),
        Row(PROMPT * 4, COMPLETION[:3], [Canvas(1, [MASK, MASK, 13], [0, 1])]),
        Row(PROMPT[:1], [], [Canvas(0, [MASK, MASK, MASK], [2, 0])]),
    ]
    together = laws(model, few, blocks)
    for row, found in zip(few[::-1], laws(model, few[::-1], blocks), strict=True):
        assert close(found, together[few.index(row)])
    for row, found in zip(few, together, strict=True):
        assert close(found, laws(model, [row], blocks)[0])


def test_what_comes_later_changes_nothing_and_what_comes_before_does(model: Any) -> None:
    blocks = Blocks(3)
    canvases = [Canvas(block, [MASK] * len(COMPLETION[3 * block : 3 * block + 3]), [0]) for block in range(3)]

    def with_token(place: int, token: int) -> torch.Tensor:
        changed = [token if at == place else old for at, old in enumerate(COMPLETION)]
        return laws(model, [Row(PROMPT, changed, canvases)], blocks)[0]

    before = laws(model, [Row(PROMPT, COMPLETION, canvases)], blocks)[0]
    for place in range(len(COMPLETION)):
        after, own = with_token(place, 30), place // 3
        assert torch.equal(after[: own + 1], before[: own + 1])  # its own noisy copy does not see the clean one
        assert not any(close(after[block], before[block]) for block in range(own + 1, 3))


def test_a_noisy_copy_is_seen_by_itself_only_and_in_both_directions(model: Any) -> None:
    blocks = Blocks(3)

    def of_first(last: int) -> torch.Tensor:
        canvases = [Canvas(0, [MASK, MASK, last], [1]), Canvas(0, [MASK] * 3, [1]), Canvas(1, [MASK] * 3, [0, 1])]
        return laws(model, [Row(PROMPT, COMPLETION, canvases)], blocks)[0]

    one, other = of_first(11), of_first(30)
    assert not close(one[0], other[0])
    assert torch.equal(one[1:], other[1:])


def test_without_the_shift_a_law_is_read_where_the_token_stands(model: Any) -> None:
    # of the hidden token at place 0 the shifted law does not depend on the canvas, the other one does
    def first(last: int, shift: bool) -> torch.Tensor:
        return laws(model, [Row(PROMPT, [], [Canvas(0, [MASK, last], [0])])], Blocks(2, shift=shift))[0][0]

    assert torch.equal(first(11, True), first(30, True))
    assert not close(first(11, False), first(30, False))


def test_under_an_adapter_it_is_the_adapted_model(model: Any) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config).eval()
    row, blocks = Row(PROMPT, COMPLETION, [Canvas(1, [MASK, 12, MASK], [0, 2])]), Blocks(3)
    found = laws(adapted, [row], blocks)[0]
    assert not close(found, laws(model, [row], blocks)[0])
    canvas_logits(adapted, [row], blocks=blocks, mask_id=MASK, pad_id=PAD)[0][:, :MASK].square().sum().backward()
    grads = {name: weight.grad for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert grads
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads.values())
    assert close(laws(adapted.merge_and_unload(), [row], blocks)[0], found)


def test_half_precision_is_near_full_precision(model: Any) -> None:
    row, blocks = Row(PROMPT, COMPLETION, [Canvas(1, [MASK, 12, MASK], [0, 2])]), Blocks(3)
    half = laws(copy.deepcopy(model).to(torch.bfloat16), [row], blocks)[0]
    torch.testing.assert_close(half, laws(model, [row], blocks)[0], atol=0.02, rtol=0.05)


def test_nothing_wanted_is_nothing(model: Any) -> None:
    few = [Row(PROMPT, COMPLETION, []), Row(PROMPT, [], [Canvas(0, [MASK, MASK], [])])]
    assert [logits.shape for logits in laws(model, few, Blocks(3))] == [(0, MASK)] * 2
    assert canvas_logits(model, [], blocks=Blocks(3), mask_id=MASK, pad_id=PAD) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row([], [], []), "the prompt of row 0 has no tokens"),
        (Row(PROMPT, COMPLETION[:5], [Canvas(2, [MASK], [0])]), "is of block 2, but the 5 tokens .* are too few"),
        (Row(PROMPT, COMPLETION, [Canvas(-1, [MASK], [0])]), "is of block -1"),
        (Row(PROMPT, COMPLETION, [Canvas(0, [], [])]), "has 0 tokens of at most 3"),
        (Row(PROMPT, COMPLETION, [Canvas(0, [MASK] * 4, [0])]), "has 4 tokens of at most 3"),
        (Row(PROMPT, COMPLETION, [Canvas(0, [MASK], [1])]), r"places \[1\] are wanted"),
        (Row(PROMPT, COMPLETION, [Canvas(0, [MASK], [-1])]), r"places \[-1\] are wanted"),
    ],
)
def test_rows_that_do_not_fit_are_told(model: Any, row: Row, said: str) -> None:
    with pytest.raises(InputError, match=said):
        canvas_logits(model, [row], blocks=Blocks(3), mask_id=MASK, pad_id=PAD)
