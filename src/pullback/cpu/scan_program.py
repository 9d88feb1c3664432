"""Which walk of a scan a plan runs, and over which items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.contract.element import ElementKind
from pullback.cpu.block import TENSORS
from pullback.cpu.columns import lanes_of_lines
from pullback.cpu.lookback import LINK_WORDS
from pullback.cpu.loops import axis_words
from pullback.cpu.places import AXIS
from pullback.cpu.program import Phase, Program, grain_for, streams
from pullback.cpu.scan_words import MOST_TENSORS
from pullback.cpu.walks import CHUNK, SIDE, Walks
from pullback.tensor.layout import Strides, along_axis

SHORT = 128  # steps of lines that go W at a time
PIECE = 256  # steps of a piece, on average, that goes together with others
FEW = 16  # fewer lines are shared by threads, if they are long


def sign_bit(element: ElementKind) -> int:
    """Of the numbers that extrema of an element are compared as."""
    return -(1 << 63) if element is ElementKind.F64 else -(1 << 31)


def scan_program(
    walks: Walks,
    desc: Any,
    views: Sequence[Any],
    against: bool = False,
    edges: tuple[Strides | None, Strides | None] = (None, None),
    negated: bool = False,
    option: bool = False,
) -> Program:
    """A scan over the first slots of a plan, None for those that are not there. `against`: it walks
    against the direction of the forward. `edges`: the strides of the initial value, in the slot
    after those, and of what is asked for at the end, two slots on. `negated`: a scan that flips
    signs does. `option`: what the op decides at run time."""
    present = [v.strides for v in views if v is not None]
    strides = [present[0] if v is None else v.strides for v in views]
    none = (0,) * len(present[0])
    beside = [none if edge is None else edge for edge in edges]
    alike = [walks.scan.inputs[t] for t in walks.scan.alike]
    loops = along_axis(desc.input_shape, desc.scan_axis, strides, beside, alike)
    n, count, size = loops.extent, loops.rest.count, desc.element.itemsize
    reverse = desc.reverse != against
    walked = [s for t, s in enumerate(loops.steps[: len(views)]) if s or t not in alike]
    steps = {-s if reverse else s for s in walked} if n > 1 else {1}
    inner = loops.rest.extents[-1] if loops.rest.extents else 1
    lanes = lanes_of_lines(size, walks.scan.tensors)
    straight = next(iter(steps)) if steps in ({1}, {-1}) else 0
    walk, columns, strip, links = "along", 1, 1, 0
    if loops.columns:
        walk, columns, strip = "across", inner, SIDE
    elif desc.num_pieces is not None:
        pass
    elif inner >= lanes and (n <= SHORT or walks.scan.serial or not straight):
        walk, columns, strip = "lines", inner, lanes * max(1, 1024 // (n + 1))
    elif walks.shares and 0 < count < FEW and n >= 2 * CHUNK:
        walk, strip, links = "shared", count, count
    items = count // max(columns, 1) * -(-columns // strip) if n or edges[1] is not None else 0
    if links:
        items = count * -(-n // CHUNK)
    cost = n * min(strip, columns) * size * len(present)
    # Transposed rows leave in pieces of 16 bytes, which pays for f64 (0.90 of the time of cumsum
    # 4096x4096; f32 1.0, bf16 1.2) and where most tiles hold nothing new. Walks align one output.
    looks = bool(walks.scan.held) or (size == 4 and walks.scan.recalls is not None)
    pays = walk == "across" or (n > SHORT and (size == 8 or looks))
    streaming = (
        pays and not walks.scan.busy and walks.scan.results == 1 and streams(n * count * size)
    )
    axis = axis_words(loops, reverse)
    words = [0] * (1 + MOST_TENSORS - len(views))
    words += [columns, strip, int(streaming), straight, -1 if desc.reverse else 0]
    words += [AXIS + len(axis)]
    words += [0 if e is None else TENSORS + len(views) + 2 * k for k, e in enumerate(edges)]
    words += [len(views), sign_bit(desc.element) if negated else 0]
    words += [int(walks.scan.delays and desc.exclusive), int(option)]
    words += [*axis, *(0,) * (LINK_WORDS * links)]
    # Neighbouring items go to one thread: what is prefetched beyond one is the next.
    grain = 1 if links else max(grain_for(cost), items // 256 if walk != "across" else 1)
    if straight < 0 and f"{walk}_back" in walks.kernels:
        walk = f"{walk}_back"
    kernels = [walks.kernels[walk]]
    if ahead := walks.kernels.get(f"{walk}_ahead"):
        kernels.insert(0, ahead)
        words += [0] * LINK_WORDS * links
    phases = tuple(Phase(kernel, items, grain) for kernel in kernels)
    together = None
    if walk == "along" and straight and n <= PIECE * (desc.num_pieces or 0):
        together = walks.kernels.get("pieces")
    return Program(phases, tuple(words), axis=AXIS, together=together)
