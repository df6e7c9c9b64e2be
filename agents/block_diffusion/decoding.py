"""How blocks are decoded: the settings, part of what a policy is, and saved with it.

May import the modules `answers`, `rules` and `sampling` and `rerank_env.rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rerank_env.agents.block_diffusion.answers import AnswerDecoder, Assignment, answer_decoder_of
from rerank_env.agents.block_diffusion.rules import Rule, rule_of
from rerank_env.agents.block_diffusion.sampling import ENDS
from rerank_env.rewards.arguments import finite, one_of, whole
from rerank_env.rewards.errors import InputError


@dataclass(frozen=True)
class BlockDecoding:
    """How completions are written block by block; see `sampling.sample`.

    `rule` in words, which says what a round commits: "threshold(0.9)", "static(4)", "factor(1.0)", "entropy(0.35)".
    `max_tokens` at most, the end-of-text token included; `temperature` 0 is greedy. `end`: whether the block with an
    end of text is finished ("block") or only what stands before it ("prefix"). `max_rounds` of a block, after which all
    of it is committed; None for as many as it has tokens. `answer`: None where it is written as the reasons are, else
    the decoder that fills it in behind them, in words: "plackett-luce", "assignment(1)", "constrained(static(4))".
    `batch_size`: rows written at a time, all copies of a prompt counted.

    Equal settings are equal values: a rule is kept as it says itself, so that "static( 4 )" is "static(4)". Raises
    `InputError` naming the field, and for an assignment with a temperature, as it draws nothing.
    """

    rule: str = "threshold(0.9)"
    max_tokens: int = 512
    temperature: float = 0.0
    end: str = "block"
    max_rounds: int | None = None
    answer: str | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "rule", str(rule_of(self.rule)))
        for name in ("max_tokens", "batch_size"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=1))
        if self.max_rounds is not None:
            object.__setattr__(self, "max_rounds", whole("max_rounds", self.max_rounds, least=1))
        one_of("end of decoding", self.end, ENDS)
        temperature = finite("temperature", self.temperature)
        if temperature < 0:
            raise InputError(f"temperature is {temperature}; give 0 for greedy decoding, or a positive number")
        object.__setattr__(self, "temperature", temperature)
        if self.answer is not None:
            object.__setattr__(self, "answer", str(answer_decoder_of(self.answer)))
            if temperature and isinstance(self.answer_decoder, Assignment):
                raise InputError(
                    f"answers are decoded by {self.answer}, which draws nothing, but temperature is {temperature}; "
                    "give 0, or an answer decoder that draws, such as 'plackett-luce'"
                )

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def decoding_rule(self) -> Rule:
        """The rule itself."""
        return rule_of(self.rule)

    @property
    def answer_decoder(self) -> AnswerDecoder | None:
        """What fills answers in, where they are not written freely."""
        return None if self.answer is None else answer_decoder_of(self.answer)
