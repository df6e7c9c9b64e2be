"""Updates that have nothing to learn from change nothing: no weight, no moment and no decay moves.

May import torch. An optimiser with moments moves weights in a step whose gradient is zero, too; it passes over weights
that have no gradient at all.
"""

from __future__ import annotations

from typing import Any

import torch


class SignalledUpdates:
    """For trainers to inherit from, before the class that checks gradients.

    Whoever computes the loss adds to `_counted` whatever there was to learn from; where it is 0 on all processes, the
    update is skipped. Logs `skipped`, 1.0 where it was.
    """

    accelerator: Any
    _metrics: Any
    _counted: float = 0.0

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)  # type: ignore[misc]
        counted = self.accelerator.reduce(torch.tensor(self._counted, device=self.accelerator.device), reduction="sum")
        self._counted = 0.0
        skips = float(counted) == 0.0
        self._metrics["train"]["skipped"].append(float(skips))
        if skips:
            model.zero_grad(set_to_none=True)
        return norm
