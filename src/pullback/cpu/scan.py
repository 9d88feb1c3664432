"""One engine for scans along an axis.

A scan says what happens to a block of steps; the engine owns dtype, layout, direction, tails,
streaming stores and threads. Blocks are chained in the order of the walk and are equally long in
every walk (cpu/columns), so that all walks do the same operations in the same order: same bits.

    along     tiles are W blocks of one line, chained from lane to lane
    lines     tiles are a block of W lines: short lines, and scans whose blocks cannot be combined
    across    the same where lines are neighbours in memory: a cache line of every step
    pieces    tiles are a block of W short pieces of one line (cpu/short_pieces)
    shared    along, but threads share a line, a chunk of CHUNK steps each

What does not fill a tile, or has other strides, goes by way of the stack (cpu/parts).

Lines are cut into chunks where a scan has `carried` and `rebased`: every chunk starts with a state
of its own, based on the value of the chunks before. A thread that must wait for that value runs
its chunk without outputs meanwhile.

A line with an initial value starts from the state that `begun` makes of it; what is asked for at
the end of a line is what `shown` makes of the last state. In an exclusive scan the results of a
step are what `shown` makes of the state before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pullback.cpu.blocks import each, passed_on, step_numbers
from pullback.cpu.columns import ANY, NUMBERS, block_of, loads, store_tile
from pullback.cpu.emit import Vec, inlined
from pullback.cpu.saved import recalled, relative_within, saving_tile
from pullback.cpu.tile_rows import ALONG
from pullback.cpu.tiles import by_type
from pullback.cpu.vector import as_float, as_int, like


@dataclass(frozen=True)
class Scan:
    """The definition of a scan. `columns[t][s]` is step s of input t, a Vec of the working type;
    a state is a tuple of Vecs.

    work(p, n)              any Vec of the working type, n lanes
    start(p, n)             the state before a line
    within(columns)         -> inner, total: tuples
    combine(state, total)   -> state
    apply(entering, inner)  -> for each output its columns
    repair(outputs)         -> the outputs with one NaN for all; unless it is known that there is
    rare(state, outputs)    none, from the state after a tile or its outputs
    fast                    may(state, columns), within, combine, apply: a shorter way for tiles
                            that may take it, with the same bits; `faster` is asked before it, and
                            if the scan is `relative`, has within(columns, state)
    trial                   fits(state, outputs), within, combine, apply: a shorter way whose
                            results show whether a tile may take it
    held                    holds(state, columns) and held(state, columns) -> outputs: tiles that
                            leave the state as it is; lanes and steps come in any order
    shown(state)            -> for each output its value
    begun(none, initial)    -> the state before a line that has an initial value
    empty(none)             -> the state before a line of an exclusive scan, if it is another
    numbered                within(columns, numbers, about): the number of each lane's first step,
                            and what there is to know about the line
    edged(columns, numbers, about)   -> the columns of the first and last tile of a line

    `about` is (steps of a line, 0 or -1 for a reversed scan, number of the first step, number
    after the last step, initial value, whether there is one, the sign bit or 0: see `flips`,
    whether the scan is exclusive, the option of the op, and the area if there is one: see
    cpu/saved).
    """

    neutral: tuple[float, ...]  # what each input is beyond the end of a line
    work: Callable[..., Any]
    start: Callable[..., Any]
    within: Callable[..., Any]
    combine: Callable[..., Any]
    apply: Callable[..., Any]
    rare: Callable[..., Any] | None = None
    repair: Callable[..., Any] | None = None
    fast: tuple[Callable[..., Any], ...] = ()
    faster: tuple[Callable[..., Any], ...] = ()
    trial: tuple[Callable[..., Any], ...] = ()
    held: tuple[Callable[..., Any], ...] = ()
    carried: Callable[..., Any] | None = None
    rebased: Callable[..., Any] | None = None
    shown: Callable[..., Any] | None = None
    begun: Callable[..., Any] | None = None
    empty: Callable[..., Any] | None = None
    edged: Callable[..., Any] | None = None
    numbered: bool = False
    relative: bool = False
    flips: bool = False  # the first input and output are negated if the program says so
    delays: bool = False  # it is exclusive if the program says so; it has one output
    # It computes more than it waits for memory: larger tiles, lanes by element size; no streaming.
    busy: dict[int, int] | None = None
    serial: bool = False  # blocks of a line are no shorter way than its steps: prefer `lines`
    mode: int = ANY  # how outputs are encoded
    inputs: tuple[int, ...] = (0,)  # slots of the plan's record
    outputs: tuple[int, ...] = (1,)
    indices: tuple[int, ...] = ()  # more outputs, of the index type
    ahead: tuple[int, ...] = (0,)  # for each input whether it is read one step on in the walk
    # Of a scan that saves, along a line: rises(state, columns, those of the steps before, option)
    # -> whether every step takes over; what is saved of these; the state after them.
    rising: tuple[Callable[..., Any], ...] = ()
    # What `apply` makes of each block for another scan, and what this one has behind its columns:
    # see cpu/saved.
    saves: Any = None
    recalls: Any = None
    alike: tuple[int, ...] = ()  # inputs that may be broadcast; of scans without `carried`

    @property
    def results(self) -> int:
        return len(self.outputs) + len(self.indices)

    @property
    def tensors(self) -> int:
        """As far as the number of lines that go together depends on it: see cpu/columns."""
        return 2 if self.busy else len(self.inputs) + self.results


def _outputs(scan: Scan, apply: Callable[..., Any]) -> Callable[..., Any]:
    """(entering, inner, about) -> what `apply` makes of them, or in an exclusive scan what it makes
    of the steps before."""
    shown: Any = scan.shown

    @inlined
    def delayed(entering, inner, about):
        v = apply(entering, inner)
        if about[7]:
            v = ((shown(entering)[0], *v[0][:-1]),)
        return v

    return (
        delayed if scan.delays else inlined(lambda entering, inner, about: apply(entering, inner))
    )


@inlined
def flip(sign, v):
    """-v if `sign` is the sign bit, v if it is 0."""
    return as_float(as_int(v) ^ like(as_int(v), sign))


@by_type
def _flipped(tiles, sign):
    if len(tiles) == 1:
        return lambda tiles, sign: (each(flip, sign, tiles[0]),)
    return lambda tiles, sign: (each(flip, sign, tiles[0]), *tiles[1:])


def _signed(scan: Scan) -> Callable[..., Any]:
    """(columns or outputs, about) -> the same, negated or not."""
    if scan.flips:
        return inlined(lambda tiles, about: _flipped(tiles, about[6]))
    return inlined(lambda tiles, about: tiles)


# --- a tile ---------------------------------------------------------------------------------------


@by_type
def _at_an_edge(number, steps, about):
    if isinstance(number, Vec):
        return lambda number, steps, about: True
    return lambda number, steps, about: number <= about[2] or number + steps >= about[3]


def tile_of(scan: Scan) -> Callable[..., Any]:
    """tile(ins, outs, k, c, left, number, about, state, streaming, W, walk, back) -> state: the
    tile at step k and line c of the cursors, which is step `number` of the walk; from there on a
    line has `left` steps."""
    within = scan.within
    if scan.numbered:
        inner_of = inlined(
            lambda columns, p, number, about, walk: within(
                columns, step_numbers(p, number, columns[0][0], walk), about
            )
        )
    else:
        inner_of = inlined(lambda columns, p, number, about, walk: within(columns))
    usual = _careful(scan, inner_of)
    for way, relative in ((scan.fast, False), (scan.faster, scan.relative)):
        if way:
            usual = _either(scan, way, relative, usual)
    if scan.trial:
        usual = _tried(scan, usual)
    work, mode, edged, signed = scan.work, scan.mode, scan.edged, _signed(scan)
    load_tile, recall = loads(scan.neutral, scan.ahead, scan.alike), recalled(scan)
    if scan.saves is not None:
        return saving_tile(scan, signed)

    @inlined
    def with_edges(ins, outs, k, c, left, number, about, state, streaming, W, walk, back):
        p = ins[0][0]
        columns = load_tile(ins, k, c, left, work(p, W), walk, back, 0)
        columns = recall(columns, p, number, about, walk)
        steps = block_of(p) * W if walk == ALONG else block_of(p)
        if _at_an_edge(number, steps, about):
            numbers = step_numbers(p, number, columns[0][0], walk)
            columns = edged(columns, numbers, about)
        return usual(p, columns, outs, k, c, left, number, about, state, streaming, walk, back)

    @inlined
    def tile(ins, outs, k, c, left, number, about, state, streaming, W, walk, back):
        p = ins[0][0]
        columns = signed(load_tile(ins, k, c, left, work(p, W), walk, back, 0), about)
        columns = recall(columns, p, number, about, walk)
        return usual(p, columns, outs, k, c, left, number, about, state, streaming, walk, back)

    if not scan.held:
        return tile if edged is None else with_edges
    holds, held = scan.held

    @inlined
    def unless_held(ins, outs, k, c, left, number, about, state, streaming, W, walk, back):
        p = ins[0][0]
        steps = signed(load_tile(ins, k, c, left, work(p, W), walk, back, 1), about)
        if holds(state, steps):
            v = signed(held(state, steps), about)
            store_tile(p, outs, k, c, left, v, streaming, mode, walk, back)
            return state
        return tile(ins, outs, k, c, left, number, about, state, streaming, W, walk, back)

    return unless_held


def _careful(scan: Scan, inner_of: Callable[..., Any]) -> Callable[..., Any]:
    combine, repair, mode = scan.combine, scan.repair, scan.mode
    outputs, stored, signed = _outputs(scan, scan.apply), _stored_if_rare(scan), _signed(scan)

    @inlined
    def scanned(p, columns, number, about, state, walk):
        inner, total = inner_of(columns, p, number, about, walk)
        entering, after = passed_on(combine, p, state, total, walk)
        return outputs(entering, inner, about), after

    @inlined
    def exact(p, columns, outs, k, c, left, number, about, state, streaming, walk, back):
        v, after = scanned(p, columns, number, about, state, walk)
        store_tile(p, outs, k, c, left, signed(v, about), streaming, mode, walk, back)
        return after

    @inlined
    def repaired(p, columns, outs, k, c, left, number, about, state, streaming, walk, back):
        v, after = scanned(p, columns, number, about, state, walk)
        store_tile(p, outs, k, c, left, repair(v), streaming, ANY, walk, back)
        return after

    @inlined
    def if_rare(p, columns, outs, k, c, left, number, about, state, streaming, walk, back):
        v, after = scanned(p, columns, number, about, state, walk)
        stored(p, outs, k, c, left, v, about, after, streaming, walk, back)
        return after

    if repair is None:
        return exact
    return repaired if scan.fast or scan.rare is None else if_rare


def _stored_if_rare(scan: Scan) -> Callable[..., Any]:
    rare, repair, mode, signed = scan.rare, scan.repair, scan.mode, _signed(scan)

    @inlined
    def if_rare(p, outs, k, c, left, v, about, after, streaming, walk, back):
        if rare(after, v):
            store_tile(p, outs, k, c, left, repair(v), streaming, ANY, walk, back)
        else:
            store_tile(p, outs, k, c, left, v, streaming, NUMBERS, walk, back)

    @inlined
    def exact(p, outs, k, c, left, v, about, after, streaming, walk, back):
        store_tile(p, outs, k, c, left, signed(v, about), streaming, mode, walk, back)

    return exact if rare is None else if_rare


def _either(
    scan: Scan, way: tuple[Any, ...], relative: bool, careful: Callable[..., Any]
) -> Callable[..., Any]:
    may, within, combine, apply = way
    within = relative_within(within, relative)
    outputs, stored = _outputs(scan, apply), _stored_if_rare(scan)

    @inlined
    def either(p, columns, outs, k, c, left, number, about, state, streaming, walk, back):
        if may(state, columns):
            inner, total = within(columns, state)
            entering, after = passed_on(combine, p, state, total, walk)
            v = outputs(entering, inner, about)
            stored(p, outs, k, c, left, v, about, after, streaming, walk, back)
            return after
        return careful(p, columns, outs, k, c, left, number, about, state, streaming, walk, back)

    return either


def _tried(scan: Scan, careful: Callable[..., Any]) -> Callable[..., Any]:
    fits, within, combine, apply = scan.trial
    outputs = _outputs(scan, apply)

    @inlined
    def tried(p, columns, outs, k, c, left, number, about, state, streaming, walk, back):
        inner, total = within(columns)
        entering, after = passed_on(combine, p, state, total, walk)
        v = outputs(entering, inner, about)
        if fits(after, v):
            store_tile(p, outs, k, c, left, v, streaming, NUMBERS, walk, back)
            return after
        return careful(p, columns, outs, k, c, left, number, about, state, streaming, walk, back)

    return tried
