"""Language models as policies: a request goes in as a prompt, a ranking comes out in words, with or without reasons.

Needs the extra `language` (torch, transformers, and peft for adapters). Names load on first use.

- `policy`: the agent; `text_policy`: what it shares with others that answer in words; `answers`: what it wrote;
  `serving`: with repair; `saving`, `wording`: its folder
- `decoding`: how tokens are drawn; `generation`: many prompts at once; `writing`: the loop; `fallback`: without ours;
  `prefix`: what prompts share is read once
- `constraints`, `automaton`, `spelling`: answers that can only be rankings, for any tokenizer
- `likelihood`: exact log-probabilities; `spans`: which token is reasoning, which names which candidate
- `chats`: prompts in tokens; `models`: out of their wrappers, in and out of training mode
- `scratch`, `vocabulary`: models and tokenizers from nothing, and words for semantic IDs; `next_items`: beam search
- `server`: a model behind an OpenAI-compatible server
"""

from typing import TYPE_CHECKING

from rerank_env import lazy

if TYPE_CHECKING:
    from rerank_env.agents.language.answers import Answers
    from rerank_env.agents.language.constraints import AnswerConstraint
    from rerank_env.agents.language.decoding import Decoding
    from rerank_env.agents.language.generation import Generated, generate
    from rerank_env.agents.language.likelihood import token_log_probs
    from rerank_env.agents.language.policy import LanguagePolicy
    from rerank_env.agents.language.serving import Repaired
    from rerank_env.agents.language.spans import completion_spans, token_roles

__all__ = [
    "AnswerConstraint",
    "Answers",
    "Decoding",
    "Generated",
    "LanguagePolicy",
    "Repaired",
    "completion_spans",
    "generate",
    "token_log_probs",
    "token_roles",
]

__getattr__, __dir__ = lazy.names(
    globals(),
    {
        "AnswerConstraint": "constraints",
        "Answers": "answers",
        "Decoding": "decoding",
        "Generated": "generation",
        "LanguagePolicy": "policy",
        "Repaired": "serving",
        "completion_spans": "spans",
        "generate": "generation",
        "token_log_probs": "likelihood",
        "token_roles": "spans",
    },
    extra="language",
)
