"""Gradients of the rows that received something, and which rows those are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.contract.errors import InvalidProblem, Unsupported
from pullback.contract.imports import resolve
from pullback.contract.kinds import IndexPolicy
from pullback.contract.once import once
from pullback.gpu.errors import check
from pullback.ops.embedding.contract import FAILURES, check_winners
from pullback.ops.segment.index import SegmentIndex, check_ids, index_of
from pullback.plan.function import Call, Function
from pullback.plan.public import CACHEABLE
from pullback.tensor.adapters import JAX, TRACED, family_of, overrides
from pullback.tensor.view import TensorRef, as_numpy

Ids = npt.NDArray[np.int64]


class SparseFunction(Function):
    """A gradient that is dense or, with `sparse=True`, (rows, their gradients)."""

    def dispatch(self, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
        if options.get("sparse") is not True:
            return super().dispatch(args, options, out)
        given = self.bind(args, options)
        # How many rows there are is not known yet.
        if family_of(given["indices"]) is TRACED or any(map(overrides, given.values())):
            return super().dispatch(args, options, out)
        for name, array in (("out", out), ("accumulate_into", given["accumulate_into"])):
            if array is not None:
                raise InvalidProblem(self.name, name, "None with sparse=True", "an array")
        given["sparse"] = False
        adapter = family_of(given["dout"])
        family = adapter.family if adapter else ""
        if str(given.get("mode")).endswith("max") or not _is_plain(family, given):
            return self._in_two_steps(given)
        if family == "torch" and given["dout"].is_cuda:
            self._check_device(self.views(given))
            del given["sparse"], given["accumulate_into"]
            gradients, rows = resolve("pullback.frontends.torch_gpu:on_gpu")(self.received, **given)
            count = int(rows[-1])  # waits for the device: how many there are is part of the shape
            check()
            return rows[:count], gradients[:count]
        if isinstance(given["indices"], SegmentIndex):
            self.body(**self.views(given))  # what an index is refused for
            ids = np.array(given["indices"].ids)
            shape = ids.shape if "offsets" in given else given["dout"].shape[:-1]
            given["indices"] = _like(given["dout"], ids.reshape(tuple(shape)))
        del given["sparse"], given["accumulate_into"]
        if family == "jax":
            given = {name: _seen(value) for name, value in given.items()}
        gradients, rows = _called(self.received, given)
        count = int(rows[-1])
        found = rows[:count], gradients[:count]
        if 2 * count < len(gradients):  # else most of what is kept would be unused
            found = found[0] + 0, found[1] + 0
        return tuple(_like(args[0], part) for part in found) if family == "jax" else found

    def planned(self, given: dict[str, Any]) -> Call:
        if given.get("sparse") is not True or str(given.get("mode")).endswith("max"):
            return super().planned(given)
        kept = {k: v for k, v in given.items() if k not in ("sparse", "accumulate_into")}
        return self.received.planned(kept)

    @once
    def received(self) -> Function:
        """(gradients, rows) of the rows that received something, in tables for as many as may; the
        last of the rows is how many there are. On plain arrays in memory only."""
        body, own = self.body, inspect.signature(self.body)
        kept = [p for n, p in own.parameters.items() if n not in ("sparse", "accumulate_into")]

        @wraps(body)
        def sparse(*args: Any, **options: Any) -> Call:
            call = body(*args, **options)
            desc = replace(call.descriptor, sparse=True, accumulate=False)
            return Call(call.plan, desc, call.tensors, ("dweight", "rows"))

        sparse.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return Function(sparse, self.name)

    def _in_two_steps(self, given: dict[str, Any]) -> Any:
        """The same by functions that every transform knows: which rows those are, then the gradient
        of a table that has no others."""
        views = self.views(given)
        self._check_device(views)
        if views["dout"].device != "cpu" and not views["dout"].address:
            raise Unsupported(self.name, "sparse", "False where indices are not at hand", "True")
        desc = self.body(**views).descriptor
        rows, smaller = _without_other_rows(self.name, desc, given)
        gradients = self(**{**given, **smaller})
        return _like(given["dout"], rows), gradients

    def _check_device(self, views: dict[str, Any]) -> None:
        """All tensors on one: an address of a GPU must not be read on the host."""
        device = views["dout"].device
        for name in self.tensors:
            other = getattr(views[name], "device", device)
            if other != device:
                raise Unsupported(
                    self.name, name, f"on {device}, as `dout`", f"a tensor on {other}"
                )


def _called(function: Function, given: dict[str, Any]) -> Any:
    """A call by all arguments, repeated by the call cache where it can be."""
    found = None
    if type(given["dout"]) in CACHEABLE:
        found = function.lookup(*(given[name] for name in function.parameters), None)
    return function.dispatch(*function.as_called(given), None) if found is None else found


def _is_plain(family: str, given: dict[str, Any]) -> bool:
    """Whether a call is one on arrays in memory, with nothing to record."""
    if family != "torch":
        return True
    plain: Callable[..., bool] = resolve("pullback.frontends.torch:is_plain")
    return plain(value for value in given.values() if hasattr(value, "requires_grad"))


def _seen(value: Any) -> Any:
    """A JAX array as NumPy sees it."""
    return np.asarray(value) if family_of(value) is JAX else value


def _without_other_rows(op: str, desc: Any, given: dict[str, Any]) -> tuple[Ids, dict[str, Any]]:
    """The rows that receive something, and the arguments that number them alone."""
    extent, padding, strict = desc.num_embeddings, desc.padding_idx, desc.policy
    ids = _flat(given["indices"])
    check_ids(op, desc, FAILURES, ids, extent, strict is IndexPolicy.ERROR, ascending=False)
    if getattr(desc, "include_last_offset", False):
        last = max(0, *_flat(given["offsets"])[-1:])
        ids = np.where(np.arange(ids.size) < last, ids, -1)
    elif getattr(desc, "num_bags", 1) == 0:
        ids = np.full(ids.size, -1)  # positions in no bag give nothing to any row
    receivers = ids
    if getattr(desc, "mode", "") == "max":
        if given["output_index"] is None:
            raise InvalidProblem(op, "output_index", "the forward's output_index", "None")
        receivers = _flat(given["output_index"])
        check_winners(op, desc, receivers)
    seen = np.zeros(extent, np.bool_)
    seen[receivers[_kept(receivers, extent, padding)]] = True
    rows = np.flatnonzero(seen)
    numbers = np.full(extent, -1, np.int64)
    numbers[rows] = np.arange(rows.size)

    def renumbered(old: Ids) -> Ids:
        kept = _kept(old, extent, padding)
        new = np.full(old.size, -1, np.int64)
        new[kept] = numbers[old[kept]]
        return new

    on_gpu = getattr(given["dout"], "is_cuda", False)
    shape = given["indices"].shape
    new = renumbered(ids)
    smaller = {
        "indices": _like(given["dout"], new.reshape(shape)) if on_gpu else index_of(new, rows.size),
        "num_embeddings": rows.size,
        "padding_idx": None,
        "out_of_range": "skip",
    }
    if "offsets" in given and given["offsets"] is None and not on_gpu:
        bags, length = np.shape(given["indices"])
        smaller["offsets"] = _like(given["dout"], length * np.arange(bags))
        weights = given["per_sample_weights"]
        smaller["per_sample_weights"] = None if weights is None else weights.reshape(-1)
    if receivers is not ids:
        shape = given["output_index"].shape
        smaller["output_index"] = _like(given["dout"], renumbered(receivers).reshape(shape))
    return rows, smaller


def _kept(ids: Ids, extent: int, padding: int | None) -> npt.NDArray[np.bool_]:
    kept = (ids >= 0) & (ids < extent)
    return kept if padding is None else kept & (ids != padding)


def _flat(ids: Any) -> Ids:
    array = ids.ids if isinstance(ids, SegmentIndex) else ids
    if not isinstance(array, np.ndarray):
        array = as_numpy(TensorRef(array.cpu() if getattr(array, "is_cuda", False) else array))
    return array.astype(np.int64).reshape(-1)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "torch": lambda array: sys.modules["torch"].from_numpy(array),
    "jax": lambda array: sys.modules["jax"].numpy.asarray(array),
}


def _like(array: Any, found: Ids) -> Any:
    """An integer array of the same family as another array."""
    adapter = family_of(array)
    convert = _CONVERSIONS.get(adapter.family if adapter else "")
    made: Any = found if convert is None else convert(found)
    return made.to(array.device) if getattr(array, "is_cuda", False) else made
