"""The program of an extended scan, made of that of the plain one: see cpu/extended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.extension import BORDERS, INITIAL, INNER, Extension, Staged, arena
from pullback.cpu import extended
from pullback.cpu import piece_words as at
from pullback.cpu.block import TENSORS
from pullback.cpu.loops import axis_words
from pullback.cpu.piecewise import run_pieces
from pullback.cpu.places import FINAL
from pullback.cpu.program import Callee, Phase, Program, bits_of, grain_for
from pullback.cpu.scan_words import FIRST_WORD, MOST_TENSORS
from pullback.tensor.layout import AxisLoops, Shape, Strides, contiguous_strides, merge

SMALL = 4096  # items that do next to nothing
# What a kernel that touches no element is compiled for.
_ANY: dict[str, ElementKind] = {"element": ElementKind.F32, "index": ElementKind.I64}


@dataclass(frozen=True)
class Strided:
    """A tensor of which only strides matter."""

    strides: Strides


def widened(view: Any, shape: Shape) -> Strides:
    """The strides of a view that broadcasts to a shape."""
    strides = (0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True))
    return (0,) * (len(shape) - len(view.shape)) + tuple(strides)


def with_slots(program: Program, tensors: int, slots: int) -> Program:
    """A plain program, laid out for so many tensors, in a plan of more slots."""
    return replace(program, words=program.words[slots - tensors :])


def extended_program(
    desc: Any,
    plain: Callable[..., Program],
    tensors: Sequence[tuple[Staged, Any]],
    initial: Any,
    offsets: Any,
    gradient: Any = None,
    *,
    kept: Any = None,
    back: bool | None = None,
    summed: Sequence[str] = (),
    own: bool = False,
) -> Program:
    """`plain(desc, *views)` on the staged shape. `tensors` are those of the first slots, None if
    not given; after them come initial, offsets and gradient, if there is one for it. `kept` is
    what the plain scan has in the workspace, `back` its direction (None: the descriptor's).
    A scan of its `own` extension gets `edges` too: see `scan_program`."""
    extension = Extension.of(desc, own)
    return _Builder(
        desc, extension, tensors, initial, offsets, gradient, kept, tuple(summed)
    ).program(plain, desc.reverse if back is None else back)


class _Builder:
    def __init__(
        self,
        desc: Any,
        extension: Extension,
        tensors: Sequence[tuple[Staged, Any]],
        initial: Any,
        offsets: Any,
        gradient: Any,
        kept: Any,
        summed: tuple[str, ...],
    ) -> None:
        self.desc, self.extension, self.tensors = desc, extension, tensors
        self.initial, self.offsets, self.gradient, self.summed = initial, offsets, gradient, summed
        roles = [staged for staged, _ in tensors]
        inner = kept.nbytes(Extension.of(desc)) if kept else 0
        self.arena = arena(extension, roles, desc.element.itemsize, inner, summed)
        self.kept = kept
        self.slots = len(tensors) + 2 + any(staged.gives for staged in roles)
        self.rows = [
            (slot, staged, view)
            for slot, (staged, view) in enumerate(tensors)
            if staged.name in self.arena and view is not None
        ]
        # Lines that are neighbours in the staged shape are copied side by side.
        self.loops = self._loops()
        rest = self.loops.rest
        beside = bool(rest.extents) and rest.strides[extended.OF_STAGED][-1] == 1
        self.columns = rest.extents[-1] if beside else 1
        self.at_once = max(1, extended.SLICE // max(self.columns, 1))

    def strides(self, view: Any) -> Strides:
        """Of a tensor that broadcasts to the scanned shape."""
        return widened(view, self.extension.shape)

    def program(self, plain: Callable[..., Program], back: bool) -> Program:
        extension = self.extension
        staged = contiguous_strides(extension.staged)
        names = {staged_.name for _, staged_, _ in self.rows}
        views = [
            None if view is None
            else Strided(staged if role.name in names else self.strides(view))
            for role, view in self.tensors
        ]  # fmt: skip
        if extension.own:
            given = (self.initial, self.gradient)
            edges = [
                None if view is None else strides
                for view, strides in zip(given, self._edges_of(), strict=True)
            ]
            found = plain(self.desc, *views, edges=edges)
            if extension.pieces is None and not self._sums():
                return with_slots(found, len(views), self.slots)
        else:
            found = plain(
                replace(
                    self.desc, input_shape=extension.staged, exclusive=False, initial_shape=None
                ),
                *views,
            )
        own = list(found.words[1 + MOST_TENSORS - len(views) :])
        position = FIRST_WORD + len(own)
        if extension.own and INITIAL in self.arena:
            own[FINAL - FIRST_WORD] = position + at.GRADIENT
        phases, axis, walked, joins = found.phases, 0, 0, False
        if extension.pieces is not None:
            phases, axis, walked = self._piecewise(found, own, position)
            joins = self._joins(own[axis - FIRST_WORD :], walked, back)
        words = self._words(position, axis, walked, back)
        block = position + len(words)
        words[at.LENGTH], words[at.JOINS] = block, int(joins)
        pad = (0,) * (MOST_TENSORS - self.slots)
        return Program(
            (*self._before(), *phases, *self._after()),
            (*pad, position, *own, *words),
            found.index,
        )

    # --- phases ----------------------------------------------------------------------------------

    def _piecewise(
        self, found: Program, own: Sequence[int], position: int
    ) -> tuple[tuple[Phase, ...], int, int]:
        (phase,) = found.phases
        axis = found.axis
        rank = own[axis - FIRST_WORD + 1]
        walked = (len(own) - (axis - FIRST_WORD) - 2 - rank) // (rank + 2)
        pieces = self.extension.count
        items = phase.count * pieces
        size = prod(self.extension.staged) * self.desc.element.itemsize * len(self.tensors)
        grain = grain_for(size // max(items, 1))
        called = [(phase.kernel, at.PLAIN)]
        if found.together is not None:
            called.append((found.together, at.TOGETHER))
        callees = [
            Callee(kernel, 0, 1, phase.element, phase.index, position + into)
            for kernel, into in called
        ]
        return (*callees, Phase(run_pieces, items, grain, **_ANY)), axis, walked

    def _joins(self, layout: Sequence[int], walked: int, back: bool) -> bool:
        """Whether a line begins where the one before ends, in all tensors of these layout words."""
        steps, rank = layout[:2]
        if rank != 1:
            return False
        scanned = len(self.tensors) if self.extension.own else walked
        for t in range(walked):
            step, pitch = layout[4 + 3 * t : 6 + 3 * t]
            elements = steps if t < scanned else self.extension.count
            if pitch != elements * (-step if back else step):
                return False
        return True

    def _before(self) -> tuple[Phase, ...]:
        index = ElementKind.I64 if self.offsets is None else self.offsets.element
        phases = [Phase(extended.extended_begin, 1, 1, ElementKind.F32, index)]
        if any(not staged.written for _, staged, _ in self.rows):
            phases.append(self._copies(extended.extended_in))
            if self.extension.leads:
                phases.append(self._edges(extended.extended_firsts))
        return tuple(phases)

    def _after(self) -> tuple[Phase, ...]:
        phases = []
        if self._copies_back:
            phases.append(self._copies(extended.extended_out))
            if self.extension.moves:
                phases.append(self._edges(extended.extended_ends))
        if count := sum(words[2] for words in self._sums()):
            terms = prod(self.extension.shape) // max(count, 1)
            phases.append(Phase(extended.extended_sum, count, grain_for(16 * max(terms, 1))))
        return tuple(phases)

    @property
    def _copies_back(self) -> bool:
        """Not if all that is staged is summed from there."""
        return self.extension.moves or any(staged.index for _, staged, _ in self.rows)

    def _copies(self, kernel: Any) -> Phase:
        """Slices of lines, those that are neighbours together."""
        steps, columns = self.extension.steps, max(self.columns, 1)
        slices = -(-steps // self.at_once)
        size = min(steps, self.at_once) * columns * self.desc.element.itemsize
        items = self.extension.lines // columns * slices
        return Phase(kernel, items, grain_for(size * len(self.rows)))

    def _edges(self, kernel: Any) -> Phase:
        return Phase(kernel, self.extension.lines * self.extension.count, SMALL)

    # --- words -----------------------------------------------------------------------------------

    def _words(self, position: int, axis: int, walked: int, back: bool) -> list[int]:
        extension, arena_ = self.extension, self.arena
        rows = [word for row in self.rows for word in self._row(*row)]
        layout = axis_words(self.loops)
        sums = self._sums()
        first = TENSORS + len(self.tensors)
        head = dict.fromkeys(range(at.HEAD), 0) | {
            at.PIECES: extension.count,
            at.OF_EDGES: len(self.tensors) if extension.own else walked,
            at.ENDS: int(extension.own and self.gradient is not None),
            at.STEPS: extension.steps,
            at.MORE: extension.more,
            at.REVERSED: int(self.desc.reverse),
            at.BACK: int(back),
            at.BORDERS: arena_.get(BORDERS, -1),
            at.OFFSETS: first + 1,
            at.OFFSETS_STEP: 0 if self.offsets is None else self.offsets.strides[0],
            at.AXIS_AT: axis,
            at.WALKED: walked,
            at.INNER: arena_.get(INNER, 0),
            at.KEPT_STEPS: self.kept.steps if self.kept else 1,
            at.KEPT_BYTES: self.kept.size * extension.lines if self.kept else 0,
            at.ROWS: len(self.rows),
            at.LAYOUT: position + at.HEAD + len(rows),
            at.INITIAL: first if extension.leads else 0,
            at.GRADIENT: first + 2 if self.gradient is not None else 0,
            at.GRADIENT_AT: arena_.get(INITIAL, -1),
            at.SUMS: len(sums),
            at.SUM_WORDS: position + at.HEAD + len(rows) + len(layout),
            at.AT_ONCE: self.at_once,
            at.COLUMNS: self.columns,
        }
        return [*head.values(), *rows, *layout, *(word for words in sums for word in words)]

    def _row(self, slot: int, staged: Staged, view: Any) -> list[int]:
        extension = self.extension
        leads = extension.result_leads if staged.results else extension.leads
        first = staged.first
        summed = -1
        if staged.name in self.summed and extension.moves:
            summed = self.arena[f"{staged.name}*"]
        row = dict.fromkeys(range(extended.ROW), 0) | {
            extended.SLOT: TENSORS + slot,
            extended.PLACE: self.arena[staged.name],
            extended.WRITTEN: int(staged.written),
            extended.INDEX: int(staged.index),
            extended.LEADS: leads,
            extended.SKIPS: extension.skipped if staged.results else 0,
            extended.CUTS: 0 if staged.results else int(extension.exclusive),
            extended.FROM_INITIAL: int(first is None),
            extended.FIRST: bits_of(first or 0.0) if first != 0 else bits_of(first),
            extended.END: bits_of(staged.end),
            extended.GIVES: int(staged.gives),
            extended.SUMMED: summed,
        }
        return list(row.values())

    def _loops(self) -> AxisLoops:
        """All tensors along the axis; the axis of the initial value and of its gradient are the
        pieces."""
        extension, axis = self.extension, self.extension.axis
        strides = [contiguous_strides(extension.staged), *self._edges_of()]
        for _, staged, view in self.rows:
            summed = staged.name in self.summed
            strides.append(contiguous_strides(extension.shape) if summed else self.strides(view))
        rest = merge(extension.rest, [s[:axis] + s[axis + 1 :] for s in strides])
        steps = tuple(s[axis] for s in strides)
        return AxisLoops(extension.steps, steps, rest, False)

    def _edges_of(self) -> tuple[Strides, Strides]:
        """Strides of the initial value and of its gradient, which may be still to be summed."""
        extension, full = self.extension, self.extension.initial_full
        own = target = (0,) * len(full)
        if self.initial is not None:
            own = widened(self.initial, full)
        if self.gradient is not None:
            summed = extension.sums_initial
            target = contiguous_strides(full) if summed else self.gradient.strides
        return self._with_axis(own), self._with_axis(target)

    def _with_axis(self, strides: Strides) -> Strides:
        if self.extension.pieces is not None:
            return strides
        return (*strides[: self.extension.axis], 0, *strides[self.extension.axis :])

    def _sums(self) -> list[list[int]]:
        """What is summed to the shape of what was broadcast."""
        extension, sums = self.extension, []
        if self.gradient is not None and extension.sums_initial:
            place, slot = self.arena[INITIAL], len(self.tensors) + 2
            sums.append(_sum_words(place, slot, extension.initial_full, self.gradient))
        for slot, staged, view in self.rows:
            if staged.name in self.summed:
                place = self.arena[f"{staged.name}*" if extension.moves else staged.name]
                sums.append(_sum_words(place, slot, extension.shape, view))
        return sums


def _sum_words(place: int, slot: int, shape: Shape, target: Any) -> list[int]:
    missing = len(shape) - len(target.shape)
    goal = (1,) * missing + tuple(target.shape)
    strides = (0,) * missing + tuple(target.strides)
    kept = [axis for axis, n in enumerate(shape) if goal[axis] == n]
    summed = [axis for axis in range(len(shape)) if axis not in kept]
    own = contiguous_strides(shape)
    return [
        place,
        TENSORS + slot,
        prod(goal),
        len(kept),
        *(shape[axis] for axis in kept),
        len(summed),
        *(shape[axis] for axis in summed),
        *(own[axis] for axis in (*kept, *summed)),
        *(strides[axis] for axis in kept),
    ]
