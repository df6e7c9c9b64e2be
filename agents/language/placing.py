"""What a model is made of and where it is put, by name: dtypes and devices, checked before anything is loaded.

May import torch and `rerank_env.rewards`.
"""

from __future__ import annotations

from typing import Any

import torch

from rerank_env.rewards.errors import InputError


def dtype_named(name: Any, *, what: str = "dtype") -> torch.dtype:
    """The dtype of weights that is meant, by torch's name of it or itself. Raises `InputError` naming `what`."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else name
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"{what} is {name!r}; give one that torch has for weights, such as float32 or bfloat16")
    return dtype


def device_named(name: Any, *, what: str = "device") -> torch.device:
    """The device that is meant, which this machine has. Raises `InputError` naming `what`."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"{what} is {name!r}, which cannot be used here; give cpu, or a device that there is"
        ) from error
    if device.type == "meta":
        raise InputError(f"{what} is {name!r}, which holds no weights; give cpu, or a device that there is")
    return device
