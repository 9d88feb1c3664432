"""The program of a scan that carries a state, made of the plain one in f64: see cpu/stateful."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pullback.contract.element import ElementKind
from pullback.contract.extension import Extension, Staged
from pullback.contract.state import staged_places, staged_shape
from pullback.cpu import stateful as at
from pullback.cpu.block import TENSORS
from pullback.cpu.extended_program import SMALL, Strided, widened
from pullback.cpu.loops import axis_words
from pullback.cpu.places import FINAL, INITIAL
from pullback.cpu.program import Phase, Program, bits_of, grain_for
from pullback.cpu.scan_words import FIRST_WORD, MOST_TENSORS
from pullback.tensor.layout import AxisLoops, Strides, contiguous_strides, merge

# A kernel that touches no element is compiled for one, whatever the program's.
_ANY: dict[str, ElementKind] = {"element": ElementKind.F32, "index": ElementKind.I64}


def stateful_program(
    desc: Any,
    plain: Callable[..., Program],
    tensors: Sequence[tuple[Staged, Any]],
    given: Sequence[Any],
    *,
    own: bool,
    identity: float,
) -> Program:
    """`plain(desc, *views)` in f64. `tensors` are those of the first slots, None if not given; then
    come initial, offsets and what is `given`: both states, and positions where scans have them.
    `own`: the scan takes and leaves states itself."""
    return _Builder(desc, tensors, given, own, identity).program(plain)


class _Builder:
    def __init__(
        self,
        desc: Any,
        tensors: Sequence[tuple[Staged, Any]],
        given: Sequence[Any],
        own: bool,
        identity: float,
    ) -> None:
        self.desc, self.tensors, self.own, self.identity = desc, tensors, own, identity
        self.state, self.final, self.positions = (*given, None)[:3]
        self.extension = Extension.of(desc, own)
        self.leads = int(self.state is not None and not own)
        self.places = staged_places(desc, [staged for staged, _ in tensors], own)
        self.states = len(tensors) + 2  # the slot of the first
        self.slots = self.states + len(given)
        self.rows = [
            (slot, staged, view)
            for slot, (staged, view) in enumerate(tensors)
            if staged.name in self.places and (view is not None or self._scanned(staged))
        ]

    def _scanned(self, staged: Staged) -> bool:
        """Whether what is not given is scanned nevertheless, for the state or for its positions."""
        return self.positions is not None if staged.index else staged.written

    def program(self, plain: Callable[..., Program]) -> Program:
        shape = staged_shape(self.extension, self.leads)
        desc = replace(
            self.desc,
            element=ElementKind.F64,
            input_shape=shape,
            stateful=False,
            exclusive=self.desc.exclusive and self.own,
        )
        staged = Strided(contiguous_strides(shape))
        views = [
            staged if any(role is own for _, own, _ in self.rows)
            else None if view is None
            else Strided(self._strides(view))
            for role, view in self.tensors
        ]  # fmt: skip
        edges = [self._edge(self.state), self._edge(self.final)]
        found = plain(desc, *views, edges=edges) if self.own else plain(desc, *views)
        own = list(found.words[1 + MOST_TENSORS - len(views) :])
        if self.own:
            for place, given, slot in ((INITIAL, self.state, 0), (FINAL, self.final, 1)):
                word = TENSORS + self.states + slot
                own[place - FIRST_WORD] = 0 if given is None else word
        pad = (0,) * (MOST_TENSORS - self.slots)
        if not self.rows:
            return replace(found, words=(*pad, 0, *own))
        position = FIRST_WORD + len(own)
        phases = [replace(phase, element=ElementKind.F64) for phase in found.phases]
        words = self._words(position, staged.strides)
        return Program(
            (*self._before(), *phases, *self._after()), (*pad, position, *own, *words), found.index
        )

    def _strides(self, view: Any) -> Strides:
        return widened(view, self.extension.shape)

    def _edge(self, view: Any) -> Strides | None:
        """Strides of a state, which has no axis."""
        if view is None:
            return None
        axis = self.extension.axis
        return (*view.strides[:axis], 0, *view.strides[axis:])

    # --- phases ----------------------------------------------------------------------------------

    def _before(self) -> list[Phase]:
        phases = [Phase(at.stateful_begin, 1, 1, **_ANY), self._copies(at.stateful_in)]
        if self.leads:
            phases.append(Phase(at.stateful_firsts, self.extension.lines, SMALL, **_ANY))
        return phases

    def _after(self) -> list[Phase]:
        phases = []
        if any(view is not None and staged.written for _, staged, view in self.rows):
            phases.append(self._copies(at.stateful_out))
        if not self.own:
            phases.append(Phase(at.stateful_lasts, self.extension.lines, SMALL, **_ANY))
        if self.positions is not None:
            phases.append(Phase(at.stateful_places, self.extension.lines, SMALL, **_ANY))
        return phases

    def _copies(self, kernel: Any) -> Phase:
        """Slices of lines, those that are neighbours together."""
        columns, at_once = self._columns()
        steps = self.extension.steps
        items = self.extension.lines // max(columns, 1) * -(-steps // at_once)
        size = 8 * min(steps, at_once) * columns * len(self.rows)
        return Phase(kernel, items, grain_for(size))

    # --- words -----------------------------------------------------------------------------------

    def _loops(self, staged: Strides) -> AxisLoops:
        axis = self.extension.axis
        none = (0,) * len(staged)
        places = None if self.positions is None else Strided(self.positions.strides[1:])
        edges = [self._edge(view) or none for view in (self.state, self.final, places)]
        rows = (none if view is None else self._strides(view) for _, _, view in self.rows)
        strides = [staged, *edges, *rows]
        rest = merge(self.extension.rest, [s[:axis] + s[axis + 1 :] for s in strides])
        return AxisLoops(self.extension.steps, tuple(s[axis] for s in strides), rest, False)

    def _columns(self) -> tuple[int, int]:
        """Lines that are neighbours in the staged shape, and how many of their steps are copied at
        once."""
        staged = contiguous_strides(staged_shape(self.extension, self.leads))
        rest = self._loops(staged).rest
        beside = bool(rest.extents) and rest.strides[at.OF_STAGED][-1] == 1
        columns = rest.extents[-1] if beside else 1
        return columns, max(1, at.SLICE // max(columns, 1))

    def _words(self, position: int, staged: Strides) -> list[int]:
        columns, at_once = self._columns()
        rows = [word for row in self.rows for word in self._row(*row)]
        results = next(TENSORS + slot for slot, role, _ in self.rows if role.written)
        late = int(self.desc.exclusive and not self.own)
        head = {
            at.STEPS: self.extension.steps,
            at.LEADS: self.leads,
            at.LATE: late,
            at.REVERSED: int(self.desc.reverse),
            at.AT_ONCE: at_once,
            at.COLUMNS: columns,
            at.ROWS: len(self.rows),
            at.LAYOUT: position + at.HEAD + len(rows),
            at.STATE: TENSORS + self.states,
            at.FINAL: TENSORS + self.states + 1,
            at.RESULTS: results,
            at.END: bits_of(self.identity),
            at.PLACES: TENSORS + self.states + 2 if self.positions is not None else 0,
            at.INDICES: next((TENSORS + slot for slot, role, _ in self.rows if role.index), 0),
            at.APART: self.positions.strides[0] if self.positions is not None else 0,
        }
        return [*head.values(), *rows, *axis_words(self._loops(staged))]

    def _use(self, staged: Staged, view: Any) -> int:
        if not staged.written:
            return at.READ
        return at.SCANNED if view is None else at.GIVEN

    def _row(self, slot: int, staged: Staged, view: Any) -> list[int]:
        first = staged.first
        row = {
            at.SLOT: TENSORS + slot,
            at.PLACE: self.places[staged.name],
            at.TRUE: 0,
            at.WRITTEN: self._use(staged, view),
            at.INDEX: int(staged.index),
            at.BY_STATE: int(first is None),
            at.FIRST: bits_of(first or 0.0),
        }
        return list(row.values())
