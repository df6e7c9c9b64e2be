"""Training of language models that re-rank: mid-training, traces, supervised fine-tuning, distillation, DAPO.

Every module is imported by its own name, because each needs other peers; all need the extra `language`.
"""
