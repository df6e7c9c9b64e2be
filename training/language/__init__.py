"""Training of language models that re-rank: mid-training, traces, supervised fine-tuning, distillation, DAPO.

Every module is imported by its own name, because each needs other peers; all need the extra `language`. Those with a
`run` come first in each part.

- `midtrain`: what semantic IDs mean, in two phases, in one directory
- `phases`: one of the two on transformers' trainer; `exam`: what is asked on the way
- `corpus`: texts from purchases; `mixture`: their shares in one stream; `packing`: several in a block, kept apart

- `traces`: a teacher's reasons and rankings, asked for and kept (a package with a map of its own)
- `sft`: fine-tuning with a weight a token
- `sft_settings`: what it is told; `examples`: traces in tokens, with weights; `batches`: of like length

- `dapo`: reinforcement by a reward, a whole run in one directory
- `opd`: the same with a teacher; `teaching`: that teacher, frozen; `divergences`: how far the student is from it
- `preflight`: whether a run can learn anything, and what it costs
- `trainer`: the loss; `rollouts`: what a step is made of; `dapo_settings`: what a run is told
- `shuffles`: requests as a step shows them; `signals`: what answers are paid; `lengths`: those that are cut off
- `groups`: answers of one request compared; `resampling`: dead groups replaced; `sharing`: prompts read once
- `reference`: the policy that a run started from
- `watching`: log, validation and the best weights; `stopping`: when to give up

- `checkpoints`: for all trainers: whole or absent, and nothing in them that is not finite
- `weights`: what tells one model's from another's
"""
