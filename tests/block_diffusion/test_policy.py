"""The block-diffusion policy: what it answers and how, and a folder that gives it again or says why not."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents import Policy  # noqa: E402
from rerank_env.agents.block_diffusion import (  # noqa: E402
    BlockDecoding,
    BlockDiffusionPolicy,
    Blocks,
    Canvas,
    Row,
    canvas_logits,
    convert,
)
from rerank_env.agents.block_diffusion.answering import AnswerForms  # noqa: E402
from rerank_env.agents.block_diffusion.conversion import MASK  # noqa: E402
from rerank_env.agents.language import Decoding, LanguagePolicy, Repaired  # noqa: E402
from rerank_env.agents.language.scratch import build_model, build_tokenizer  # noqa: E402
from rerank_env.data import Requests, load  # noqa: E402
from rerank_env.prompts import Budget, PromptWriter, TokensOf, ask  # noqa: E402
from rerank_env.rewards.errors import CheckpointError, InputError, UnknownNameError  # noqa: E402
from rerank_env.rewards.rankings import Verdict, verdicts  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks transformers for it
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),  # PEFT looks for a nameless base
]

HOT = BlockDecoding("static(2)", max_tokens=10, temperature=1.0)


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=5, slate_size=3, history=2)


def causal() -> LanguagePolicy:
    tokenizer = tiny_tokenizer()
    return LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=10))


@pytest.fixture
def policy() -> BlockDiffusionPolicy:
    decoding = BlockDecoding("threshold(0.01)", max_tokens=10, end="prefix", max_rounds=3, batch_size=4)
    return convert(causal(), blocks=Blocks(4, clean="causal"), decoding=decoding, in_place=True)


def test_it_is_a_policy_and_ranks_as_it_wrote(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    assert isinstance(policy, Policy)
    assert not isinstance(policy, LanguagePolicy)  # nobody trains it as one
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    rankings = policy.rank(requests, rng=rng)
    assert rng.bit_generator.state == before  # greedy draws nothing
    read, codes = policy.answers(requests).read()
    np.testing.assert_array_equal(read[:, 0], rankings)
    assert (codes != Verdict.OK).all()  # of random weights, and nothing is repaired
    assert (rankings == -1).all()
    served = Repaired(policy).rank(requests, rng=rng)
    assert (verdicts(served, requests.sizes_B) == Verdict.OK).all()


def test_answers_say_how_they_were_decoded(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    answers = policy.answers(requests, n=3, rng=np.random.default_rng(3), decoding=HOT)
    assert [len(texts) for texts in answers.texts] == [3] * len(requests)
    assert answers.n == 3
    assert answers.forwards > 0
    for row in range(len(requests)):
        for copy in range(3):
            trajectory = answers.trajectories_BN[row][copy]
            assert answers.ids_BN[row][copy] == trajectory.tokens
            assert answers.logprobs_BN[row][copy] == trajectory.logprobs
            assert answers.finished_BN[row][copy] == trajectory.finished == (trajectory.tokens[-1] in policy.eos_ids)
            assert policy.mask_id not in trajectory.tokens
            assert trajectory.block_size == 4
            assert answers.texts[row][copy] == policy.texts([trajectory.tokens])[0]


def test_log_probabilities_are_those_of_the_canvases(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    answers = policy.answers(requests, rng=np.random.default_rng(5), decoding=HOT)
    prompts = policy.prompt_ids(answers.asked.prompts)
    for row, prompt in enumerate(prompts):
        trajectory = answers.trajectories_BN[row][0]
        canvases = trajectory.canvases()
        with torch.no_grad():
            laws = canvas_logits(
                policy.model, [Row(prompt, trajectory.tokens, canvases)], blocks=policy.blocks, mask_id=policy.mask_id,
                pad_id=policy.pad_id,
            )[0].log_softmax(-1)  # fmt: skip
        places = [canvas.block * 4 + place for canvas in canvases for place in canvas.wanted]
        assert sorted(places) == list(range(len(trajectory.tokens)))
        found = [law[trajectory.tokens[place]].item() for law, place in zip(laws, places, strict=True)]
        assert found == pytest.approx([trajectory.logprobs[place] for place in places], abs=1e-4)


def test_samples_come_from_the_generator(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    one, same, other = (
        policy.answers(requests, n=2, rng=np.random.default_rng(seed), decoding=HOT).texts for seed in (3, 3, 4)
    )
    assert one == same != other
    with pytest.raises(InputError, match="pass rng"):
        policy.answers(requests, decoding=HOT)


def test_the_rule_is_used(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    slow = policy.answers(requests, decoding=BlockDecoding("static(4)", max_tokens=10))
    fast = policy.answers(requests, decoding=BlockDecoding("static(1)", max_tokens=10))
    assert max(max(t.block_rounds) for (t,) in slow.trajectories_BN) == 4
    assert max(max(t.block_rounds) for (t,) in fast.trajectories_BN) == 1
    capped = policy.answers(requests, decoding=BlockDecoding("static(4)", max_tokens=10, max_rounds=2))
    assert max(max(t.block_rounds) for (t,) in capped.trajectories_BN) == 2


def test_shuffled_prompts_are_read_back_in_the_incoming_order(requests: Requests) -> None:
    policy = of_words("list")
    decoding = BlockDecoding(max_tokens=10, answer="plackett-luce")
    asked = policy.ask(requests, rng=np.random.default_rng(0))
    answers = policy.respond(asked, decoding=decoding)
    rankings, codes = answers.read()
    assert (codes == Verdict.OK).all()
    for row, (text,) in enumerate(answers.texts):
        shown = [one - 1 for one in json.loads(text)]
        assert rankings[row, 0].tolist() == [int(asked.order_BK[row, place]) for place in shown]


@cache
def of_words(text_format: str, *, size: int = 4) -> BlockDiffusionPolicy:
    """A policy whose tokenizer has a token for each number."""
    made = load("synthetic", requests=5, slate_size=3, history=2)
    asked = [prompt.text for prompt in ask(made, PromptWriter(text_format)).prompts]
    texts = [*asked, "[3, 1, 2]", "[3] > [1] > [2]", '{"ranking": [2, 1]}']
    tokenizer = build_tokenizer(texts, vocab_size=700)
    model = build_model(tokenizer, width=16, layers=1, heads=2, seed=1)
    return convert(LanguagePolicy(model, tokenizer, PromptWriter(text_format)), blocks=Blocks(size), in_place=True)


@pytest.mark.parametrize("answer", ["plackett-luce", "assignment(2)", "constrained(threshold(0.9))"])
@pytest.mark.parametrize("text_format", ["list", "arrows"])
def test_a_named_decoder_makes_every_answer_a_ranking(requests: Requests, answer: str, text_format: str) -> None:
    policy = of_words(text_format)
    requests = requests.take([0, 1])
    answers = policy.answers(requests, n=2, decoding=BlockDecoding(max_tokens=6, answer=answer))
    _, codes = answers.read()
    assert (codes == Verdict.OK).all()
    assert all(all(done) for done in answers.finished_BN)
    for row in range(len(requests)):
        for form, ids, logprobs in zip(
            answers.forms_BN[row], answers.ids_BN[row], answers.logprobs_BN[row], strict=True
        ):
            assert form is not None
            assert not form.written
            assert len(ids) == len(form.answer) == len(logprobs)
            assert ids[-1] == policy.eos_ids[0]
            named = [place for place, token in enumerate(form.answer) if token == policy.mask_id]
            assert policy.tokenizer.convert_ids_to_tokens(form.names) == ["1", "2", "3"]
            assert sorted(ids[place] for place in named) == sorted(form.names)
            assert [place for place, score in enumerate(logprobs) if score] in (named, named[:-1])


def test_sampled_rankings_have_the_log_probability_of_their_law(requests: Requests) -> None:
    policy = of_words("list", size=32)
    decoding = BlockDecoding(max_tokens=6, answer="plackett-luce", temperature=1.5)
    answers = policy.answers(requests.take([0, 1]), n=6, rng=np.random.default_rng(0), decoding=decoding)
    assert len({tuple(ranking) for ranking in answers.read()[0].reshape(-1, 3).tolist()}) > 2
    prompts = policy.prompt_ids(answers.asked.prompts)
    for row, prompt in enumerate(prompts):
        form = answers.forms_BN[row][0]
        assert form is not None
        slots = [place for place, token in enumerate(form.answer) if token == policy.mask_id]
        with torch.no_grad():
            logits = canvas_logits(
                policy.model, [Row(prompt, [], [Canvas(0, form.answer, slots)])], blocks=policy.blocks,
                mask_id=policy.mask_id, pad_id=policy.pad_id,
            )[0]  # fmt: skip
        for ids, logprobs in zip(answers.ids_BN[row], answers.logprobs_BN[row], strict=True):
            left, total = list(form.names), 0.0
            for law, place in zip(logits / 1.5, slots, strict=True):
                total += float(law[ids[place]] - law[left].logsumexp(0))
                left.remove(ids[place])
            assert sum(logprobs) == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    ("text_format", "written", "kept", "answer"),
    [
        ("tagged-list", "<think>near 7</think><answer>[2, 2", "<think>near 7</think>", "<answer>[_, _, _]</answer>"),
        ("tagged-arrows", "<answer>[2]", "", "<answer>[_] > [_] > [_]</answer>"),
        ("tagged-json", "<think>a</think>\n<answer>", "<think>a</think>\n", '<answer>{"ranking": [_, _, _]}</answer>'),
        ("json", '{"explanation": "the \\"ranking\\"", "ranking": [1, 1', '{"explanation": "the \\"ranking\\"", ',
         '"ranking": [_, _, _]}'),
        ("list", "[2, 2", "", "[_, _, _]"),
        ("tagged-list", "<think>near 7, and so on", None, None),
        ("json", "[1, 2, 3]", None, None),
    ],
)  # fmt: skip
def test_what_was_written_before_an_answer_stands(
    requests: Requests, text_format: str, written: str, kept: str | None, answer: str | None
) -> None:
    policy = of_words(text_format)
    asked = policy.ask(requests.take([0]))
    tokens = policy.tokenizer(written, add_special_tokens=False)["input_ids"]
    form = AnswerForms(policy.tokenizer, asked, mask_id=policy.mask_id, end_id=policy.eos_ids[0]).of(0, [1], tokens)
    if kept is None or form is None:
        assert kept is form
        return
    told = [*form.written, *form.answer[:-1]]
    assert form.written == tokens[: len(form.written)]
    assert form.answer[-1] == policy.eos_ids[0]
    assert policy.tokenizer.decode(told).replace(MASK, "_") == f"{kept}{answer}"
    names = iter(form.names)
    text = policy.tokenizer.decode([next(names) if token == policy.mask_id else token for token in told])
    assert asked.read([text]).verdicts_B.tolist() == [Verdict.OK]


def test_an_answer_that_was_not_come_to_stays_as_it_was_written(requests: Requests) -> None:
    policy = of_words("tagged-list")
    free = policy.answers(requests, decoding=BlockDecoding(max_tokens=9))
    named = policy.answers(requests, decoding=BlockDecoding(max_tokens=9, answer="plackett-luce"))
    assert named.forms_BN == [[None]] * len(requests)
    assert (named.ids_BN, named.logprobs_BN, named.texts) == (free.ids_BN, free.logprobs_BN, free.texts)


def test_numbers_of_several_tokens_have_no_slots() -> None:
    wide = load("synthetic", requests=4, slate_size=12, history=2).take([0])
    decoding = BlockDecoding(max_tokens=2, answer="plackett-luce")
    policy = of_words("list")
    assert policy.answers(wide, decoding=decoding).read()[1].tolist() == [[Verdict.OK]]
    digits = convert(causal(), blocks=Blocks(4), in_place=True)
    with pytest.raises(InputError, match="no single token for candidate .* that is the same wherever"):
        digits.answers(wide, decoding=decoding)


def test_no_requests_have_no_answers(policy: BlockDiffusionPolicy, requests: Requests) -> None:
    assert policy.rank(requests.take([]), rng=np.random.default_rng(0)).shape == (0, 3)
    assert policy.answers(requests.take([])).forwards == 0


def test_a_mask_token_of_its_own_is_needed() -> None:
    plain = causal()
    with pytest.raises(InputError, match="the mask token of the tokenizer is None, .* use conversion.convert"):
        BlockDiffusionPolicy(plain.model, plain.tokenizer, plain.writer, blocks=Blocks(4))
    plain.tokenizer.mask_token = "<|im_end|>"
    with pytest.raises(InputError, match="neither ends nor pads"):
        BlockDiffusionPolicy(plain.model, plain.tokenizer, plain.writer, blocks=Blocks(4))


def test_settings_are_checked_and_equal_when_they_mean_the_same() -> None:
    assert BlockDecoding("threshold( 0.90 )") == BlockDecoding()
    assert BlockDecoding(temperature=-0.0).is_greedy
    with pytest.raises(UnknownNameError, match="did you mean 'threshold'"):
        BlockDecoding("treshold(0.9)")
    assert BlockDecoding(answer="constrained( static( 4 ) )").answer == "constrained(static(4))"
    with pytest.raises(UnknownNameError, match="did you mean 'assignment'"):
        BlockDecoding(answer="asignment(1)")
    with pytest.raises(InputError, match="which draws nothing, but temperature is 1.0"):
        BlockDecoding(answer="assignment(1)", temperature=1)
    with pytest.raises(UnknownNameError, match="end of decoding"):
        BlockDecoding(end="never")
    for field in ("max_tokens", "batch_size", "max_rounds"):
        with pytest.raises(InputError, match=f"{field} is 0"):
            BlockDecoding(**{field: 0})
    with pytest.raises(InputError, match="temperature is -1.0; give 0"):
        BlockDecoding(temperature=-1)


def test_a_folder_gives_the_same_policy_and_the_same_answers(
    policy: BlockDiffusionPolicy, requests: Requests, tmp_path: Path
) -> None:
    policy.writer = PromptWriter("list", prompt_budget=Budget(4000, TokensOf(policy.tokenizer), keep=1))
    policy.save_pretrained(tmp_path)
    again = BlockDiffusionPolicy.from_pretrained(tmp_path)
    assert (again.blocks, again.decoding, again.mask_id) == (policy.blocks, policy.decoding, policy.mask_id)
    assert again.writer.template == policy.writer.template
    for name, weights in policy.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weights)
    one, other = policy.answers(requests), again.answers(requests)
    assert one.trajectories_BN == other.trajectories_BN
    record = json.loads((tmp_path / "policy.json").read_text())
    assert record["blocks"] == {"size": 4, "shift": True, "clean": "causal"}
    assert record["decoding"]["rule"] == "threshold(0.01)"
    replaced = BlockDiffusionPolicy.from_pretrained(tmp_path, writer=PromptWriter("arrows"), decoding=HOT)
    assert (replaced.writer.text_format, replaced.decoding) == ("arrows", HOT)


def test_an_adapter_is_saved_with_its_base(policy: BlockDiffusionPolicy, requests: Requests, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    plain = policy.answers(requests, decoding=BlockDecoding("static(4)", max_tokens=10))
    policy.model = peft.get_peft_model(policy.model, config).eval()
    adapted = policy.answers(requests, decoding=BlockDecoding("static(4)", max_tokens=10))
    assert adapted.logprobs_BN != plain.logprobs_BN
    policy.save_pretrained(tmp_path)
    again = BlockDiffusionPolicy.from_pretrained(tmp_path)
    found = again.answers(requests, decoding=BlockDecoding("static(4)", max_tokens=10))
    assert found.ids_BN == adapted.ids_BN
    for one, other in zip(found.logprobs_BN, adapted.logprobs_BN, strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-4)


def test_neither_kind_of_policy_is_read_as_the_other(policy: BlockDiffusionPolicy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "blocks")
    with pytest.raises(
        CheckpointError, match=r"'block-diffusion' policy .*use .*block_diffusion\.BlockDiffusionPolicy"
    ):
        LanguagePolicy.from_pretrained(tmp_path / "blocks")
    causal().save_pretrained(tmp_path / "causal")
    with pytest.raises(CheckpointError, match=r"holds an autoregressive policy; .* convert that with .*\.convert"):
        BlockDiffusionPolicy.from_pretrained(tmp_path / "causal")
    (tmp_path / "causal" / "policy.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no policy\.json, .* make a LanguagePolicy .* and convert that"):
        BlockDiffusionPolicy.from_pretrained(tmp_path / "causal")


def test_torn_folders_are_told(policy: BlockDiffusionPolicy, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path / "good")

    def broken(name: str) -> Path:
        shutil.copytree(tmp_path / "good", tmp_path / name)
        return tmp_path / name

    with (broken("torn") / "model.safetensors").open("ab") as file:
        file.write(b"more")
    (broken("gone") / "tokenizer.json").unlink()
    for name in ("torn", "gone"):
        with pytest.raises(CheckpointError, match="not saved together"):
            BlockDiffusionPolicy.from_pretrained(tmp_path / name)
    (broken("no json") / "policy.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        BlockDiffusionPolicy.from_pretrained(tmp_path / "no json")
    record = json.loads((tmp_path / "good" / "policy.json").read_text())
    changes: list[tuple[dict[str, Any], str]] = [
        ({"kind": "token"}, "'token' policy"),
        ({"version": 9}, "version 9"),
        ({"blocks": {"size": 0}}, "the blocks in .* do not make sense"),
        ({"blocks": {"width": 4}}, "the blocks in .* do not make sense"),
        ({"blocks": None}, "the blocks in .* do not make sense"),
        ({"decoding": {"rule": "best(3)"}}, "the decoding in .* does not make sense"),
        ({"mask": ["<|mask|>", 3]}, "the mask token of the tokenizer .* was saved"),
    ]
    for change, said in changes:
        (tmp_path / "good" / "policy.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(CheckpointError, match=said):
            BlockDiffusionPolicy.from_pretrained(tmp_path / "good")
    for name in ("blocks", "mask", "decoding"):
        (tmp_path / "good" / "policy.json").write_text(json.dumps({k: v for k, v in record.items() if k != name}))
        with pytest.raises(CheckpointError, match=f"says nothing of {name}"):
            BlockDiffusionPolicy.from_pretrained(tmp_path / "good")


def test_names_load_on_first_use_and_are_all_there() -> None:
    from rerank_env.agents import block_diffusion

    assert sorted(block_diffusion.__all__) == block_diffusion.__all__
    assert all(getattr(block_diffusion, name).__name__ == name for name in block_diffusion.__all__)
