"""The functions as JAX primitives: one that calls, and one that is the derivative of a call.

`call_p` runs a function's plan (jax_target). Its derivative is `tangent_p`, linear in its tangents:
evaluated, in forward mode, it is the calculus' `push`; transposed, for a gradient, it is `pull`,
the backward kernel. Rules call public functions, so these two primitives differentiate each other,
to any order. A function without these rules is written out (`composed`), and JAX differentiates
that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pullback.frontends import jax_entry
from pullback.frontends.jax_partition import as_typed, partitioned, result_specs
from pullback.frontends.jax_site import ARRAYS, Origin, Site
from pullback.frontends.jax_target import TARGET, custom_call
from pullback.ops.calculus import asked, batched

Array = Any
Arrays = Mapping[Origin, Array]

RESULT: Origin = ("result", None)
RECORDED: Origin = ("recorded", None)


def _present(tangents: Sequence[Any]) -> list[int]:
    """Positions of the tangents that are not known to be zero."""
    return [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]


def _unknown(operands: Sequence[Any]) -> list[int]:
    """Positions of the operands that a transposition is about."""
    return [i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)]


# --- a call ---------------------------------------------------------------------------------------

call_p = Primitive("pullback")
call_p.multiple_results = True


def _types(*operands: Any, site: Site) -> list[Any]:
    """Of the results: on the mesh of the operands, and varying over the same of its axes."""
    specs, model = site.call(operands).specs, operands[0]
    shapes = [spec.shape for spec in specs]
    dtypes = [jax.dtypes.canonicalize_dtype(spec.element.dtype) for spec in specs]
    mesh = model.sharding.mesh
    if getattr(mesh, "empty", True):
        return [jax.core.ShapedArray(*both) for both in zip(shapes, dtypes, strict=True)]
    return [
        model.update(
            shape=shape,
            dtype=dtype,
            weak_type=False,
            sharding=jax.sharding.NamedSharding(mesh, spec),
        )
        for shape, dtype, spec in zip(
            shapes, dtypes, result_specs(site, operands, shapes), strict=True
        )
    ]


def _run(*arrays: Array, site: Site, part: bool = False, exported: bool = False) -> list[Array]:
    """The custom call. Positions are int64 in it, whatever JAX's setting is outside. `part`: its
    indices are one device's; `exported`: another process may run it."""
    call = custom_call(site.function.name, site.call(arrays), part)
    named = dict(zip(site.operands, arrays, strict=True))
    with jax.enable_x64(True):
        operands = [
            named[origin].astype(dtype)
            for origin, dtype in zip(call.operands, call.dtypes, strict=True)
        ]
        results = [jax.ShapeDtypeStruct(spec.shape, spec.element.dtype) for spec in call.specs]
        if call.workspace:
            results.append(jax.ShapeDtypeStruct((call.workspace,), np.uint8))
        name = jax_entry.TARGET if exported else TARGET
        target = jax.ffi.ffi_call(name, results, input_output_aliases=dict(call.aliases))
        found = target(*operands, launch=np.array(call.launch), about=call.about)[: len(call.specs)]
    return [array.astype(jax.dtypes.canonicalize_dtype(array.dtype)) for array in found]


