"""Training of block-diffusion language models that re-rank, from a model that was trained to write left to right.

Every module is imported by its own name, because each needs other peers; all need the extra `language`.

- `cft`: conversion fine-tuning on accepted traces, a whole run in one directory
- `cft_settings`: what it is told, and examples with what it must know of them
- `dapo`: reinforcement learning by DAPO, a whole run in one directory; `dapo_settings`: what it is told
- `trainer`: its loss; `rollouts`: what a step is made of; `plans`: what of a rollout is scored; `parts`: reasoning and
  answer, and one loss of both
- `opd`: on-policy distillation from a teacher, a whole run in one directory; `opd_settings`: what it is told
- `targets`: on which canvases a student is compared; `cuts`: how far a completion is learned from
- `noise`: which tokens of a completion are hidden, and how much each of them counts
"""
