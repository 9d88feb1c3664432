"""PyTorch: modules in `pullback.torch.nn`, and all functions as ops, `torch.ops.pullback.<name>`.

The functions themselves take tensors as they take arrays: `pullback.cumprod(tensor)`. They keep the
dtype they are given, under autocast too, because sums are carried wider anyway; tensors of
different dtypes in one call are `Unsupported`, there as everywhere.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("pullback.torch needs PyTorch: pip install 'pullback[torch]'")

import pullback.frontends.torch  # noqa: F401 (registers the ops)
from pullback.torch import nn as nn
