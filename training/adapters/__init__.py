"""One record, every trainer: the same requests and the same reward for trainers that are not ours.

Each module serves one peer and is imported by its name, with the extra that brings the peer: `huggingface` (data sets),
`trl`, `verl`, `verifiers`, `openenv`. What they share is in `records`: requests as plain rows, and rows back as what a
reward scores. Every adapter scores through `rerank_env.rewards.scoring`, so the same completion earns the same number
everywhere; a contract test in each peer's own machinery holds them to it.
"""
