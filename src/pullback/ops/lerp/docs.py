"""What is said of lerp in its docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BITS, LINEAR
from pullback.plan.docstring import Doc

DOCS = {
    "lerp": Doc(
        parameters={
            "a": "Any shape that broadcasts with the others.",
            "b": "Any shape that broadcasts with the others.",
            "weight": "A number, which is a constant kept in double, or an array, which has a "
            "gradient.",
        },
        returns="y : Of the shape that `a`, `b` and `weight` broadcast to.",
        rules="y = a + w·(b - a) where |w| < 0.5, and b - (b - a)·(1 - w) elsewhere: exact at w = "
        "0 and w = 1 for finite `a` and `b`, and lerp(a, a, w) = a. Empty arrays give empty ones.",
        cost=f"{LINEAR} {BITS}",
        example="""\
        >>> pb.lerp(np.array([0.0, 10.0]), np.array([1.0, 20.0]), 0.25)
        array([ 0.25, 12.5 ])
        >>> pb.lerp(np.zeros(1), np.ones(1), np.array([[0.0], [1.0]]))
        array([[0.],
               [1.]])""",
    ),
    "lerp_backward": Doc(
        parameters={
            "dy": "Gradient of the output, of its shape.",
            "weight": "That of the forward call.",
            "a": "That of the forward call. Needed if the weight is an array; otherwise only its "
            "shape matters, by default that of `dy`.",
            "b": "As `a`.",
        },
        returns="""\
da : (1 - w)·dy, summed over what was broadcast.
db : w·dy, summed over what was broadcast.
dweight : dy·(b - a), summed over what was broadcast; only if the weight is an array.""",
        rules="Sums are taken in float64 and in a fixed order. Gradients of empty arrays are "
        "empty, those of broadcast ones over an empty axis 0.",
        cost=f"{LINEAR} {BITS}",
        example="""\
        >>> pb.lerp_backward(np.array([1.0, 2.0]), 0.25)
        (array([0.75, 1.5 ]), array([0.25, 0.5 ]))
        >>> weight = np.array(0.5)
        >>> pb.lerp_backward(np.ones(2), weight, np.zeros(2), np.ones(2))[2]
        array(2.)""",
    ),
}
