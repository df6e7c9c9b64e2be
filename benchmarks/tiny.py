"""A model of some thousand weights and its tokenizer, made here, so that the peers' trainers run offline in seconds."""

from __future__ import annotations

from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""What decoding leaves out: the padding, and the signs of the chat template."""

WHOLE = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Single tokens that are text all the same, as in the Qwen models."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


CONTEXT = 160
"""How many of the last tokens of a prompt are taught with; positions are relative, so longer prompts work too."""


def tiny_tokenizer(chat_template: str = CHAT_TEMPLATE, *, whole: tuple[str, ...] = WHOLE) -> Any:
    """Bytes, numbers, runs of blanks and the `whole` texts as tokens; decoding gives the text that was encoded."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=4096,
    )
    corpus = [" " * 4097, "[1, 2, 3]", "[1] > [2]", '{"ranking": [3, 2, 1]}', *map(str, range(1, 12))]
    inner.train_from_iterator(corpus * 8, trainer)
    inner.add_tokens(list(whole))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def tiny_model(tokenizer: Any, *, seed: int = 0) -> Any:
    """A random causal language model of one layer for that tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def taught_model(tokenizer: Any, prompts: list[str], answers: list[str], *, updates: int = 80, seed: int = 0) -> Any:
    """A tiny model that has seen `answers` to `prompts`, both as they go into it, and has begun to answer so."""
    import torch

    model = tiny_model(tokenizer, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        picked = torch.randint(len(prompts), (8,), generator=generator).tolist()
        asked = [tokenizer(prompts[row], add_special_tokens=False)["input_ids"][-CONTEXT:] for row in picked]
        told = [tokenizer(answers[row], add_special_tokens=False)["input_ids"] for row in picked]
        told = [[*ids, tokenizer.eos_token_id] for ids in told]
        width = max(len(before) + len(after) for before, after in zip(asked, told, strict=True))
        ids = torch.full((len(picked), width), tokenizer.pad_token_id)
        labels = torch.full((len(picked), width), -100)
        for row, (before, after) in enumerate(zip(asked, told, strict=True)):
            ids[row, : len(before) + len(after)] = torch.tensor([*before, *after])
            labels[row, len(before) : len(before) + len(after)] = torch.tensor(after)
        loss = model(
            input_ids=ids, attention_mask=(labels != -100) | (ids != tokenizer.pad_token_id), labels=labels
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
