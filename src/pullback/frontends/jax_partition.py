"""Calls on sharded arrays: shardings of free axes are kept, and that of the axis a function works
along where it has a form for parts (ops/*/sharded.py); other axes are gathered.

XLA knows nothing of a custom call and gathers all its operands. `custom_partitioning` lets a call
say how shardings spread (a Shardy rule) and what each device runs on its part: the same function.
On explicit meshes shardings are part of a type, and `result_specs` finds those of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from math import prod
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.mlir import ir
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from pullback.contract.imports import resolve
from pullback.frontends.jax_site import Site
from pullback.internals.jax import ask_for_devices
from pullback.ops.axes import Axes, Names, axes_of

Array = Any
Run = Callable[..., list[Array]]
Shape = tuple[int, ...]
Specs = Sequence[Sequence[Any]]  # what a PartitionSpec has for each axis


class Layout:
    """The axes of a call by operand and by result."""

    def __init__(self, site: Site, shapes: tuple[Shape, ...], results: tuple[Shape, ...]) -> None:
        named = zip(site.operands, shapes, strict=True)
        tensors = {name: shape for (name, part), shape in named if part is None}
        axes = axes_of(site.function, tensors, site.others) or Axes({}, ((),), frozenset())
        # A prepared index is that of all rows, and borders are those of whole axes.
        whole = "offsets" in tensors or any(part is not None for _, part in site.operands)
        along = axes.along if not whole and _has_form(site) else ""
        self.along, self.free = along, axes.free | ({along} if along else set())
        # Axes nothing is known of, those of a prepared index among them, get names of their own.
        known = [axes.arguments.get(n, ()) if part is None else () for n, part in site.operands]
        given = enumerate(zip(known, shapes, strict=True))
        self.operands = [_filled(names, shape, f"p{i}") for i, (names, shape) in given]
        self.results = [_filled(axes.result(i), shape, f"q{i}") for i, shape in enumerate(results)]
        every = zip((*self.operands, *self.results), (*shapes, *results), strict=True)
        self.extents = {name: extent for pair in every for name, extent in zip(*pair, strict=True)}

    def rule(self) -> str:
        """As Shardy reads it."""
        operands, results = (
            ", ".join(" ".join(names) for names in tensors)
            for tensors in (self.operands, self.results)
        )
        return f"{operands} -> {results}"

    def shared(self, specs: Specs, sizes: Mapping[str, int]) -> dict[str, Any]:
        """How the free axes are sharded, given shardings of all operands (and results): as the
        first that has one says, if its parts are equal and no other axis has it."""
        found: dict[str, Any] = {}
        used: set[str] = set()
        for names, spec in zip((*self.operands, *self.results), specs, strict=False):
            for name, entry in zip(names, spec, strict=False):
                meshed = _mesh_axes(entry)
                parts = prod(sizes[axis] for axis in meshed)
                if not meshed or name in found or name not in self.free or used & {*meshed}:
                    continue
                if name == self.along and len(meshed) > 1:
                    continue
                if self.extents[name] % parts == 0:
                    found[name] = entry
                    used.update(meshed)
        return found

    def specs(self, tensors: Sequence[Names], shared: Mapping[str, Any]) -> list[PartitionSpec]:
        return [PartitionSpec(*map(shared.get, names)) for names in tensors]


def _filled(names: Names, shape: Shape, stem: str) -> Names:
    return names if len(names) == len(shape) else tuple(f"{stem}x{i}" for i in range(len(shape)))


def _mesh_axes(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()


@lru_cache(maxsize=1024)
def _layout(site: Site, shapes: tuple[Shape, ...], results: tuple[Shape, ...]) -> Layout:
    return Layout(site, shapes, results)


def result_specs(site: Site, types: Sequence[Any], results: Sequence[Shape]) -> list[PartitionSpec]:
    """Shardings of the results on a mesh whose axes are explicit."""
    layout = _layout(site, tuple(t.shape for t in types), tuple(results))
    sizes = types[0].sharding.mesh.shape
    shared = layout.shared([t.sharding.spec for t in types], sizes)
    return layout.specs(layout.results, shared)


def as_typed(array: Array, model: Any) -> Array:
    """An array with the sharding of a type, where shardings are part of types."""
    if array is None or getattr(model.sharding.mesh, "empty", True):
        return array
    if jax.typeof(array).sharding.spec == model.sharding.spec:
        return array
    return jax.sharding.reshard(array, model.sharding)


# --- lowering -------------------------------------------------------------------------------------


def partitioned(primitive: Any, run: Run) -> Callable[..., Any]:
    """The lowering of a primitive that `run` computes, for one device or for several."""
    ask_for_devices(primitive)
    plain = mlir.lower_fun(run, multiple_results=True)

    def lower(ctx: Any, *values: Any, site: Site) -> Any:
        # Types are those of the trace, which may have been under another setting than this is.
        wide = any(a.dtype.itemsize == 8 for a in (*ctx.avals_in, *ctx.avals_out))
        with jax.enable_x64(True) if wide else nullcontext():
            return lowered(ctx, *values, site=site)

    def lowered(ctx: Any, *values: Any, site: Site) -> Any:
        if ctx.module_context.lowering_parameters.for_export:
            return plain(ctx, *values, site=site, exported=True)
        if not _is_spread(ctx):
            return plain(ctx, *values, site=site)
        shapes = tuple(tuple(aval.shape) for aval in ctx.avals_in)
        results = tuple(tuple(aval.shape) for aval in ctx.avals_out)
        layout = _layout(site, shapes, results)
        if not layout.free:
            return plain(ctx, *values, site=site)
        dtypes = [aval.dtype for aval in ctx.avals_out]
        call = _partitioned(run, site, layout, dtypes)
        found = mlir.lower_fun(call, multiple_results=True)(ctx, *values)
        _name(found[0].owner, f"{site!r} {site.operands} {site.key}")
        return found

    return lower


def _is_spread(ctx: Any) -> bool:
    """Whether this program is for several devices and XLA is to partition it. Not in the body of a
    shard_map, which is one device's part."""
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None)
    return len(devices or ()) > 1


