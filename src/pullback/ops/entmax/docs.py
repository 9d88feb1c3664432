"""What is said of entmax and of the Fenchel-Young losses in their docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BITS, EMPTY
from pullback.ops.simplex.docs import BACKWARD, COST, FORWARD, RESULT, SPECIAL
from pullback.plan.docstring import Doc

_ALPHA = "At least 1. A number, or an array of extent 1 along the axis that broadcasts over rows."
_TARGET = (
    "Classes, in the shape of `x` without the axis, or distributions, in the shape of `x`. A class "
    "out of range is an `IndexOutOfRange`."
)
_LOSS = {
    **FORWARD,
    "target": _TARGET,
    "alpha": "A number, at least 1.",
    "return_probabilities": "Return the map of `x` too; it counts as a constant.",
}
_LOSS_BACKWARD = {
    "dy": "Gradient of the losses, one for each row.",
    "p": "Probabilities of the forward call: `return_probabilities` gives them.",
    "target": "That of the forward call.",
    "alpha": "That of the forward call.",
    "axis": "That of the forward call.",
}
_LOSS_RESULT = """\
loss : A value for each row: of the shape of `x` without the axis. With `return_probabilities`, \
the tuple `(loss, p)`.
p : Of the shape of `x`."""


def _loss(name: str, omega: str, example: str) -> Doc:
    return Doc(
        parameters=_LOSS,
        returns=_LOSS_RESULT,
        rules=f"loss = Ω*(x) + Ω(t) - <x, t>, with Ω {omega}: never negative, and exactly 0 where "
        f"`{name}` of the row is the target. A fully masked row has loss 0 and gradient 0, NaN "
        f"gives NaN. {EMPTY}",
        cost=COST,
        example=example,
    )


def _loss_backward(example: str) -> Doc:
    return Doc(
        parameters=_LOSS_BACKWARD,
        returns="dx : Of the shape of `p`.",
        rules=f"dx = (p - t)·dy, with t the target. A fully masked row has gradient 0. {EMPTY}",
        cost=COST,
        example=example,
    )


DOCS = {
    "entmax": Doc(
        parameters={**FORWARD, "alpha": _ALPHA},
        returns=RESULT,
        rules="p = max((α-1)·x - τ, 0)^(1/(α-1)), with τ such that Σ p = 1. As a number, α = 1, "
        "1.5 and 2 have the bits of `softmax`, `entmax15` and `sparsemax`. " + SPECIAL.format(""),
        cost=f"Time is linear in the size of the input for each step of Newton's method. {BITS}",
        example="""\
        >>> pb.entmax(np.array([1.0, 0.5, -1.0]), 2.0)
        array([0.75, 0.25, 0.  ])
        >>> pb.entmax(np.array([[1.0, 1.0, -9.0]]), 1.25).round(6)
        array([[0.5, 0.5, 0. ]])""",
    ),
    "entmax_backward": Doc(
        parameters={
            **BACKWARD,
            "alpha": "That of the forward call.",
            "x": "Input of the forward call. Needed if alpha is an array.",
        },
        returns="""\
dx : Of the shape of `dy`.
dalpha : Of the shape of `alpha`, if that is an array.""",
        rules="dx = s·(dy - Σ s·dy / Σ s) with s = p^(2-α). Where α > 1 and y = 0, `dy` is not "
        f"read and dx is 0. A NaN in `y` fills its row. {EMPTY}",
        cost=COST,
        example="""\
        >>> y = np.array([0.75, 0.25, 0.0])
        >>> pb.entmax_backward(np.array([1.0, 0.0, 5.0]), y, 2.0)
        array([ 0.5, -0.5,  0. ])""",
    ),
    "softmax_loss": _loss(
        "softmax",
        "the negative entropy (cross-entropy, for classes)",
        """\
        >>> pb.softmax_loss(np.array([[0.0, 0.0], [50.0, -np.inf]]), np.array([0, 0])).round(6)
        array([0.693147, 0.      ])""",
    ),
    "softmax_loss_backward": _loss_backward(
        """\
        >>> p = np.array([[0.5, 0.5]])
        >>> pb.softmax_loss_backward(np.ones(1), p, np.array([0]))
        array([[-0.5,  0.5]])"""
    ),
    "sparsemax_loss": _loss(
        "sparsemax",
        "half the squared norm less a half",
        """\
        >>> x = np.array([[1.0, 0.5, -1.0]])
        >>> pb.sparsemax_loss(x, pb.sparsemax(x))
        array([0.])
        >>> pb.sparsemax_loss(x, np.array([0]))
        array([0.0625])""",
    ),
    "sparsemax_loss_backward": _loss_backward(
        """\
        >>> p = np.array([[0.75, 0.25, 0.0]])
        >>> pb.sparsemax_loss_backward(np.ones(1), p, np.array([0]))
        array([[-0.25,  0.25,  0.  ]])"""
    ),
    "entmax15_loss": _loss(
        "entmax15",
        "the negative Tsallis entropy of order 1.5",
        """\
        >>> pb.entmax15_loss(np.array([[9.0, 0.0]]), np.array([0]))
        array([0.])""",
    ),
    "entmax15_loss_backward": _loss_backward(
        """\
        >>> pb.entmax15_loss_backward(np.full(1, 2.0), np.array([[0.5, 0.5]]), np.array([1]))
        array([[ 1., -1.]])"""
    ),
    "entmax_loss": _loss(
        "entmax",
        "the negative Tsallis entropy of order α",
        """\
        >>> pb.entmax_loss(np.array([[1.0, 0.5, -1.0]]), np.array([0]), 2.0)
        array([0.0625])""",
    ),
    "entmax_loss_backward": _loss_backward(
        """\
        >>> pb.entmax_loss_backward(np.ones(1), np.array([[0.5, 0.5]]), np.array([1]), 2.0)
        array([[ 0.5, -0.5]])"""
    ),
}
