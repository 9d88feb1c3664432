"""Extended scans on the GPU (contract/extension), as on the CPU plain scans of other tensors.

Exclusive scans and those from an initial value are copied to the staged shape, scanned there and
copied back. Pieces are flags along the axis that the scan itself reads, so that how many there are,
and how long, makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.extension import Extension, Staged
from pullback.gpu.program import (
    ALIGNMENT,
    EMPTY,
    Arena,
    GpuProgram,
    Operand,
    Step,
    Tile,
    ceil_div,
)
from pullback.ops.lerp.gpu import stretched, sum_bytes, sum_steps
from pullback.ops.scan.gpu_cut import WHOLE, Given, Pieces
from pullback.ops.scan.gpu_extended_kernels import find_heads, stage_first, stage_in, stage_out
from pullback.ops.segment.gpu_groups import FLAT, Groups, check_bytes
from pullback.tensor.layout import Shape, Strides, contiguous_strides, merge

BAD_OFFSETS = 1
ALONG, ACROSS = Tile(1, 1024, 4), Tile(32, 32, 4)

Plain = Callable[[Any, dict[str, Given], Arena, Pieces], list[Step]]


def extended(
    desc: Any,
    plain: Plain,
    tensors: Sequence[tuple[Staged, Any]],
    initial: Any,
    offsets: Any,
    gradient: Any = None,
    *,
    ahead: bool = True,
    summed: Sequence[str] = (),
) -> GpuProgram:
    """The program of a scan; `plain` gives the steps of one that is not extended. `tensors` are
    those of the first slots, after them come initial, offsets and its gradient. Flags say where
    pieces begin for a scan that walks `ahead`, or against the descriptor's direction. `summed` are
    gradients of what was broadcast."""
    slots, rank = len(tensors), len(desc.input_shape or (1,))
    given = {
        role.name: Given(Operand(slot, view.element), stretched(view, rank))
        for slot, (role, view) in enumerate(tensors)
        if view is not None
    }
    build = _Extended(desc, Extension.of(desc), Arena(), [])
    pieces = build.pieces(offsets, slots + 1, desc.reverse != (not ahead))
    roles = [role for role, view in tensors if view is not None]
    targets = {
        role.name: Operand(slot, desc.element)
        for slot, (role, _) in enumerate(tensors)
        if role.name in summed
    }
    for name in summed:
        given[name] = build.scratch(desc.element, build.extension.shape)
    staged = dict(given)
    if build.extension.moves:
        staged = build.staged(roles, given)
    start = build.initial(initial, slots)
    for role in roles:
        if build.extension.moves and not role.written:
            build.copy_in(role, given[role.name], staged[role.name], start, pieces)
    if prod(build.extension.staged):
        shape = build.extension.staged
        inner = replace(desc, input_shape=shape, exclusive=False, initial_shape=None)
        build.steps += plain(inner, staged, build.arena, pieces)
    for role, view in tensors:
        if view is None or not role.written:
            continue
        if build.extension.moves:
            build.copy_out(role, given[role.name], staged[role.name], pieces)
        if role.gives and gradient is not None:
            build.give(staged[role.name], gradient, slots + 2, pieces)
        if role.name in summed:
            source, target = given[role.name], targets[role.name]
            build.sum(source, build.extension.shape, target, view, pieces)
    return GpuProgram(tuple(build.steps), pieces.gate) if build.steps else EMPTY


@dataclass(slots=True)
class _Extended:
    """Collects the steps around a plain scan."""

    desc: Any
    extension: Extension
    arena: Arena
    steps: list[Any]
    offsets: Operand | None = None
    by: int = 0

    def scratch(self, element: ElementKind, shape: Shape) -> Given:
        return Given(self.arena.take(element, prod(shape)), contiguous_strides(shape))

    def pieces(self, offsets: Any, slot: int, reverse: bool) -> Pieces:
        """Flags where pieces begin, and a check of their borders."""
        if offsets is None:
            return WHOLE
        extension, given = self.extension, offsets.shape[0]
        self.offsets, self.by = Operand(slot, offsets.element), offsets.strides[0]
        groups, blocks = Groups(given, 0, self.arena, self.steps), ceil_div(given, FLAT.block)
        wrong = self.arena.take(ElementKind.I64, blocks)
        extent = extension.staged[extension.axis]
        heads = self.arena.take(ElementKind.I32, extent)
        groups.fill({"out": heads, "out_extents": (extent,), "out_strides": (1,)}, 0.0)
        groups.flat(
            find_heads,
            given,
            16 * given,
            offsets=self.offsets,
            wrong=wrong,
            heads=heads,
            n=extension.steps,
            given=given,
            by=self.by,
            MORE=self.more,
            REVERSE=reverse,
        )
        findings = {"ids": self.offsets, "outside": wrong, "descent": wrong, "count": given}
        groups.conclude(blocks, offsets, **findings, OUTSIDE=BAD_OFFSETS, DESCENT=0)
        return Pieces(heads, groups.status)

    @property
    def more(self) -> int:
        return self.extension.more if self.extension.moves else 0

    def staged(self, roles: Sequence[Staged], given: dict[str, Given]) -> dict[str, Given]:
        """Scratch in the staged shape; an output may have the memory of an input."""
        found: dict[str, Given] = {}
        for role in roles:
            if role.over in found:
                found[role.name] = found[role.over]
            else:
                element = given[role.name].operand.element
                found[role.name] = self.scratch(element, self.extension.staged)
        return found

    def initial(self, view: Any, slot: int) -> Given | None:
        """The initial value, with strides as if the pieces were in place of the axis."""
        if view is None:
            return None
        strides = stretched(view, len(self.extension.initial_full))
        return Given(Operand(slot, view.element), self._with_axis(strides))

    def _with_axis(self, strides: Strides) -> Strides:
        if self.extension.pieces is not None:
            return strides
        return (*strides[: self.extension.axis], 0, *strides[self.extension.axis :])

    def _add(
        self, kernel: Any, length: int, tensors: dict[str, Given], pieces: Pieces, **own: Any
    ) -> None:
        """A step over tiles of `length` along the axis; tensors by the names of their strides."""
        extension, axis = self.extension, self.extension.axis
        rest = merge(
            extension.rest, [t.strides[:axis] + t.strides[axis + 1 :] for t in tensors.values()]
        )
        if not length * rest.count:
            return
        arguments = {**own, "extents": rest.extents, "offsets": self.offsets, "by": self.by}
        for (name, tensor), strides in zip(tensors.items(), rest.strides, strict=True):
            arguments |= {name: tensor.operand, f"strides_{name}": strides}
            arguments[f"step_{name}"] = tensor.strides[axis]
        across = bool(rest.extents) and rest.strides[0][-1] == 1
        tile = ACROSS if across else ALONG
        arguments |= {
            "gate": pieces.gate,
            "n": extension.steps,
            "rows": rest.count,
            "tiles": ceil_div(length, tile.block),
            "pieces": extension.count,
            "MORE": self.more,
            "REVERSE": self.desc.reverse,
            "R": tile.rows,
            "B": tile.block,
        }
        grid = ceil_div(rest.count, tile.rows) * arguments["tiles"]
        traffic = 2 * rest.count * length * self.desc.element.itemsize
        self.steps.append(Step(kernel, grid, arguments, tile.warps, traffic))

    @property
    def _bits(self) -> int:
        return self.extension.count.bit_length()

    def _shift(self, role: Staged) -> int:
        """What element 0 of a piece is scanned as."""
        extension = self.extension
        return extension.result_leads - extension.skipped if role.results else extension.leads

    def copy_in(
        self, role: Staged, own: Given, staged: Given, start: Given | None, pieces: Pieces
    ) -> None:
        extent = self.extension.staged[self.extension.axis]
        tensors, absent = {"own": own, "staged": staged}, {}
        if role.first is None and start is not None:
            tensors["initial"] = start
        else:
            absent = {"initial": None, "step_initial": 0, "strides_initial": ()}
        options = {"first": role.first or 0.0, "extent": extent, "bits": self._bits}
        if role.first is not None:
            options["first"] = role.first  # a zero has a sign
        shift = self._shift(role)
        self._add(stage_in, extent, tensors, pieces, **absent, **options, SHIFT=shift)

    def copy_out(self, role: Staged, own: Given, staged: Given, pieces: Pieces) -> None:
        tensors = {"own": own, "staged": staged}
        options = {"end_value": role.end, "bits": self._bits, "SHIFT": self._shift(role)}
        options |= {"LEADS": self.extension.leads, "INDEX": role.index}
        self._add(stage_out, self.extension.steps, tensors, pieces, **options)

    def give(self, staged: Given, gradient: Any, slot: int, pieces: Pieces) -> None:
        """The gradient of the initial value, summed to its shape."""
        extension, target = self.extension, Operand(slot, gradient.element)
        full = extension.initial_full
        whole = Given(target, gradient.strides)
        if extension.sums_initial:
            whole = self.scratch(self.desc.element, full)
        placed = Given(whole.operand, self._with_axis(whole.strides))
        tensors = {"target": placed, "staged": staged}
        self._add(stage_first, extension.count, tensors, pieces)
        if extension.sums_initial:
            self.sum(whole, full, target, gradient, pieces)

    def sum(self, source: Given, shape: Shape, target: Operand, view: Any, pieces: Pieces) -> None:
        """Sum a gradient to the shape of what was broadcast."""
        self.steps += sum_steps(
            shape, self.desc.element, source, target, view, pieces.gate, self.arena
        )


def extended_bytes(
    desc: Any,
    roles: Sequence[Staged],
    plain: Callable[[Any], int],
    summed: Sequence[tuple[str, Shape]] = (),
) -> int:
    """Scratch of all this; `plain` says what a scan of the staged shape takes, `summed` the shapes
    that gradients are summed to."""
    extension, size = Extension.of(desc), desc.element.itemsize
    total = plain(replace(desc, input_shape=extension.staged, exclusive=False, initial_shape=None))
    if extension.pieces is not None:
        extent = extension.staged[extension.axis]
        total += check_bytes(extension.pieces + 1) + 4 * extent + ALIGNMENT
    if extension.moves:
        for role in roles:
            if not role.over:
                total += prod(extension.staged) * (8 if role.index else size) + ALIGNMENT
    if extension.sums_initial and any(role.gives for role in roles):
        full = extension.initial_full
        total += prod(full) * size + ALIGNMENT + sum_bytes(full, extension.initial or ())
    for _, shape in summed:
        total += prod(extension.shape) * size + ALIGNMENT + sum_bytes(extension.shape, shape)
    return total
