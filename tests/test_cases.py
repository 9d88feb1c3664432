"""Every adversarial case is well formed: its oracles take it and agree on its shapes."""

from __future__ import annotations

from importlib import import_module
from itertools import cycle

import numpy as np
import pytest

from pullback.ops.case import Case

FORWARDS = {
    "scan": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    "lerp": ("lerp",),
    "simplex": ("softmax", "log_softmax", "sparsemax", "entmax15"),
    "segment": tuple(f"segment_{r}" for r in ("sum", "mean", "max", "min", "prod")),
    "segment_softmax": ("segment_softmax", "segment_log_softmax"),
    "segment_statistics": ("segment_logsumexp", "segment_var", "segment_std"),
    "segment_gather": ("gather_segment_reduce",),
    "embedding": ("embedding", "embedding_bag"),
}


def family(name: str) -> list[Case]:
    module = import_module(f"pullback.ops.{name}.cases")
    return list(module.cases(np.random.default_rng(7)))


@pytest.mark.parametrize("name", FORWARDS)
def test_names_are_unique_and_values_repeat_with_the_seed(name: str) -> None:
    once, again = family(name), family(name)
    assert len({case.name for case in once}) == len(once)
    for case, twin in zip(once, again, strict=True):
        assert (case.name, str(case.options)) == (twin.name, str(twin.options))
        for key, array in case.arrays.items():
            assert array.dtype in (np.float64, np.int64)
            np.testing.assert_array_equal(array, twin.arrays[key])


@pytest.mark.parametrize("name", FORWARDS)
def test_oracles_take_every_case(name: str) -> None:
    """Oracles in turn: what is ill formed for one is so for all of a family."""
    oracle, turns = import_module(f"pullback.ops.{name}.oracle"), cycle(FORWARDS[name])
    for case in family(name):
        arrays = dict(case.arrays)
        dy = arrays.pop("dy") if "dy" in arrays else arrays.pop("dout")
        bags = name == "embedding" and "per_sample_weights" in arrays
        op = next(op for op in turns if name != "embedding" or bags == (op == "embedding_bag"))
        given = {k: v for k, v in arrays.items() if k != "per_sample_weights"}
        sized = {"num_segments": len(dy)} if name.startswith("segment") else {}
        # How ids are given changes nothing in a definition.
        unread = ("indices_are_sorted", "num_inputs")
        options = {k: v for k, v in case.options.items() if k not in unread}
        y = getattr(oracle, op)(**given, **{**sized, **options})
        assert y.shape == dy.shape, (op, case.name)
        assert y.dtype == np.longdouble, (op, case.name)
