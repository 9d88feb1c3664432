"""Peak memory of a forward and a backward, beside PyTorch's.

Each contestant runs in a process of its own. The kernel of the system keeps the highest number of
resident bytes and lets a process reset it: so imports, compilation and the inputs stay out."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pullback.bench.results import OURS, Memory
from pullback.bench.workload import Draw, Row, Workload, families
from pullback.contract.element import ElementKind


def peaks(family: str, op: str, workload: Workload, libraries: tuple[str, ...]) -> Memory:
    found = {}
    for name in (OURS, *(n for n in libraries if n in _STEPS)):
        command = [sys.executable, "-m", "pullback.bench.memory", family, op, workload.name, name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode == 0:
            found[name] = int(json.loads(done.stdout)["peak"])
    return Memory(family, op, workload.name, found)


def environment() -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}


# --- in the process that is measured --------------------------------------------------------------


def _ours(row: Row, arguments: dict[str, Any], dy: Any) -> Callable[[], Any]:
    """Forward, then backward with what the forward left, as a training step does."""
    from pullback.verify.subject import subjects

    forward, backward = subjects()[row.op].function, subjects()[f"{row.op}_backward"].function

    def step() -> Any:
        result = forward(**arguments)
        known = {**arguments, backward.parameters[0]: dy, "y": result, "h": result}
        return backward(**{k: v for k, v in known.items() if k in backward.parameters}), result

    return step


def _torch(row: Row, arguments: dict[str, Any], dy: Any) -> Callable[[], Any]:
    import torch

    from pullback.bench.peers import to_torch

    function = families()[row.family].peers.table("torch")[row.op]
    tensors = {k: to_torch(v) if hasattr(v, "dtype") else v for k, v in arguments.items()}
    inputs = [tensors[name].requires_grad_(True) for name in row.workload.wrt]
    g = to_torch(dy)

    def step() -> Any:
        y = function(**tensors)
        return torch.autograd.grad(y, inputs, g), y

    return step


_STEPS: dict[str, Callable[..., Callable[[], Any]]] = {OURS: _ours, "torch": _torch}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _peak(step: Callable[[], Any]) -> int:
    """Bytes beyond what is resident before the step."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    kept = step()
    peak = _status("VmHWM")
    del kept
    return max(peak - before, 0)


def main(family: str, op: str, workload: str, name: str) -> None:
    import pullback

    found = families()[family]
    chosen = next(w for w in found.workloads if w.name == workload and op in w.ops)
    row = Row(family, chosen, op, "backward", ElementKind.F32)
    problem, forward = row.problems(Draw(row.element))
    dy = problem.arguments[problem.subject.function.parameters[0]]
    step = _STEPS[name](row, forward.arguments, dy)
    # Once before: code is compiled and loaded, thread pools stand, and what is freed is given back.
    step()
    pullback.empty_cache()
    gc.collect()
    sys.stdout.write(json.dumps({"peak": _peak(step)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
