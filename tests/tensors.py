"""NumPy arguments as torch tensors and back, bits untouched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from pullback.verify.subject import Arguments, Subject

BF16 = np.dtype(ml_dtypes.bfloat16)


def tensor(array: Any) -> torch.Tensor:
    array = np.array(array)
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BF16)
    return tensor.numpy()


def tensors(arguments: Arguments, grad: bool = False) -> dict[str, Any]:
    """The same arguments with tensors for arrays; floats may ask for a gradient."""
    made = {
        name: tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    for value in made.values():
        if torch.is_tensor(value) and value.is_floating_point():
            value.requires_grad_(grad)
    return made


def several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def of_floats(subject: Subject, arguments: Arguments) -> tuple[Any, list[torch.Tensor]]:
    """The function of its float tensors alone, giving its float results, and where to take it."""
    given = tensors(arguments, grad=True)
    names = [n for n, v in given.items() if torch.is_tensor(v) and v.is_floating_point()]

    def run(*floats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = subject.function(**{**given, **dict(zip(names, floats, strict=True))})
        return tuple(r for r in several(results) if r.is_floating_point())

    return run, [given[name] for name in names]
