"""Scans over short pieces of a line, several at a time: the bits of each piece by itself."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu import piecewise

LIMITS = np.iinfo(np.int64)


def borders(rng: np.random.Generator, lengths: Any) -> Any:
    """Those of such pieces, in any order, with empty ones before and after them."""
    return np.cumsum([0, 0, 0, *rng.permutation(lengths), 0, 0])


# Empty pieces, one of a few steps, more than go together at once, one too long to go with others.
LENGTHS = {
    "short": np.arange(60) % 11,
    "one": [3],
    "empty": [0, 0, 0],
    "many": np.arange(piecewise.AT_MOST + 50) % 4,
    "giants": [*(np.arange(300) % 9), piecewise.LONG + 1, 3 * piecewise.LONG],
}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("cumsum", "f4"),
        ("cumsum", "f8"),
        ("cumsum", "f2"),
        ("cumprod", "f4"),
        ("cummax", "f4"),
        ("linear_scan", "f4"),
    ],
)
def test_a_piece_has_the_bits_it_has_alone(
    op: str, dtype: str, reverse: bool, lengths: str
) -> None:
    rng = np.random.default_rng(7)
    offsets = borders(rng, LENGTHS[lengths])
    x = rng.standard_normal(offsets[-1]).astype(dtype)
    first = rng.standard_normal(len(offsets) - 1).astype(dtype)

    def scan(begin: int, end: int, **given: Any) -> Any:
        v = x[begin:end]
        if op == "linear_scan":
            return pb.linear_scan(np.abs(v) % 1, v, 0, reverse=reverse, **given)
        return getattr(pb, op)(v, 0, reverse=reverse, **given)

    for exclusive in (False, True):
        for initial in (None, first):
            given: dict[str, Any] = {"exclusive": exclusive}
            if initial is not None:
                given["initial"] = initial
            found = scan(0, len(x), offsets=offsets, **given)
            for k, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if initial is not None:
                    given["initial"] = initial[k]
                alone = scan(begin, end, **given)
                assert found[begin:end].tobytes() == alone.tobytes(), (exclusive, initial, k)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "linear_scan"])
def test_gradients_of_a_piece_have_the_bits_they_have_alone(op: str, reverse: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    offsets = borders(rng, LENGTHS["giants"])
    pieces = len(offsets) - 1
    x, dy = (torch.tensor(rng.standard_normal(offsets[-1]).astype("f4")) for _ in range(2))
    first = torch.tensor(rng.standard_normal(pieces).astype("f4"))

    def gradients(begin: int, end: int, which: Any, **given: Any) -> Any:
        v, initial = x[begin:end].clone().requires_grad_(), first[which].clone().requires_grad_()
        if op == "linear_scan":
            a = (v.detach().abs() % 1).requires_grad_()
            inputs, y = (a, v, initial), pb.linear_scan(a, v, 0, initial=initial, **given)
        else:
            inputs, y = (v, initial), getattr(pb, op)(v, 0, initial=initial, **given)
        return torch.autograd.grad(y, inputs, dy[begin:end])

    for exclusive in (False, True):
        given = {"exclusive": exclusive, "reverse": reverse}
        *found, firsts = gradients(0, len(x), slice(None), offsets=torch.tensor(offsets), **given)
        for k, (begin, end) in enumerate(itertools.pairwise(offsets)):
            *alone, own = gradients(begin, end, k, **given)
            assert firsts[k].numpy().tobytes() == own.numpy().tobytes(), (exclusive, k)
            for whole, piece in zip(found, alone, strict=True):
                part = whole[begin:end].numpy()
                assert part.tobytes() == piece.numpy().tobytes(), (exclusive, k)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(9, 40), (3, 2, 40), (2, 3, 40)])
def test_pieces_of_lines_that_join_have_the_bits_they_have_alone(
    shape: tuple[int, ...], reverse: bool
) -> None:
    rng = np.random.default_rng(9)
    offsets = borders(rng, [3, 0, 8, 17, 12])
    whole = rng.standard_normal((2 * shape[0], *shape[1:])).astype("f4")
    firsts = rng.standard_normal((*shape[:-1], len(offsets) - 1)).astype("f4")
    # Lines that join, lines with others between them, and two loops that do not merge.
    for x in (whole[: shape[0]], whole[::2], np.swapaxes(whole[: shape[0]], 0, -2)):
        for initial in (None, firsts if x.shape == shape else None, firsts[..., :1, :]):
            if initial is not None and x.shape != shape:
                continue
            given: dict[str, Any] = {} if initial is None else {"initial": initial}
            found = pb.cumsum(x, -1, reverse=reverse, offsets=offsets, **given)
            for k, (begin, end) in enumerate(itertools.pairwise(offsets)):
                if initial is not None:
                    given["initial"] = initial[..., k]
                alone = pb.cumsum(x[..., begin:end], -1, reverse=reverse, **given)
                assert found[..., begin:end].tobytes() == alone.tobytes(), (initial is None, k)


def test_borders_whose_differences_overflow_are_refused() -> None:
    offsets = np.array([0, LIMITS.max, LIMITS.min, -1, 5])
    with pytest.raises(pb.InvalidProblem, match="at position 1"):
        pb.cumsum(np.ones(5), offsets=offsets)


def test_short_pieces_go_together_and_long_ones_alone() -> None:
    from pullback.contract.element import ElementKind
    from pullback.contract.kinds import ScanKind
    from pullback.ops.scan import cpu
    from pullback.ops.scan.contract import ScanDescriptor

    x = np.ones(4096, np.float32)
    for pieces, together in ((512, True), (2, False)):
        desc = ScanDescriptor(
            kind=ScanKind.CUMSUM,
            input_shape=(4096,),
            scan_axis=0,
            element=ElementKind.F32,
            num_pieces=pieces,
        )
        offsets = np.linspace(0, 4096, pieces + 1).astype(np.int64)
        views = [View(v) for v in (x, offsets)]
        given = dict.fromkeys(list(inspect.signature(cpu.forward).parameters)[1:])
        given |= {"x": views[0], "y": views[0], "offsets": views[1]}
        program = cpu.forward(desc, **given)
        names = [phase.kernel.name for phase in program.phases]
        assert any(name.endswith("cumsum_pieces") for name in names) == together


class View:
    """What programs read of a tensor."""

    def __init__(self, array: Any) -> None:
        from pullback.contract.element import ElementKind

        self.shape, self.element = array.shape, ElementKind.I64
        self.strides = tuple(s // array.itemsize for s in array.strides)
