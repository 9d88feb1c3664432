"""Strides and loops, against a plain count of all elements."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from pullback.tensor.layout import (
    along_axis,
    merge,
    overlaps_itself,
    reach,
    share_an_element,
)


def _offsets(shape: Any, strides: Any) -> list[int]:
    """Of every element, in the order of the shape."""
    steps = (range(extent) for extent in shape)
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*steps)]


def _random(seed: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A shape and strides of three tensors of it: permuted, sliced, reversed, broadcast."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4], rng.integers(0, 5)))
    tensors = []
    for _ in range(3):
        order, step = rng.permutation(len(shape)), 1
        strides = [0] * len(shape)
        for axis in order:
            strides[axis] = step * int(rng.choice([1, 1, 1, -1, 0]))
            step *= shape[axis] * int(rng.choice([1, 1, 2]))
        tensors.append(tuple(strides))
    return shape, tensors


@pytest.mark.parametrize("seed", range(200))
def test_merged_loops_visit_every_element_of_all_tensors_once(seed: int) -> None:
    shape, tensors = _random(seed)
    wanted = sorted(zip(*(_offsets(shape, strides) for strides in tensors), strict=True))
    loops = merge(shape, tensors)
    found = zip(*(_offsets(loops.extents, strides) for strides in loops.strides), strict=True)
    assert sorted(found) == wanted
    ordered = merge(shape, tensors, ordered=True)
    for strides, plain in zip(ordered.strides, tensors, strict=True):
        assert _offsets(ordered.extents, strides) == _offsets(shape, plain)


@pytest.mark.parametrize("seed", range(200))
def test_reach_and_overlap_are_those_of_all_elements(seed: int) -> None:
    shape, tensors = _random(seed)
    for strides in tensors:
        offsets = _offsets(shape, strides)
        assert reach(shape, strides) == (min(offsets), max(offsets) + 1)
        assert overlaps_itself(shape, strides) == (len({*offsets}) < prod(shape))


@pytest.mark.parametrize("seed", range(200))
def test_columns_are_adjacent_in_every_tensor(seed: int) -> None:
    shape, tensors = _random(seed)
    for axis in range(len(shape)):
        loops = along_axis(shape, axis, tensors)
        assert loops.steps == tuple(strides[axis] for strides in tensors)
        adjacent = all(strides and strides[-1] == 1 for strides in loops.rest.strides)
        straight = shape[axis] > 1 and all(abs(step) == 1 for step in loops.steps)
        assert loops.columns == (adjacent and not straight)


# Whether these share an element takes NumPy too long to find out.
START = 2913
FIRST = (535, 1621, 14159, 14476, 15438, 17410, 19294, 19961)
SECOND = (5611, 10585, 14793, 16021, 17461, 17895, 18068, 19213)


def test_overlap_that_is_too_hard_to_decide_counts_as_one() -> None:
    memory = np.zeros(1 << 20, np.float32)

    def view(start: int, strides: tuple[int, ...]) -> Any:
        places = tuple(4 * stride for stride in strides)
        return np.lib.stride_tricks.as_strided(memory[start:], (3,) * len(strides), places)

    first = view(0, FIRST)
    second = view(START, SECOND)
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(first, second, max_work=1 << 16)
    assert share_an_element(first, second)
    assert not share_an_element(memory[:8:2], memory[1:8:2])
    assert share_an_element(memory[:4], memory[3:8])


def test_broadcast_tensors_do_not_order_the_loops() -> None:
    """A factor per channel: channels stay innermost, as they lie in tensors of full size."""
    factors, full = (0, 0, 1), (32768, 64, 1)
    loops = along_axis((64, 512, 64), 1, [factors, full, full])
    assert loops.columns
    assert loops.rest.strides == ((0, 1), (32768, 1), (32768, 1))
