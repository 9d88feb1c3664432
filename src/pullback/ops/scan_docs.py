"""What the keywords of scans mean, for every family that has them."""

AXIS = "Along which to scan. Negative ones count from the last. Rank 0 is a row of one."
REVERSE = "Walk the axis from its far end."
EXCLUSIVE = "Give what was scanned before each element; the first gets `initial`, or the identity."
INITIAL = (
    "Scanned before the first element. Broadcasts to the shape of the array without the axis; with "
    "`offsets` that has the number of pieces in place of the axis."
)
OFFSETS = (
    "Borders of pieces along the axis, `[pieces + 1]`: from 0, never decreasing, to the extent. "
    "Each piece is scanned by itself, to the bit."
)

SCAN = {"axis": AXIS, "exclusive": EXCLUSIVE, "initial": INITIAL, "offsets": OFFSETS}
FORWARD = {**SCAN, "reverse": REVERSE}
BACKWARD = {
    "axis": "That of the forward call.",
    "reverse": "That of the forward call.",
    "exclusive": "That of the forward call.",
    "initial": "That of the forward call. If given, its gradient is returned too.",
    "offsets": "Those of the forward call.",
}

EMPTY = "An axis of extent 0 gives an empty array."
BITS = "On the CPU the bits do not depend on strides, on the number of threads or on the machine."
LINEAR = "Time is linear in the size of the input."
