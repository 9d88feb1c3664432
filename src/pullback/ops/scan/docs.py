"""What is said of the scans in their docstrings."""

from __future__ import annotations

from pullback.ops.scan_docs import BACKWARD, BITS, EMPTY, FORWARD, LINEAR
from pullback.plan.docstring import Doc

_X = "Any rank, any strides."
_EXTREMUM = {
    **FORWARD,
    "x": _X,
    "return_indices": "Return positions too.",
    "ties": "Which of equal extrema is reported and receives the gradient: the first or the last "
    "that the scan meets. Values do not depend on it, but for the sign of a zero.",
}
_DY = "Gradient of the output, of its shape."
_EXTREMUM_BACKWARD = {
    **BACKWARD,
    "dy": _DY,
    "x": "Input of the forward call.",
    "ties": "That of the forward call.",
}
_SAVED = "Output of the forward call; in float16 and bfloat16 it is not read and may be None."
_GRADIENT = "dx : Of the shape of `dy`. With `initial`, the tuple `(dx, d_initial)`."
_RESULT = "y : Of the shape of `x`."
_VALUES = """\
y : Of the shape of `x`. With `return_indices`, the tuple `(y, indices)`.
indices : int64 positions along the axis, in the array as given (int32 in JAX without x64)."""
_NAN = (
    "NaN wins and, once met, stays. NaNs tie with each other, as do zeros of either sign; the "
    "value is the winner's own bits. The identity, for `exclusive` without `initial`, is {0}."
)

_COST = f"{LINEAR} {BITS}"

DOCS = {
    "cumsum": Doc(
        parameters={**FORWARD, "x": _X},
        returns=_RESULT,
        rules=f"y[j] = x[0] + … + x[j]. NaN and infinities go on as in any sum. {EMPTY} float16 "
        "and bfloat16 are summed in float32, the others in float64 or with compensation.",
        cost=_COST,
        example="""\
        >>> x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> pb.cumsum(x)
        array([[ 1.,  3.,  6.],
               [ 4.,  9., 15.]])
        >>> pb.cumsum(x, axis=0, exclusive=True, initial=10.0)
        array([[10., 10., 10.],
               [11., 12., 13.]])
        >>> pb.cumsum(x[0], offsets=np.array([0, 1, 3]))
        array([1., 2., 5.])""",
    ),
    "cumsum_backward": Doc(
        parameters={**BACKWARD, "dy": _DY},
        returns=_GRADIENT,
        rules=f"dx[j] = dy[j] + … + dy[n-1]: `cumsum` the other way. {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.cumsum_backward(np.array([1.0, 2.0, 3.0]))
        array([6., 5., 3.])""",
    ),
    "cumprod": Doc(
        parameters={**FORWARD, "x": _X},
        returns=_RESULT,
        rules="y[j] = x[0]·…·x[j], carried in float64: a product that leaves the range of the "
        f"dtype on the way may come back. {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.cumprod(np.array([2.0, 0.0, 3.0]))
        array([2., 0., 0.])
        >>> pb.cumprod(np.array([2.0, 3.0, 4.0]), reverse=True)
        array([24., 12.,  4.])""",
    ),
    "cumprod_backward": Doc(
        parameters={**BACKWARD, "dy": _DY, "x": "Input of the forward call.", "y": _SAVED},
        returns=_GRADIENT,
        rules="dx[j] = y[j-1]·R[j] with R[j] = dy[j] + x[j+1]·R[j+1]. Nothing is divided, so the "
        f"gradient is exact with any number of zeros. {EMPTY}",
        cost=_COST,
        example="""\
        >>> x = np.array([2.0, 0.0, 3.0])
        >>> pb.cumprod_backward(np.ones(3), x, pb.cumprod(x))
        array([1., 8., 0.])""",
    ),
    "logcumsumexp": Doc(
        parameters={**FORWARD, "x": _X},
        returns=_RESULT,
        rules="y[j] = log(e^x[0] + … + e^x[j]), relative to the running maximum: nothing "
        f"overflows. Leading -inf gives -inf, +inf gives +inf from there on, NaN stays. {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.logcumsumexp(np.array([-np.inf, 0.0, 1000.0]))
        array([ -inf,    0., 1000.])""",
    ),
    "logcumsumexp_backward": Doc(
        parameters={**BACKWARD, "dy": _DY, "x": "Input of the forward call.", "y": _SAVED},
        returns=_GRADIENT,
        rules="dx[j] = e^(x[j]-y[j])·S[j] with S[j] = dy[j] + e^(y[j]-y[j+1])·S[j+1]: no exponent "
        "is positive. A prefix of -inf has gradient 0; the first +inf takes the weight of every "
        f"later output. {EMPTY}",
        cost=_COST,
        example="""\
        >>> x = np.array([-np.inf, 0.0, 0.0])
        >>> y = pb.logcumsumexp(x)
        >>> pb.logcumsumexp_backward(np.array([0.0, 0.0, 2.0]), x, y).round(6)
        array([0., 1., 1.])""",
    ),
    "cummax": Doc(
        parameters=_EXTREMUM,
        returns=_VALUES,
        rules=f"y[j] = max(x[0], …, x[j]). {_NAN.format('-inf')} {EMPTY}",
        cost=_COST,
        example="""\
        >>> x = np.array([1.0, 3.0, 3.0, 2.0])
        >>> pb.cummax(x, return_indices=True)
        (array([1., 3., 3., 3.]), array([0, 1, 1, 1]))
        >>> pb.cummax(x, ties="last", return_indices=True)[1]
        array([0, 1, 2, 2])""",
    ),
    "cummin": Doc(
        parameters=_EXTREMUM,
        returns=_VALUES,
        rules=f"y[j] = min(x[0], …, x[j]). {_NAN.format('+inf')} {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.cummin(np.array([3.0, 1.0, 2.0, np.nan]))
        array([ 3.,  1.,  1., nan])""",
    ),
    "cummax_backward": Doc(
        parameters=_EXTREMUM_BACKWARD,
        returns=_GRADIENT,
        rules="dx[k] is the sum of dy[j] over the j whose running maximum is x[k]; of equals, and "
        f"of NaNs, that of the rule. {EMPTY}",
        cost=_COST,
        example="""\
        >>> x = np.array([1.0, 3.0, 3.0, 2.0])
        >>> pb.cummax_backward(np.ones(4), x)
        array([1., 3., 0., 0.])
        >>> pb.cummax_backward(np.ones(4), x, ties="last")
        array([1., 1., 2., 0.])""",
    ),
    "cummin_backward": Doc(
        parameters=_EXTREMUM_BACKWARD,
        returns=_GRADIENT,
        rules="dx[k] is the sum of dy[j] over the j whose running minimum is x[k]; of equals, and "
        f"of NaNs, that of the rule. {EMPTY}",
        cost=_COST,
        example="""\
        >>> pb.cummin_backward(np.ones(3), np.array([3.0, 1.0, 2.0]))
        array([1., 2., 0.])""",
    ),
}
