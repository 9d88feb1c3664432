"""JAX: derivatives of every function, both modes, second order, and the bits of plain gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.contract.element import FLOATS, ElementKind
from pullback.ops.case import Case
from pullback.ops.lerp.functions import lerp
from pullback.ops.recurrence.functions import linear_scan
from pullback.verify.laws import same_bits, trials
from pullback.verify.subject import Arguments, Subject, subjects
from test_jax import results as several
from test_jax import some

jax = pytest.importorskip("jax")
jnp = jax.numpy

SUBJECTS = list(subjects().values())
FORWARDS = [subject for subject in SUBJECTS if f"{subject.name}_backward" in subjects()]
COTANGENTS = ("dy", "dout", "dh")


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def is_smooth(arguments: Arguments) -> bool:
    """Few numbers, finite, no two alike and none zero: no tie, no edge of a support."""
    floats = [v for v in arguments.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    if not 4 <= max(v.size for v in floats) <= 64:
        return False
    return all(
        v.size
        and np.isfinite(v).all()
        and v.all()
        and abs(v).max() < 100
        and np.unique(v).size == v.size
        for v in floats
    )


def smooth(subject: Subject) -> Arguments:
    def likely(case: Case) -> bool:
        return subject.takes(case) and is_smooth(case.arrays)

    found = (a for _, a in trials(subject, ElementKind.F64, among=likely) if is_smooth(a))
    chosen = next(found, None)
    if chosen is None:
        pytest.skip("no case without ties")
    return chosen


def of_floats(
    subject: Subject, arguments: Arguments, but: frozenset[str] = frozenset()
) -> tuple[Any, list[Any]]:
    """The function of its float arrays alone, and these; but for some."""
    names = [
        name
        for name, value in arguments.items()
        if isinstance(value, np.ndarray) and value.dtype.kind not in "iu" and name not in but
    ]
    rest = {
        name: jax.device_put(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
        if name not in names
    }

    def function(*values: Any) -> Any:
        result = subject.function(**dict(zip(names, values, strict=True)), **rest)
        if isinstance(result, tuple):
            return tuple(array for array in result if jnp.issubdtype(array.dtype, jnp.floating))
        return result

    return function, [jax.device_put(arguments[name]) for name in names]


# --- both modes against differences ---------------------------------------------------------------

STEP = 1e-6
Function = Callable[..., Any]


def random_like(arrays: Any) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.standard_normal(a.shape), arrays)


def inner(first: Any, second: Any) -> Any:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return sum((a * b).sum() for a, b in pairs)


def difference(function: Function, at: Sequence[Any], along: Sequence[Any]) -> Any:
    up, down = (
        function(*(x + step * t for x, t in zip(at, along, strict=True))) for step in (STEP, -STEP)
    )
    return jax.tree.map(lambda u, d: (u - d) / (2 * STEP), up, down)


def derivatives(function: Function, at: Sequence[Any], order: int) -> Iterator[tuple[Any, Any]]:
    """Forward and reverse mode, each with what it should be, along one direction; to a higher order
    those of these two, as functions of all they take."""
    along, n = random_like(at), len(at)
    numeric = difference(function, at, along)
    yield jax.jvp(function, at, along)[1], numeric
    value, pull = jax.vjp(function, *at)
    weights = random_like(value)
    yield inner(pull(weights), along), inner(weights, numeric)
    if order > 1:

        def pushed(*both: Any) -> Any:
            return jax.jvp(function, both[:n], both[n:])

        def pulled(*at: Any) -> Any:
            value, pull = jax.vjp(function, *at)
            return pull(value)

        yield from derivatives(pushed, (*at, *at), order - 1)
        yield from derivatives(pulled, at, order - 1)


def check_derivatives(function: Function, arrays: Sequence[Any], order: int) -> None:
    """Compiled as one: dozens of small programs would take longer to compile than all to run."""
    found = jax.jit(lambda arrays: list(derivatives(function, arrays, order)))(tuple(arrays))
    assert len(found) == 2 * (2**order - 1)
    for pair in found:
        for got, want in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_derivatives_to_second_order(subject: Subject) -> None:
    check_derivatives(*of_floats(subject, smooth(subject)), 2)


# --- the fast path: a gradient is the backward kernel --------------------------------------------


def backward_arguments(
    subject: Subject, arguments: Arguments, results: tuple[Any, ...], cotangent: Any
) -> Arguments:
    """What NumPy's backward function is to be called with, by the names it has."""
    known = {**arguments, "y": results[0], "h": results[0]}
    if len(results) > 1:
        known["output_index"] = known["p"] = results[1]
    known.update(dict.fromkeys(COTANGENTS, cotangent))
    if "weight" in arguments and hasattr(arguments["weight"], "shape"):
        known["num_embeddings"] = len(arguments["weight"])
    backward = subjects()[f"{subject.name}_backward"].function
    return {name: known[name] for name in backward.parameters if name in known}


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("subject", FORWARDS)
def test_gradients_have_the_bits_of_the_backward(subject: Subject, element: ElementKind) -> None:
    backward = subjects()[f"{subject.name}_backward"].function
    rng = np.random.default_rng(0)
    functions, operands, wanted = [], [], []
    for arguments in some(subject, element, 3):
        for name in ("per_sample_weights", "weights"):  # whose gradients have their own functions
            arguments.pop(name, None)
        if "mode" in arguments and arguments["mode"] == "max":
            arguments["return_indices"] = True
        records = subject.function.calculus.records
        extra = records(subject.function.bind((), arguments)) if records else {}
        results = several(subject.function(**{**arguments, **extra}))
        g = np.asarray(rng.standard_normal(results[0].shape)).astype(element.dtype)
        wanted += several(backward(**backward_arguments(subject, arguments, results, g)))
        arguments.pop("return_probabilities", None)
        # No kernel computes the gradient of a target, which may be indices.
        function, arrays = of_floats(subject, arguments, frozenset(subject.function.either))
        functions.append(function)
        operands.append((arrays, g))

    @jax.jit
    def compiled(operands: list[Any]) -> list[Any]:
        found = []
        for function, (arrays, g) in zip(functions, operands, strict=True):
            value, pull = jax.vjp(function, *arrays)
            found += pull((g,) if isinstance(value, tuple) else g)
        return found

    assert wanted
    for got, want in zip(compiled(operands), wanted, strict=True):
        assert same_bits(np.asarray(got), want)


