"""The array types every layer speaks, and what fills the tail of a padded row. May import numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
VerdictArray = npt.NDArray[np.int8]

PAD = -1
"""What fills the tail of a row of candidate or item numbers."""
