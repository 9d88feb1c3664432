"""Arguments that nobody takes: one sentence, with the name that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from dataclasses import MISSING, fields
from typing import Any

# What other libraries call the same thing, by the names it may have here.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "a": ("input", "start"),
    "alpha": ("order",),
    "axis": ("dim", "dimension", "axes", "scan_axis", "softmax_axis"),
    "b": ("end", "other"),
    "dout": ("grad_output", "dy", "d_output"),
    "dy": ("grad_output", "dout", "d_output"),
    "empty": ("fill_value", "initial"),
    "indices": ("input", "index", "ids"),
    "indices_are_sorted": ("sorted", "is_sorted"),
    "input_shape": ("shape",),
    "num_embeddings": ("num_weights", "num_rows"),
    "num_segments": ("dim_size", "num_classes"),
    "offsets": ("indptr", "ptr", "cu_seqlens", "lengths"),
    "out_of_range": ("mode", "policy"),
    "reduce": ("reduction", "mode"),
    "return_indices": ("return_index", "return_inverse", "indices"),
    "scan_axis": ("axis", "dim"),
    "segment_ids": ("index", "ids", "batch", "labels"),
    "softmax_axis": ("axis", "dim"),
    "target": ("labels", "targets"),
    "weight": ("table", "params"),
    "x": ("input", "a", "src", "data", "array", "logits"),
}


def hint(name: str, known: Collection[str], given: Collection[str] = ()) -> str:
    """`, did you mean 'axis'?`, or nothing. A name that was given already was not meant."""
    from difflib import get_close_matches

    free = [other for other in known if other not in given]
    meant = [other for other in free if name in SYNONYMS.get(other, ())]
    meant = get_close_matches(name, free, 1, 0.75) or meant or get_close_matches(name, free, 1)
    return f", did you mean {meant[0]!r}?" if meant else ""


def unexpected(
    op: str, unknown: Iterable[str], known: Collection[str], given: Collection[str] = ()
) -> TypeError:
    """The error for arguments that are not known."""
    name = next(iter(unknown))
    return TypeError(f"{op}: unexpected argument {name!r}{hint(name, known, given)}")


def missing(op: str, names: Iterable[str]) -> TypeError:
    """The error for arguments that were left out."""
    listed = ", ".join(repr(name) for name in names)
    return TypeError(f"{op}: missing argument {listed}")


# --- descriptors and args -----------------------------------------------------------------------

_SOURCE = """\
def __init__(self, *, {parameters}, **unknown):
    if unknown{missing}:
        refuse(type(self).__name__, unknown, {names})
    {stores}
"""


_EXPLAINED: set[type] = set()


def explain_names(kind: type) -> None:
    """Give a keyword-only dataclass an `__init__` that says which field was probably meant. It is
    as fast as the dataclass's own, which it replaces: args are made for every run of a plan."""
    own: Any = next(cls for cls in kind.__mro__ if "__init__" in vars(cls))
    plain = hasattr(own, "__dataclass_fields__") and not hasattr(own, "__post_init__")
    if own in _EXPLAINED or not plain:
        return
    if not all(f.kw_only and f.default_factory is MISSING for f in fields(own)):
        return
    _EXPLAINED.add(own)
    named, shown = fields(own), inspect.signature(own.__init__)
    required = [f.name for f in named if f.default is MISSING]

    def refuse(op: str, unknown: dict[str, Any], **given: Any) -> None:
        left_out = [name for name in required if given[name] is MISSING]
        if unknown:
            stated = [name for name in required if name not in left_out]
            raise unexpected(op, unknown, [*given], stated)
        raise missing(op, left_out)

    store = "store(self, {0!r}, {0})" if own.__dataclass_params__.frozen else "self.{0} = {0}"
    source = _SOURCE.format(
        parameters=", ".join(f"{f.name}=default_{f.name}" for f in named),
        missing="".join(f" or {name} is MISSING" for name in required),
        names=", ".join(f"{f.name}={f.name}" for f in named),
        stores="\n    ".join(store.format(f.name) for f in named),
    )
    scope = {"MISSING": MISSING, "refuse": refuse, "store": object.__setattr__}
    scope |= {f"default_{f.name}": f.default for f in named}
    exec(compile(source, f"<{own.__name__}>", "exec"), scope)
    made: Any = scope["__init__"]
    made.__signature__, made.__qualname__ = shown, f"{own.__name__}.__init__"
    own.__init__ = made