def _call_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, site: Site
) -> tuple[Sequence[Array], Sequence[Any]]:
    calculus, moving = site.calculus, _present(tangents)
    # Python's numbers, which jax.grad passes on as they are.
    primals = [jnp.asarray(value) if isinstance(value, float) else value for value in primals]
    arrays: dict[Origin, Array] = dict(zip(site.operands, primals, strict=True))
    moved = tuple(site.operands[i] for i in moving)
    if calculus.composed is not None:
        written = _written_out(site, arrays, moved)
        steps = [tangents[i] for i in moving]
        _, changes = jax.jvp(written, [primals[i] for i in moving], steps)
        return call_p.bind(*primals, site=site), changes
    extra = calculus.records(site.others) if calculus.records else {}
    values = call_p.bind(*primals, site=site.given(**extra))
    arrays[RESULT] = values[0]
    if extra:
        arrays[RECORDED] = values[-1]
    assert calculus.pull is not None
    assert calculus.push is not None
    rules = {*asked(calculus.pull), *asked(calculus.push)}
    kept = tuple(origin for origin in arrays if origin[0] in rules)
    shapes = tuple((origin[0], array.shape) for origin, array in arrays.items())
    tangent = tangent_p.bind(
        *(tangents[i] for i in moving),
        *(arrays[origin] for origin in kept),
        derivative=Derivative(site, moved, kept, shapes, jax.typeof(values[0])),
    )
    visible = values[: len(site.call(primals).returns)]
    still = (ad.Zero(jax.typeof(value).to_tangent_aval()) for value in visible[1:])
    return visible, [tangent, *still]


def _written_out(site: Site, arrays: Arrays, free: Sequence[Origin]) -> Callable[..., list[Array]]:
    """The function as its calculus writes it, of the arguments in `free`."""

    def written(*values: Array) -> list[Array]:
        found = {**arrays, **dict(zip(free, values, strict=True))}
        results = site.apply(site.calculus.composed, arrays=found)
        return list(results) if isinstance(results, tuple) else [results]

    return written


def _call_transpose(cotangents: Sequence[Any], *operands: Any, site: Site) -> list[Any]:
    """For a function that is linear in the operands asked for."""
    free = [site.operands[i] for i in _unknown(operands)]
    arrays = dict(zip(site.operands, operands, strict=True))
    models = [arrays.pop(origin).aval for origin in free]
    if site.calculus.composed is not None:
        adjoint = jax.linear_transpose(_written_out(site, arrays, free), *models)
        found = adjoint([ad.instantiate_zeros(cotangent) for cotangent in cotangents])
        gradients = dict(zip(free, found, strict=True))
    else:
        given = {origin[0]: array.shape for origin, array in arrays.items()}
        asked_for = {origin[0]: model.shape for origin, model in zip(free, models, strict=True)}
        shapes, wanted = {**given, **asked_for}, frozenset(asked_for)
        g = ad.instantiate_zeros(cotangents[0])
        rule = site.calculus.pull
        pulled = site.apply(rule, g, arrays=arrays, shapes=shapes, wanted=wanted)
        gradients = {
            origin: as_typed(pulled[origin[0]], model)
            for origin, model in zip(free, models, strict=True)
        }
    return [gradients.get(origin) for origin in site.operands]


def _call_batch(
    arrays: Sequence[Array], axes: Sequence[int | None], *, site: Site
) -> tuple[Sequence[Array], Sequence[int]]:
    leading, mapped = list(arrays), []
    for i, axis in enumerate(axes):
        if axis is not None:
            leading[i] = jnp.moveaxis(arrays[i], axis, 0)
            mapped.append(i)
    names = frozenset(site.operands[i][0] for i in mapped)
    arguments = site.arguments(dict(zip(site.operands, leading, strict=True)))
    size = leading[mapped[0]].shape[0]
    results = batched(ARRAYS, site.function, size, names, arguments)
    if results is None:
        results = _one_by_one(leading, mapped, site)
    elif not isinstance(results, tuple):
        results = (results,)
    return results, [0] * len(results)


def _one_by_one(leading: Sequence[Array], mapped: Sequence[int], site: Site) -> Sequence[Array]:
    """A batch as a loop of XLA's."""

    def member(slices: Sequence[Array]) -> Sequence[Array]:
        operands = list(leading)
        for i, array in zip(mapped, slices, strict=True):
            operands[i] = array
        return call_p.bind(*operands, site=site)  # type: ignore[no-any-return]

    return jax.lax.map(member, [leading[i] for i in mapped])  # type: ignore[no-any-return]


