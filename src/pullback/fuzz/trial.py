"""One case in full: which function, on what, laid out how, compared with what. It can be stored."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from pullback.contract.element import ElementKind
from pullback.fuzz.layout import Layout
from pullback.verify.subject import Arguments, Subject, subjects

_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class Trial:
    """`arrays` are contiguous; `layouts` say how they are to lie, by name, and "out" for results.
    `refused` names the errors of which one must be raised, if any. `mistake` is what the caller
    does wrong beside the arguments. `alternatives` are not stored."""

    function: str
    element: ElementKind
    arrays: dict[str, Any]
    options: dict[str, Any]
    layouts: dict[str, Layout]
    checks: tuple[str, ...]
    threads: tuple[int, int] = (2, 1)
    out: bool = False
    mistake: str = ""
    refused: tuple[str, ...] = ()
    alternatives: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    @property
    def subject(self) -> Subject:
        return subjects()[self.function]

    @property
    def apart(self) -> bool:
        """Whether the mistake is not one of the arguments, so that other forms do not have it."""
        return self.mistake.startswith(("out", "storage"))

    @property
    def arguments(self) -> Arguments:
        return {**self.arrays, **self.options}

    def layout(self, name: str, rank: int) -> Layout:
        found = self.layouts.get(name)
        return found if found is not None and len(found.order) == rank else Layout.plain(rank)

    def to_json(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "element": self.element.value,
            "arrays": {name: _packed(array) for name, array in self.arrays.items()},
            "options": self.options,
            "layouts": {name: layout.to_json() for name, layout in self.layouts.items()},
            "checks": list(self.checks),
            "threads": list(self.threads),
            "out": self.out,
            "mistake": self.mistake,
            "refused": list(self.refused),
        }

    @staticmethod
    def from_json(found: dict[str, Any]) -> Trial:
        return Trial(
            found["function"],
            ElementKind(found["element"]),
            {name: _unpacked(array) for name, array in found["arrays"].items()},
            found["options"],
            {name: Layout.from_json(layout) for name, layout in found["layouts"].items()},
            tuple(found["checks"]),
            tuple(found["threads"]),
            found["out"],
            found["mistake"],
            tuple(found["refused"]),
        )


def _packed(array: Any) -> dict[str, Any]:
    data = zlib.compress(np.ascontiguousarray(array).tobytes(), 9)
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(data).decode(),
    }


def _unpacked(found: dict[str, Any]) -> Any:
    dtype = _BF16 if found["dtype"] == _BF16.name else np.dtype(found["dtype"])
    data = zlib.decompress(base64.b64decode(found["data"]))
    return np.frombuffer(bytearray(data), dtype).reshape(found["shape"])
