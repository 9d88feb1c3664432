"""What the dtypes differ in, as far as the simplex kernels are concerned: one row for each."""

from typing import NamedTuple

from numba import types

CLASSES = 8  # lanes of one vector
LANES = 4 * CLASSES  # of a step: their chains of arithmetic hide each other's latency
HALF = LANES // 2  # of one that has no more
GROUP = 2 * CLASSES  # short rows of an item


class Traits(NamedTuple):
    # Neighbours come apart by pairs: of a step those at even places come first, then the others.
    paired: bool = False
    # So few digits that exponentials, products and sums may be shorter.
    brief: bool = False
    # How close to a threshold is close enough: rounding, or what the dtype cannot tell.
    enough: float = 2.0**-53
    # Whether a search may begin where a few elements lead. What they are depends on their places,
    # and the way to a threshold shows in its last bits: too fine for all dtypes but f64.
    hinted: bool = True
    # Positions whose terms, if none is negative, add up in the compute type: what 32 roundings in
    # a row take off is far below what a half can tell.
    run: int = LANES


F16, BF16 = types.int16, types.uint16  # their storage
TRAITS = {
    F16: Traits(run=8 * LANES),
    BF16: Traits(paired=True, brief=True, enough=2.0**-40, run=8 * LANES),
    types.float32: Traits(),
    types.float64: Traits(hinted=False),
}


def traits(pointer: types.CPointer) -> Traits:
    return TRAITS[pointer.dtype]