# --- what JAX does with functions -----------------------------------------------------------------


def loss(x: Any) -> Any:
    return (linear_scan(x, lerp(x, x * x, 0.25)) ** 2).sum()


X = np.random.default_rng(1).standard_normal((3, 4))


def test_second_derivatives_agree_in_any_order() -> None:
    forward_over_reverse = jax.jit(jax.hessian(loss))(X)
    for other in (jax.jacrev(jax.jacrev(loss)), jax.jacfwd(jax.jacfwd(loss))):
        np.testing.assert_allclose(jax.jit(other)(X), forward_over_reverse, rtol=1e-10, atol=1e-10)
    pushed = jax.grad(lambda x: jax.jvp(loss, (x,), (jnp.ones_like(x),))[1])
    reverse_over_forward = jax.jit(pushed)(X)
    along = forward_over_reverse.sum((2, 3))
    np.testing.assert_allclose(reverse_over_forward, along, rtol=1e-10, atol=1e-10)


def test_third_order() -> None:
    check_derivatives(jax.grad(loss), [X / 2], 2)


def test_control_flow_and_checkpoints() -> None:
    def steps(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            carry = jax.lax.cond(carry.sum() > 0, lambda c: linear_scan(c, c), lambda c: -c, carry)
            return 0.3 * carry, carry.sum()

        return jax.lax.scan(body, x, None, length=4)[1].sum()

    check_derivatives(steps, [X], 2)
    plain = jax.jit(jax.grad(steps))(X)
    np.testing.assert_array_equal(jax.jit(jax.grad(jax.checkpoint(steps)))(X), plain)
    batch = jax.jit(jax.vmap(jax.grad(steps)))(X[None])
    np.testing.assert_allclose(batch[0], plain, rtol=1e-12)


def test_transposition_of_linear_functions() -> None:
    x, g = jnp.asarray(X), jnp.asarray(X[::-1])
    for function in (subjects()["cumsum"].function, lambda x: lerp(x, 2 * x, 0.25)):
        (adjoint,) = jax.linear_transpose(function, x)(g)
        np.testing.assert_allclose((adjoint * x).sum(), (g * function(x)).sum(), rtol=1e-12)


def test_a_batch_of_lookups_is_one_lookup() -> None:
    """One by one, the gradient of a shared table would be a table per member of the batch."""
    weight, indices = jnp.asarray(X), jnp.asarray([[0, 2, 2], [1, 0, 2]])
    embedding = subjects()["embedding"].function

    def loss(weight: Any) -> Any:
        return (jax.vmap(lambda i: embedding(weight, i))(indices) ** 2).sum()

    assert "scan" not in str(jax.make_jaxpr(jax.grad(loss))(weight))
    want = jax.grad(lambda weight: (embedding(weight, indices) ** 2).sum())(weight)
    np.testing.assert_array_equal(jax.grad(loss)(weight), want)


def test_numpy_tangents_and_cotangents_are_welcome() -> None:
    x = jnp.asarray(X)
    value, pull = jax.vjp(linear_scan, x, x)
    assert pull(X)[0].shape == jax.jvp(linear_scan, (x, x), (X, X))[1].shape == value.shape


def test_numpy_arrays_among_jax_arrays_are_jax_arrays() -> None:
    x, ids = np.random.default_rng(0).normal(size=(4, 3)), np.array([0, 1, 1, 0])
    want = pb.segment_sum(x, ids, 2)
    for data, index in ((jnp.asarray(x), ids), (x, jnp.asarray(ids))):
        got = pb.segment_sum(data, index, 2)
        assert isinstance(got, jax.Array)
        assert (np.asarray(got) == want).all()
    summed = jax.jit(lambda data: pb.segment_sum(data, ids, 2))(x)
    assert (np.asarray(summed) == want).all()
    check_derivatives(lambda data: pb.segment_prod(data, ids, 2), [x], 2)
    assert jax.grad(pb.cumprod)(2.0) == 1
    with jax.enable_x64(False):
        huge = np.array([0, 1, 1 << 32, 0])  # not 0, whatever JAX has for integers
        with pytest.raises(pb.IndexOutOfRange):
            pb.segment_sum(jnp.ones((4, 3)), huge, 2)
        with pytest.raises(pb.Unsupported, match="a jax array"):
            pb.lerp(jnp.ones(3), np.ones(3), 0.5)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "logcumsumexp", "softmax"])
def test_jet_gives_taylor_coefficients(name: str) -> None:
    from jax.experimental.jet import jet

    function = getattr(pb, name)
    theirs = {
        "cumsum": jnp.cumsum,
        "cumprod": jnp.cumprod,
        "cummax": jax.lax.cummax,
        "logcumsumexp": lambda x: jnp.log(jnp.cumsum(jnp.exp(x))),
        "softmax": jax.nn.softmax,
    }[name]
    x = jnp.array([1.0, -2.0, 3.0, 0.5])
    series = [jnp.array([1.0, 2.0, -1.0, 0.3]), jnp.arange(4.0), jnp.array([0.5, -1.0, 2.0, 1.0])]
    got = jet(lambda x: function(jnp.sin(x)), (x,), (series,))
    want = jet(lambda x: theirs(jnp.sin(x)), (x,), (series,))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), got, want)