def _partitioned(run: Run, site: Site, layout: Layout, dtypes: list[Any]) -> Callable[..., Any]:
    named = zip(site.operands, layout.operands, strict=True)
    indices = [names for origin, names in named if site.may_index(origin)]

    def whole(*arrays: Array) -> tuple[Array, ...]:
        return tuple(run(*arrays, site=site))

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        given = [_spec(like) for like in (*operands, *results)]
        shared = layout.shared(given, mesh.shape)
        placed = (
            tuple(NamedSharding(mesh, spec) for spec in layout.specs(tensors, shared))
            for tensors in (layout.results, layout.operands)
        )
        if layout.along in shared:
            (over,) = _mesh_axes(shared[layout.along])
            local = partial(_in_parts, site, over, dtypes)
        else:
            part = any(name in shared for names in indices for name in names)
            local = partial(run, site=site, part=part)
        return mesh, lambda *arrays: tuple(local(*arrays)), *placed

    call: Callable[..., Any] = custom_partitioning(whole)
    call.def_partition(partition, sharding_rule=layout.rule())  # type: ignore[attr-defined]
    return call


def _has_form(site: Site) -> bool:
    return site.function.name in resolve("pullback.distributed.forms:forms")()


def _in_parts(site: Site, over: str, dtypes: list[Any], *arrays: Array) -> list[Array]:
    """One device's part where the axis itself is sharded."""
    arguments = site.arguments(dict(zip(site.operands, arrays, strict=True)))
    found = resolve("pullback.distributed.jax_axes:part_of")(site.function, arguments, over)
    return [array.astype(dtype) for array, dtype in zip(found, dtypes, strict=True)]


def _spec(like: Any) -> Sequence[Any]:
    return getattr(like.sharding, "spec", ())


def _name(operation: Any, text: str) -> None:
    """All that tells one such call from another is an address otherwise, and programs are stored by
    their text."""
    attribute = ir.DictAttr.get({"pullback": ir.StringAttr.get(text)})
    operation.attributes["mhlo.frontend_attributes"] = attribute
