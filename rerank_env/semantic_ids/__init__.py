"""Semantic IDs: every item of a catalogue as a few codes, and as words that a language model can be taught.

`SemanticIds` is the record that prompts, decoders and parsers read; `PrefixTrie` says which code may come next. How IDs
are made from texts and purchases is in `rerank_env.agents.semantic_ids`. May import numpy, `rerank_env.durable` and
`rerank_env.rewards`; saving and loading need safetensors.
"""

from rerank_env.semantic_ids.files import load, save
from rerank_env.semantic_ids.record import SemanticIds, catalogue_hash
from rerank_env.semantic_ids.trie import PrefixTrie

__all__ = ["PrefixTrie", "SemanticIds", "catalogue_hash", "load", "save"]
