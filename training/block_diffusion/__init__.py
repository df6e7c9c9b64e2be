"""Training of block-diffusion language models that re-rank, from a model that was trained to write left to right.

Every module is imported by its own name, because each needs other peers; all need the extra `language`.

- `cft`: conversion fine-tuning on accepted traces, a whole run in one directory
- `cft_settings`: what it is told, and examples with what it must know of them
- `noise`: which tokens of a completion are hidden, and how much each of them counts
"""
