"""What the dtypes differ in, as far as the simplex kernels are concerned: one row for each."""

from typing import NamedTuple

from numba import types


class Traits(NamedTuple):
    # So few digits that exponentials, products and sums may be shorter.
    brief: bool = False
    # How close to a threshold is close enough: rounding, or what the dtype cannot tell.
    enough: float = 2.0**-53
    # Whether a search may begin where a few elements lead. What they are depends on their places,
    # and the way to a threshold shows in its last bits: too fine for all dtypes but f64.
    hinted: bool = True


TRAITS = {
    types.int16: Traits(),
    types.uint16: Traits(brief=True, enough=2.0**-40),
    types.float32: Traits(),
    types.float64: Traits(hinted=False),
}


def traits(pointer: types.CPointer) -> Traits:
    return TRAITS[pointer.dtype]