call_p.def_abstract_eval(_types)
mlir.register_lowering(call_p, partitioned(call_p, _run), platform="cpu")
ad.primitive_jvps[call_p] = _call_jvp
ad.primitive_transposes[call_p] = _call_transpose
batching.primitive_batchers[call_p] = _call_batch


# --- its derivative -------------------------------------------------------------------------------

tangent_p = Primitive("pullback_tangent")


@dataclass(frozen=True)
class Derivative:
    """Of a call: by which operands, and what its rules need to be given. The operands of the
    primitive are the tangents of those in `moved`, then the arrays in `kept`."""

    site: Site
    moved: tuple[Origin, ...]
    kept: tuple[Origin, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    result: Any

    def push(self, *operands: Array) -> Array:
        """The change of the result, from tangents and what was kept."""
        shapes, count = dict(self.shapes), len(self.moved)
        tangents = {
            origin[0]: jnp.zeros(shapes[origin[0]], self.result.dtype)
            for origin in self.site.operands
            if self.site.is_float(origin) and origin not in self.moved
        }
        for origin, tangent in zip(self.moved, operands, strict=False):
            tangents[origin[0]] = tangent
        arrays = dict(zip(self.kept, operands[count:], strict=True))
        return self.site.apply(self.site.calculus.push, tangents, arrays=arrays, shapes=shapes)

    def pull(self, cotangent: Array, *operands: Any) -> Mapping[str, Array]:
        """The gradients of the arguments whose tangents are not known."""
        wanted = frozenset(self.moved[i][0] for i in _unknown(operands))
        arrays = dict(zip(self.kept, operands[len(self.moved) :], strict=True))
        rule, shapes = self.site.calculus.pull, dict(self.shapes)
        found = self.site.apply(rule, cotangent, arrays=arrays, shapes=shapes, wanted=wanted)
        return {name: gradient for name, gradient in found.items() if name in wanted}


def _tangent_type(*operands: Any, derivative: Derivative) -> Any:
    return derivative.result


def _push(*operands: Array, derivative: Derivative) -> Array:
    return derivative.push(*operands)


def _tangent_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, derivative: Derivative
) -> tuple[Array, Any]:
    """Linear in its tangents, so that part is the primitive again; in what was kept it is not."""
    value = tangent_p.bind(*primals, derivative=derivative)
    count, moving, terms = len(derivative.moved), _present(tangents), []
    linear = [i for i in moving if i < count]
    curved = [i for i in moving if i >= count]
    if linear:
        fewer = replace(derivative, moved=tuple(derivative.moved[i] for i in linear))
        steps = [tangents[i] for i in linear]
        terms.append(tangent_p.bind(*steps, *primals[count:], derivative=fewer))
    if curved:

        def along(*values: Array) -> Array:
            operands = list(primals)
            for i, operand in zip(curved, values, strict=True):
                operands[i] = operand
            return derivative.push(*operands)

        points, steps = [primals[i] for i in curved], [tangents[i] for i in curved]
        terms.append(jax.jvp(along, points, steps)[1])
    return value, sum(terms[1:], terms[0]) if terms else ad.Zero.from_primal_value(value)


def _tangent_transpose(cotangent: Any, *operands: Any, derivative: Derivative) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    gradients = derivative.pull(cotangent, *operands)
    moved = zip(derivative.moved, operands, strict=False)
    found = [
        as_typed(gradients.get(origin[0]), operand.aval)
        if ad.is_undefined_primal(operand)
        else None
        for origin, operand in moved
    ]
    return found + [None] * len(derivative.kept)


def _tangent_batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, derivative: Derivative
) -> tuple[Array, int]:
    return jax.vmap(derivative.push, tuple(axes))(*operands), 0


tangent_p.def_abstract_eval(_tangent_type)
tangent_p.def_impl(_push)
mlir.register_lowering(tangent_p, mlir.lower_fun(_push, multiple_results=False))
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
batching.primitive_batchers[tangent_p] = _tangent_batch
