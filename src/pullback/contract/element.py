"""The one dtype table: what an element is called, how wide it is, what it is summed in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np


class ElementKind(Enum):
    """Element types: four floats for data, two integers for auxiliary tensors."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I32 = "i32"
    I64 = "i64"

    @staticmethod
    def of(array: Any) -> ElementKind:
        """The kind of a NumPy array or scalar, a torch tensor, a JAX array or a tensor view."""
        kind = getattr(array, "element", None)
        if isinstance(kind, ElementKind):
            return kind
        kind = kind_of_dtype(getattr(array, "dtype", None))
        if kind is None:
            from pullback.contract.errors import Unsupported

            raise Unsupported(
                "ElementKind.of", "array", f"an array of {FLOAT_NAMES}, i32 or i64", describe(array)
            )
        return kind

    @property
    def row(self) -> ElementRow:
        return TABLE[self]

    @property
    def is_float(self) -> bool:
        return TABLE[self].is_float

    @property
    def itemsize(self) -> int:
        return TABLE[self].dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        return TABLE[self].dtype

    @property
    def accumulator(self) -> ElementKind:
        """What sums of this element are carried in before the one rounding at the end."""
        return TABLE[self].accumulator


class IndexElementKind(Enum):
    """Element types of index tensors."""

    I32 = "i32"
    I64 = "i64"


@dataclass(frozen=True, slots=True)
class ElementRow:
    """One row of the table. `storage` is the Numba type a kernel sees; f16 and bf16 live in
    integers of different signedness, so that the type alone tells them apart."""

    dtype: np.dtype[Any]
    long_name: str
    storage: str
    accumulator: ElementKind
    is_float: bool
    epsilon: float


_F, _E = ElementKind, np.dtype
TABLE: dict[ElementKind, ElementRow] = {
    _F.F16: ElementRow(_E(np.float16), "float16", "int16", _F.F32, True, 2.0**-10),
    _F.BF16: ElementRow(_E(ml_dtypes.bfloat16), "bfloat16", "uint16", _F.F32, True, 2.0**-7),
    _F.F32: ElementRow(_E(np.float32), "float32", "float32", _F.F64, True, 2.0**-23),
    _F.F64: ElementRow(_E(np.float64), "float64", "float64", _F.F64, True, 2.0**-52),
    _F.I32: ElementRow(_E(np.int32), "int32", "int32", _F.I64, False, 0.0),
    _F.I64: ElementRow(_E(np.int64), "int64", "int64", _F.I64, False, 0.0),
}
FLOATS: tuple[ElementKind, ...] = tuple(k for k, row in TABLE.items() if row.is_float)
INDICES: tuple[ElementKind, ...] = tuple(k for k, row in TABLE.items() if not row.is_float)
FLOAT_NAMES = ", ".join(TABLE[k].long_name for k in FLOATS)

_BY_NAME = {row.long_name: kind for kind, row in TABLE.items()}


@lru_cache(maxsize=256)
def kind_of_dtype(dtype: Any) -> ElementKind | None:
    """The kind of a NumPy, torch or JAX dtype; None for anything the table has not."""
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return None
    return _BY_NAME.get(str(dtype).removeprefix("torch."))


def cast_of(array: Any, argument: str, name: str) -> str:
    """What helps, as the array's own library spells it: a cast, or for complex numbers, of which a
    cast would drop the imaginary part, the two parts."""
    dtype = str(getattr(array, "dtype", ""))
    if "complex" in dtype:
        return f"{argument}.real and {argument}.imag are"
    torch = dtype.startswith("torch.")
    return (f"{argument}.to(torch.{name})" if torch else f"{argument}.astype({name!r})") + " casts"


def describe(value: Any) -> str:
    """How an unfit value is named in a sentence: its dtype if it is an array, else its type."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return f"{dtype.name} in foreign byte order"
    if dtype is not None:
        return f"an array of {str(dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"
