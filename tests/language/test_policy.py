"""The language policy: what it answers, that nothing is repaired, and what it is sure of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the language extra: pip install 'rerank-env[language]'")

from tiny import tiny_model, tiny_tokenizer  # noqa: E402

from rerank_env.agents import Policy  # noqa: E402
from rerank_env.agents.language import AnswerConstraint, Decoding, LanguagePolicy, Repaired  # noqa: E402
from rerank_env.data import Requests, load  # noqa: E402
from rerank_env.prompts import PromptWriter  # noqa: E402
from rerank_env.rewards.errors import InputError  # noqa: E402
from rerank_env.rewards.rankings import Verdict, verdicts  # noqa: E402


@pytest.fixture(scope="module")
def requests() -> Requests:
    return load("synthetic", requests=8, slate_size=3, history=2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture
def policy(tokenizer: Any) -> LanguagePolicy:
    return LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=16))


@pytest.mark.parametrize("constrained", [True, False])
def test_it_is_a_policy_and_ranks_as_it_wrote(policy: LanguagePolicy, requests: Requests, constrained: bool) -> None:
    assert isinstance(policy, Policy)
    policy.decoding = Decoding(max_tokens=16, constrained=constrained)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    rankings = policy.rank(requests, rng=rng)
    assert rng.bit_generator.state == before  # greedy draws nothing
    answers = policy.answers(requests)
    read, codes = answers.read()
    np.testing.assert_array_equal(read[:, 0], rankings)
    assert (codes == Verdict.OK).all() == constrained
    for (text,), ranking, (code,) in zip(answers.texts, rankings.tolist(), codes.tolist(), strict=True):
        assert ranking == ([one - 1 for one in json.loads(text)] if code == Verdict.OK else [-1, -1, -1])


def test_an_answer_that_is_no_ranking_is_not_repaired_unless_it_is_served(tokenizer: Any, requests: Requests) -> None:
    raw = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(), decoding=Decoding(max_tokens=8))
    rng = np.random.default_rng(0)
    assert (raw.rank(requests, rng=rng) == -1).all()
    served = Repaired(raw).rank(requests, rng=rng)
    assert (verdicts(served, requests.sizes_B) == Verdict.OK).all()


def test_constrained_answers_are_rankings_of_slates_of_any_size(tokenizer: Any) -> None:
    requests = Requests.of([[0, 1, 2], [3, 4], [5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 11]], [[1, 0, 0], [1, 0], [1] + [0] * 10])
    decoding = Decoding(max_tokens=90, temperature=1.0, constrained=True)
    for text_format in ("list", "tagged-json"):
        raw = LanguagePolicy(tiny_model(tokenizer), tokenizer, PromptWriter(text_format), decoding=decoding)
        answers, codes = raw.answers(requests, n=3, rng=np.random.default_rng(0)).read()
        assert (codes == Verdict.OK).all()
        assert (answers[1, :, 2:] == -1).all()


def test_samples_come_from_the_generator_and_logprobs_are_exact(policy: LanguagePolicy, requests: Requests) -> None:
    hot = Decoding(max_tokens=16, temperature=1.0)
    one = policy.answers(requests, n=4, rng=np.random.default_rng(3), decoding=hot)
    same = policy.answers(requests, n=4, rng=np.random.default_rng(3), decoding=hot)
    other = policy.answers(requests, n=4, rng=np.random.default_rng(4), decoding=hot)
    assert one.texts == same.texts != other.texts
    assert [len(texts) for texts in one.texts] == [4] * len(requests)
    with torch.no_grad():
        exact = policy.log_prob(requests, [ids[1] for ids in one.ids_BN])
    for logprobs, reference in zip(one.logprobs_BN, exact, strict=True):
        assert logprobs[1] == pytest.approx(reference.tolist(), abs=1e-4)


def test_a_text_is_scored_with_its_end(policy: LanguagePolicy, requests: Requests) -> None:
    two = requests.take([0, 1])
    ids = policy.tokenizer("[2, 1, 3]", add_special_tokens=False)["input_ids"]
    by_text = policy.log_prob(two, ["[2, 1, 3]", "[1]"])
    by_ids = policy.log_prob(two, [[*ids, policy.eos_ids[0]], policy.completion_ids("[1]")])
    assert by_text[0].shape == (len(ids) + 1,)
    for a, b in zip(by_text, by_ids, strict=True):
        assert torch.equal(a, b)
    assert by_text[0].requires_grad


def test_shuffled_prompts_are_read_back_in_the_incoming_order(policy: LanguagePolicy, requests: Requests) -> None:
    asked = policy.ask(requests, rng=np.random.default_rng(0))
    rankings, codes = policy.respond(asked).read()
    straight = asked.read([texts[0] for texts in policy.respond(asked).texts])
    np.testing.assert_array_equal(rankings[:, 0], straight.rankings_BK)
    shown = policy.answers(asked.shown).read()[0]
    moved = np.where(codes[:, 0, None] == 0, np.take_along_axis(asked.order_BK, np.maximum(shown[:, 0], 0), 1), -1)
    np.testing.assert_array_equal(rankings[:, 0], moved)


def test_without_a_chat_template_prompts_are_plain(tokenizer: Any, requests: Requests) -> None:
    plain = tiny_tokenizer(chat_template="")
    policy = LanguagePolicy(tiny_model(plain), plain, PromptWriter())
    asked = policy.ask(requests.take([0]))
    assert plain.decode(policy.prompt_ids(asked.prompts)[0]) == asked.prompts[0].text
    assert policy.prompt_ids([]) == []


def test_special_tokens_inside_an_answer_make_it_invalid(policy: LanguagePolicy, requests: Requests) -> None:
    def told(text: str) -> list[int]:
        return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])

    pad, end = policy.tokenizer.pad_token_id, policy.eos_ids[0]
    plain, spoilt = [*told("[1, 2, 3]"), end], [*told("[1, 2, "), pad, *told("3]"), end]
    texts = policy.texts([plain, plain[:-1], spoilt])
    assert texts[:2] == ["[1, 2, 3]"] * 2
    asked = policy.ask(requests.take([0, 1, 2]))
    assert (asked.read(texts).verdicts_B == Verdict.OK).tolist() == [True, True, False]


def test_no_requests_have_no_answers(policy: LanguagePolicy, requests: Requests) -> None:
    assert policy.rank(requests.take([]), rng=np.random.default_rng(0)).shape == (0, 3)


def test_sampling_without_a_generator_and_models_without_an_end_are_refused(
    policy: LanguagePolicy, requests: Requests
) -> None:
    with pytest.raises(InputError, match="pass rng"):
        policy.answers(requests, decoding=Decoding(temperature=1.0))
    endless = tiny_tokenizer()
    model = tiny_model(endless)
    model.generation_config.eos_token_id = endless.eos_token = None
    with pytest.raises(InputError, match="end-of-text"):
        LanguagePolicy(model, endless, PromptWriter())


def test_the_constraint_of_a_policy_is_the_one_of_its_requests(policy: LanguagePolicy, requests: Requests) -> None:
    constraint = AnswerConstraint(policy.tokenizer, "list", [3], max_tokens=16, eos_ids=policy.eos_ids)
    assert constraint.allowed(constraint.start(0)).tolist()
    decoding = Decoding(max_tokens=16, constrained=True)
    assert (policy.answers(requests, decoding=decoding).read()[1] == Verdict.OK).all()
