"""Derivatives of table lookups and bags: linear in the table and in the weights of the samples, so
every derivative is one of the other functions. `accumulate_into` is a term of a sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.ops.axes import Axes, Rule, Shapes, notation
from pullback.ops.calculus import Array, Arrays, Calculus, Options, Tangents
from pullback.ops.embedding.functions import (
    embedding,
    embedding_backward,
    embedding_bag,
    embedding_bag_backward,
    embedding_bag_per_sample_weights_backward,
)

_LOOKUP = ("padding_idx", "out_of_range")
_BAG = (*_LOOKUP, "include_last_offset")


def _some(options: Options, *names: str) -> Options:
    return {name: options[name] for name in names}


def _shared(xp: Arrays, rows: Array, counts: Array) -> Array:
    """Each row of a table divided by how many positions hold it."""
    return rows / xp.where(counts < 1, 1.0, counts)


# --- lookups ------------------------------------------------------------------------------------


def _pull(xp: Arrays, g: Array, *, indices: Any, shapes: Any, options: Options) -> Tangents:
    return {"weight": embedding_backward(g, indices, shapes["weight"][0], **options)}


def _push(xp: Arrays, t: Tangents, *, indices: Any, options: Options) -> Array:
    return embedding(t["weight"], indices, **options)


def _batch(
    xp: Arrays, function: Any, size: int, mapped: frozenset[str], arguments: dict[str, Any]
) -> Any:
    """Indices have any shape, so a batch of them is one more axis; tables are taken one by one."""
    return function(**arguments) if mapped == {"indices"} else None


def _backward_pull(
    xp: Arrays, g: Array, *, dout: Array | None, indices: Any, shapes: Any, options: Options
) -> Tangents:
    rows, lookup = g, _some(options, *_LOOKUP)
    if options["scale_grad_by_freq"]:
        assert dout is not None
        ones = xp.full_like(dout[..., :1], 1.0)
        rows = _shared(xp, g, embedding_backward(ones, indices, g.shape[0], **lookup))
    found = embedding(rows, xp.ids(indices), **lookup)
    return {"dout": found.reshape(shapes["dout"]), "accumulate_into": g}


def _backward_saves(arguments: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(("indices", "dout") if arguments["scale_grad_by_freq"] else ("indices",))


def _backward_push(xp: Arrays, t: Tangents, *, indices: Any, options: Options) -> Array:
    tangent = embedding_backward(t["dout"], indices, **options)
    return tangent + t["accumulate_into"] if "accumulate_into" in t else tangent


# --- bags ---------------------------------------------------------------------------------------


def _is_max(arguments: Mapping[str, Any]) -> bool:
    return str(getattr(arguments["mode"], "value", arguments["mode"])).endswith("max")


def _picked(xp: Arrays, rows: Array, winners: Array) -> Array:
    """The entries of a table that won their bags; 0 for an empty bag."""
    if not rows.shape[0]:
        return xp.full_like(winners, 0) * xp.sum(rows, 0, True)
    found = xp.take_along_axis(rows, xp.where(winners < 0, 0, winners), 0)
    return xp.where(winners < 0, 0.0, found)


def _bag_records(arguments: Mapping[str, Any]) -> Options:
    return {"return_indices": True} if _is_max(arguments) else {}


def _bag_saves(arguments: Mapping[str, Any]) -> frozenset[str]:
    weights = arguments["per_sample_weights"]
    names = (
        ("indices", "offsets")
        if weights is None
        else ("indices", "offsets", "weight", "per_sample_weights")
    )
    return frozenset(names)


def _bag_pull(
    xp: Arrays,
    g: Array,
    *,
    weight: Array | None,
    indices: Any,
    offsets: Array,
    per_sample_weights: Array | None,
    recorded: Array | None,
    shapes: Any,
    wanted: frozenset[str],
    options: Options,
) -> Tangents:
    gradients: Tangents = {}
    if "weight" in wanted:
        gradients["weight"] = embedding_bag_backward(
            g,
            indices,
            offsets,
            shapes["weight"][0],
            per_sample_weights=per_sample_weights,
            output_index=recorded,
            **_some(options, "mode", *_BAG),
        )
    if "per_sample_weights" in wanted:
        gradients["per_sample_weights"] = embedding_bag_per_sample_weights_backward(
            g, weight, indices, offsets, **_some(options, *_BAG)
        )
    return gradients


def _bag_push(
    xp: Arrays,
    t: Tangents,
    *,
    weight: Array,
    indices: Any,
    offsets: Array,
    per_sample_weights: Array | None,
    recorded: Array | None,
    options: Options,
) -> Array:
    if recorded is not None:
        return _picked(xp, t["weight"], recorded)

    def bag(table: Array, weights: Array | None) -> Array:
        kept = _some(options, "mode", *_BAG)
        return embedding_bag(table, indices, offsets, per_sample_weights=weights, **kept)

    tangent = bag(t["weight"], per_sample_weights)
    if per_sample_weights is None:
        return tangent
    return tangent + bag(weight, t["per_sample_weights"])


def _bag_backward_pull(
    xp: Arrays,
    g: Array,
    *,
    dout: Array,
    indices: Any,
    offsets: Array,
    per_sample_weights: Array | None,
    output_index: Array | None,
    wanted: frozenset[str],
    options: Options,
) -> Tangents:
    bag, rows = _some(options, *_BAG), g
    if options["scale_grad_by_freq"]:
        ones = xp.full_like(dout[:, :1], 1.0)
        counts = embedding_bag_backward(ones, indices, offsets, g.shape[0], mode="sum", **bag)
        rows = _shared(xp, g, counts)
    gradients = {"accumulate_into": g}
    if _is_max(options):
        gradients["dout"] = _picked(xp, rows, output_index)
    elif "dout" in wanted:
        gradients["dout"] = embedding_bag(
            rows,
            indices,
            offsets,
            mode=options["mode"],
            per_sample_weights=per_sample_weights,
            **bag,
        )
    if "per_sample_weights" in wanted:
        gradients["per_sample_weights"] = embedding_bag_per_sample_weights_backward(
            dout, rows, indices, offsets, **bag
        )
    return gradients


def _bag_backward_push(
    xp: Arrays,
    t: Tangents,
    *,
    dout: Array,
    indices: Any,
    offsets: Array,
    per_sample_weights: Array | None,
    output_index: Array | None,
    options: Options,
) -> Array:

    def spread(gradient: Array, weights: Array | None) -> Array:
        tensors = {"per_sample_weights": weights, "output_index": output_index}
        return embedding_bag_backward(gradient, indices, offsets, **tensors, **options)

    tangent = spread(t["dout"], per_sample_weights)
    if per_sample_weights is not None:
        tangent = tangent + spread(dout, t["per_sample_weights"])
    return tangent + t["accumulate_into"] if "accumulate_into" in t else tangent


def _weights_pull(
    xp: Arrays,
    g: Array,
    *,
    dout: Array,
    weight: Array,
    indices: Any,
    offsets: Array,
    options: Options,
) -> Tangents:
    shared = {"mode": "sum", "per_sample_weights": g, **options}
    return {
        "dout": embedding_bag(weight, indices, offsets, **shared),
        "weight": embedding_bag_backward(dout, indices, offsets, weight.shape[0], **shared),
    }


def _weights_push(
    xp: Arrays,
    t: Tangents,
    *,
    dout: Array,
    weight: Array,
    indices: Any,
    offsets: Array,
    options: Options,
) -> Array:
    shares = embedding_bag_per_sample_weights_backward
    return shares(t["dout"], weight, indices, offsets, **options) + shares(
        dout, t["weight"], indices, offsets, **options
    )


_TABLE = {"weight": "v d", "indices": "i*"}
_GRADIENT = {"dout": "i* d", "indices": "i*", "accumulate_into": "v d"}
_BAGS = {"indices": "n", "offsets": "border", "per_sample_weights": "n", "output_index": "b d"}
_EQUAL_BAGS = {"indices": "b n", "per_sample_weights": "b n", "output_index": "b d"}


def _bag_axes(result: str, **tensors: str) -> Rule:
    """Features are free, and bags where each is a row of the indices; not what a result lacks."""
    listed = notation([result], "d" if "d" in result.split() else "", **tensors, **_BAGS)
    rows = result.replace("n", "b n") if result == "n" else result
    free = " ".join(axis for axis in ("b", "d") if axis in rows.split())
    equal = notation([rows], free, **tensors, **_EQUAL_BAGS)

    def rule(shapes: Shapes, options: Mapping[str, Any]) -> Axes | None:
        return (listed if "offsets" in shapes else equal)(shapes, options)

    return rule


CALCULUS = {
    "embedding": Calculus(
        _pull, _push, batch=_batch, axes=notation(["i* d"], free="i* d", along="v", **_TABLE)
    ),
    "embedding_backward": Calculus(
        _backward_pull,
        _backward_push,
        saves=_backward_saves,
        axes=notation(["v d"], free="d", along="v", **_GRADIENT),
    ),
    "embedding_bag": Calculus(
        _bag_pull,
        _bag_push,
        saves=_bag_saves,
        records=_bag_records,
        axes=_bag_axes("b d", weight="v d"),
    ),
    "embedding_bag_backward": Calculus(
        _bag_backward_pull,
        _bag_backward_push,
        axes=_bag_axes("v d", dout="b d", accumulate_into="v d"),
    ),
    "embedding_bag_per_sample_weights_backward": Calculus(
        _weights_pull, _weights_push, axes=_bag_axes("n", dout="b d", weight="v d")
    ),
}
