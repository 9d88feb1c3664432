"""A trial as a few lines of Python that need nothing of the fuzzer."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.fuzz.trial import Trial

_SPELT = 400  # elements that are written out; more come as bytes

_LAY = """\
def lay(values, strides):  # the same values, so many elements apart
    back = sum((n - 1) * -s for n, s in zip(values.shape, strides) if s < 0 and n)
    reach = sum((n - 1) * abs(s) for n, s in zip(values.shape, strides) if n) + 1
    buffer = np.full(reach * values.itemsize, 0xFF, np.uint8).view(values.dtype)
    steps = [s * values.itemsize for s in strides]
    view = np.lib.stride_tricks.as_strided(buffer[back:], values.shape, steps)
    view[...] = values
    return view
"""


def script(trial: Trial, check: str) -> str:
    """The lines; they end in an error, or print what is to be looked at."""
    lines = ["import numpy as np", "import pullback as pb"]
    if any(array.dtype.name == "bfloat16" for array in trial.arrays.values()):
        lines.append("import ml_dtypes")
    laid = check in ("layout", "torch", "plan", "in place", "crash")
    if laid:
        lines += ["", _LAY]
    for name, array in trial.arrays.items():
        lines.append(f"{name} = {spell(array)}")
    options = "".join(f", {name}={_spell_option(v)}" for name, v in trial.options.items())
    call = f"pb.{trial.function}({_named(trial)}{options})"
    lines += [f"pb.set_num_threads({trial.threads[0]})", f"want = {call}"]
    lines += _SECOND.get(check, _second_laid)(trial, options, check)
    return "\n".join(lines) + "\n"


def _named(trial: Trial, suffix: str = "") -> str:
    return ", ".join(f"{name}={name}{suffix}" for name in trial.arrays)


def _look(trial: Trial, options: str, check: str) -> list[str]:
    return ["print(want)"]


def _other_threads(trial: Trial, options: str, check: str) -> list[str]:
    call = f"pb.{trial.function}({_named(trial)}{options})"
    return [f"pb.set_num_threads({trial.threads[1]})", f"got = {call}", *_compared()]


def _again(trial: Trial, options: str, check: str) -> list[str]:
    return [f"got = pb.{trial.function}({_named(trial)}{options})", *_compared()]


def _second_laid(trial: Trial, options: str, check: str) -> list[str]:
    lines, given = [], options
    for name, array in trial.arrays.items():
        layout = trial.layout(name, array.ndim)
        layout = layout.forwards() if check == "torch" else layout
        laid = f"lay({name}, {layout.strides(array.shape)})"
        if check == "torch":
            lines.append(f"{name}_ = torch.from_numpy({laid})")
        else:
            lines.append(f"{name}_ = {laid}")
    if check == "in place":
        given += f", out={next(iter(trial.arrays))}_"
    elif trial.out or check == "plan":
        lines.append("several = want if isinstance(want, tuple) else (want,)")
        layout = trial.layouts["out"].apart()
        lines.append(_out_line(trial, layout.forwards() if check == "torch" else layout))
        given += ", out=out if len(out) > 1 else out[0]"
    if check == "torch":
        lines.insert(0, "import torch  # bfloat16: from_numpy(a.view('i2')).view(torch.bfloat16)")
    if check == "plan":
        lines.append("# the same by the plan of this function:")
    lines.append(f"got = pb.{trial.function}({_named(trial, '_')}{given})")
    return [*lines, *_compared()]


def _out_line(trial: Trial, layout: Any) -> str:
    """`out` for results of the layout's rank, contiguous for others."""
    order, steps, gaps = layout.order, layout.steps, layout.gaps
    return (
        f"def strides(shape, order={order}, steps={steps}, gaps={gaps}):\n"
        "    found, filled = [0] * len(shape), 1\n"
        "    for axis in reversed(order if len(order) == len(shape) else range(len(shape))):\n"
        "        step, gap = (steps[axis], gaps[axis]) if len(order) == len(shape) else (1, 0)\n"
        "        found[axis] = filled * step\n"
        "        filled *= max(shape[axis], 1) * abs(step) + gap\n"
        "    return found\n"
        "out = tuple(lay(np.zeros_like(part), strides(part.shape)) for part in several)"
    )


def _compared() -> list[str]:
    return [
        "for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want))):",
        "    assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), (a, b)",
    ]


_SECOND = {
    "plain": _look,
    "oracle": _look,
    "windows": _look,  # by stateful plans, of a third and of the rest of the axis
    "threads": _other_threads,
    "repeat": _again,
    "jax": _again,
    "alternative": _again,
}


def spell(array: Any) -> str:
    """An expression for an array."""
    dtype = "ml_dtypes.bfloat16" if array.dtype.name == "bfloat16" else repr(array.dtype.str[1:])
    if array.size and np.all(array.reshape(-1)[:1].view(np.uint8) == _rows_of_bytes(array)):
        return f"np.full({array.shape}, {_number(array.reshape(-1)[0])}, {dtype})"
    if array.size <= _SPELT:
        numbers = ", ".join(map(_number, array.reshape(-1)))
        return f"np.array([{numbers}], {dtype}).reshape({array.shape})"
    data = f"bytes.fromhex({array.tobytes().hex()!r})"
    return f"np.frombuffer({data}, {dtype}).reshape({array.shape}).copy()"


def _rows_of_bytes(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)


def _number(value: Any) -> str:
    if value.dtype.kind in "iu":
        return str(int(value))
    number = float(value)
    return repr(number) if np.isfinite(number) else f"float('{number}')"


def _spell_option(value: Any) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    return repr(value)
