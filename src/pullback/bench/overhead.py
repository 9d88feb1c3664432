"""Small costs: a call on 4x8 numbers, the import, the first call of a process; and training steps
through the frameworks, where their own overhead counts too."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pullback.bench import peers
from pullback.bench.figures import At, Figure, ahead, bounded, no_slower
from pullback.bench.memory import environment
from pullback.bench.race import Effort, race
from pullback.bench.results import OURS, Overhead, RowResult
from pullback.bench.workload import Draw, Family, Step, Workload, families
from pullback.contract.element import ElementKind
from pullback.verify.subject import subjects

NAME = "overhead"
EFFORT = Effort(rounds=31, seconds=0.1, least=5, sample=1e-3)

PLAN, FUNCTION = "plan.run on 4x8 f32", "function on 4x8 f32"
IMPORT, FIRST = "import pullback, beyond NumPy", "first call of a process, warm cache"
EAGER, GRAD = "torch tensor, no grad", "torch tensor, forward with grad"
COMPILED, JITTED = "torch.compile beyond eager", "jax.jit beyond a jnp add"
# What they cost without us: of a graph with nothing in it, and with torch's own op.
COMPILED_ADD = "torch.compile beyond eager: t + 1"
COMPILED_OTHER = "torch.compile beyond eager: torch.cumsum"
FIRST_TENSOR = "first call of a process on a tensor, warm cache"
AFTER = "cumsum 4096x4096 right after a torch op, beyond one later"

BOUNDS = {
    PLAN: 4e-6,
    FUNCTION: 6e-6,
    IMPORT: 60e-3,
    FIRST: 0.7,
    EAGER: 6e-6,
    GRAD: 15e-6,
    COMPILED: 5e-6,
    JITTED: 3e-6,
    AFTER: 0.5e-3,
}


def _tiny() -> Any:
    return np.arange(32, dtype=np.float32).reshape(4, 8)


def _entry(what: str, seconds: float) -> Overhead:
    return Overhead(what, seconds, BOUNDS.get(what))


def calls() -> Iterator[Overhead]:
    """The plan and the function on almost nothing."""
    from pullback.bench.problem import Problem

    problem = Problem(subjects()["cumsum"], {"x": _tiny(), "axis": -1})
    run, _ = problem.into_outputs()
    function, x = problem.subject.function.wrapper, problem.arguments["x"]
    took = race({PLAN: run, FUNCTION: lambda: function(x)}, EFFORT)
    yield from (_entry(what, timing.median) for what, timing in took.items())


_IMPORT = (
    "import numpy, time; t = time.perf_counter(); import pullback; print(time.perf_counter() - t)"
)
_FIRST_TENSOR = (
    "import time, torch, pullback; x = torch.ones(4, 8); "
    "t = time.perf_counter(); pullback.cumsum(x); print(time.perf_counter() - t)"
)
_FIRST = (
    "import time, numpy as np, pullback; x = np.ones((4, 8), np.float32); "
    "t = time.perf_counter(); pullback.cumsum(x); print(time.perf_counter() - t)"
)


def starts() -> Iterator[Overhead]:
    """What a new process pays; the cache is warm after the first."""
    for what, code in ((IMPORT, _IMPORT), (FIRST, _FIRST)):
        yield _entry(what, _started(code))


def _started(code: str, times: int = 5) -> float:
    return statistics.median([_child(code) for _ in range(times + 1)][1:])


@cache
def _bytecode() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="pullback-bytecode-")


def _child(code: str, without: str = "") -> float:
    """The number that a new process prints, one that lacks a variable of the environment. It finds
    bytecode, as a process does where packages are installed, also if none may be written here."""
    command, around = [sys.executable, "-c", code], environment()
    around["PYTHONPYCACHEPREFIX"] = _bytecode().name
    for name in (without, "PYTHONDONTWRITEBYTECODE"):
        around.pop(name, None)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=around)
    return float(done.stdout)


# With OpenMP as it comes: its threads stay awake for some milliseconds after an op.
_AFTER = """
import time, numpy as np, torch, pullback
torch.set_num_threads(pullback.get_num_threads())
x = np.ones((4096, 4096), np.float32)
y, theirs = np.empty_like(x), torch.ones(1 << 22)
def after(pause):
    theirs.add_(1)
    time.sleep(pause)
    start = time.perf_counter()
    pullback.cumsum(x, out=y)
    return time.perf_counter() - start
found = [(after(0), after(0.02)) for _ in range(41)]
print(np.subtract(*np.median(found, axis=0)))
"""


def torch_calls() -> Iterator[Overhead]:
    import torch

    yield _entry(AFTER, _child(_AFTER, without="OMP_WAIT_POLICY"))
    yield _entry(FIRST_TENSOR, _started(_FIRST_TENSOR))

    cumsum = subjects()["cumsum"].function.wrapper
    plain, leaf = torch.from_numpy(_tiny()), torch.from_numpy(_tiny()).requires_grad_(True)
    took = race({EAGER: lambda: cumsum(plain), GRAD: lambda: cumsum(leaf)}, EFFORT)
    yield from (_entry(what, timing.median) for what, timing in took.items())
    functions: dict[str, Callable[[Any], Any]] = {
        COMPILED: lambda t: cumsum(t),
        COMPILED_ADD: lambda t: t + 1,
        COMPILED_OTHER: lambda t: torch.cumsum(t, -1),
    }
    eager = {f"{what}, eager": partial(function, plain) for what, function in functions.items()}
    runs = {what: partial(torch.compile(run), plain) for what, run in functions.items()} | eager
    for run in runs.values():
        run()
    took = race(runs, EFFORT)
    for what in functions:
        yield _entry(what, took[what].median - took[f"{what}, eager"].median)


def jax_calls() -> Iterator[Overhead]:
    import jax
    import jax.numpy as jnp

    cumsum = subjects()["cumsum"].function.wrapper
    x = jnp.asarray(_tiny())
    ours, theirs = jax.jit(lambda a: cumsum(a)), jax.jit(lambda a: jnp.add(a, a))
    runs: dict[str, Callable[[], Any]] = {
        "ours": lambda: jax.block_until_ready(ours(x)),
        "theirs": lambda: jax.block_until_ready(theirs(x)),
    }
    for run in runs.values():
        run()
    took = race(runs, EFFORT)
    yield _entry(JITTED, took["ours"].median - took["theirs"].median)


CALLS = {"torch": torch_calls, "jax": jax_calls}


# --- training steps -------------------------------------------------------------------------------


def _workload(family: Family, op: str) -> Workload:
    """The large rows of a family; the unsorted ones of segments, which is what training has."""
    named = [w for w in family.workloads if op in w.ops and "step" in w.tags]
    return (named or [w for w in family.workloads if op in w.ops])[0]


def _torch_step(function: Callable[..., Any], arguments: Any, wrt: Any, dy: Any) -> Any:
    import torch

    arrays = {k: peers.to_torch(v) for k, v in arguments.items() if hasattr(v, "dtype")}
    inputs = [arrays[name].requires_grad_(True) for name in wrt]
    given, g = {**arguments, **arrays}, peers.to_torch(dy)
    return lambda: torch.autograd.grad(function(**given), inputs, g)


def _jax_step(function: Callable[..., Any], arguments: Any, wrt: Any, dy: Any) -> Any:
    import jax
    import jax.numpy as jnp

    arrays = {k: jnp.asarray(v) for k, v in arguments.items() if hasattr(v, "dtype")}
    rest = {k: v for k, v in arguments.items() if k not in arrays}
    inputs, g = [arrays.pop(name) for name in wrt], jnp.asarray(dy)

    def both(given: Any, g: Any) -> Any:
        names = dict(zip(wrt, given, strict=True))
        y, pull = jax.vjp(lambda n: function(**n, **arrays, **rest), names)
        return y, pull(g)

    step = jax.jit(both)
    return lambda: jax.block_until_ready(step(inputs, g))


_STEP = {"torch": _torch_step, "jax": _jax_step}


def steps() -> tuple[Step, ...]:
    """The training steps of all families, by framework."""
    found = [step for family in families().values() for step in family.steps]
    return tuple(step for framework in _STEP for step in found if step[0] == framework)


def step(framework: str, rival: str, op: str, effort: Effort, threads: int) -> RowResult:
    """Forward and backward through a framework: our function beside the framework's own."""
    family = families()[subjects()[op].family]
    workload, draw = _workload(family, op), Draw(ElementKind.F32)
    forward = workload.forward(op, draw)
    dy = draw.normal(*forward.answer()[0].shape)
    theirs = family.peers.table(rival)[op]
    functions: dict[str, Callable[..., Any]] = {
        OURS: forward.subject.function.wrapper,
        rival: theirs,
    }
    runs: dict[str, Callable[[], Any]] = {}
    verdicts: dict[str, str] = {}
    peers.prepare(framework, threads)
    for name, function in functions.items():
        try:
            runs[name] = _STEP[framework](function, forward.arguments, workload.wrt, dy)
            runs[name]()
        except Exception as error:  # a front end may be missing, a framework may refuse
            runs.pop(name, None)
            verdicts[name] = f"failed: {type(error).__name__}: {str(error)[:60]}"
    timings = race(runs, effort) if runs else {}
    way = f"{framework} step"
    size = (forward.nbytes, forward.elements, None, True, 0.0)
    return RowResult(NAME, op, way, workload.name, "f32", *size, timings, verdicts)


def through_torch(effort: Effort) -> RowResult:
    """A large forward on a tensor beside the same on a NumPy array."""
    forward = families()["scan"].workloads[0].forward("cumsum", Draw(ElementKind.F32))
    function, x = forward.subject.function, forward.arguments["x"]
    tensor = peers.to_torch(x)
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: function(tensor),
        "numpy array": lambda: function(x),
    }
    for run in runs.values():
        run()
    size = (forward.nbytes, forward.elements, None, True, 0.0)
    return RowResult(NAME, "cumsum", "on a tensor", "4096x4096", "f32", *size, race(runs, effort))


FIGURES: tuple[Figure, ...] = (
    *(bounded(what, at_most) for what, at_most in BOUNDS.items()),
    no_slower(
        1.05,
        "cumsum 4096x4096 on a torch tensor: time over the NumPy path",
        At("cumsum", "on a tensor"),
        At("cumsum", "on a tensor", who="numpy array"),
    ),
)


def step_figures() -> Iterator[Figure]:
    """Made late: where a step is measured depends on the families there are."""
    for framework, rival, op, bound in steps():
        if op in subjects():
            workload = _workload(families()[subjects()[op].family], op)
            yield ahead(bound, At(op, f"{framework} step", workload.name), rival)
