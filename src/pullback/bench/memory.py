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

from pullback.bench.problem import Problem
from pullback.bench.results import OURS, Memory
from pullback.bench.workload import Draw, Family, Row, families
from pullback.contract.element import ElementKind

# Libraries whose steps are measured beside ours: those that run on PyTorch's tensors.
PEERS = ("torch", "entmax")


def peaks(family: Family, op: str, libraries: tuple[str, ...]) -> Memory:
    """At the op's training size. Who has no such op is left out; who fails is named."""
    rivals = (n for n in PEERS if n in libraries and op in family.peers.table(n))
    found, verdicts = {}, {}
    for name in (OURS, *rivals):
        command = [sys.executable, "-m", "pullback.bench.memory", family.name, op, name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if done.returncode == 0:
            found[name] = int(json.loads(done.stdout)["peak"])
        else:
            verdicts[name] = f"failed: {done.stderr.strip().splitlines()[-1][:80]}"
    return Memory(family.name, op, family.main(op).name, found, verdicts)


def environment() -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}


# --- in the process that is measured --------------------------------------------------------------


def own_step(problem: Problem, forward: Problem) -> Callable[[], Any]:
    """Forward, then backward with what the forward left, as a training step does."""

    def step() -> Any:
        results = forward.answer()
        left = dict(zip(forward.call.returns, results, strict=True))
        known = {name: left.get(name, value) for name, value in problem.arguments.items()}
        return problem.subject.answer(known), results

    return step


def _their_step(
    function: Callable[..., Any], wrt: tuple[str, ...], problem: Problem, forward: Problem
) -> Callable[[], Any]:
    import torch

    from pullback.bench.peers import to_torch

    given = forward.arguments.items()
    tensors = {k: to_torch(v) if hasattr(v, "dtype") else v for k, v in given}
    inputs = [tensors[name].requires_grad_(True) for name in wrt]
    g = to_torch(problem.dy)

    def step() -> Any:
        y = function(**tensors)
        return torch.autograd.grad(y, inputs, g), y

    return step


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


def main(family: str, op: str, name: str) -> None:
    import pullback

    found = families()[family]
    row = Row(family, found.main(op), op, "backward", ElementKind.F32)
    pair = row.problems(Draw(row.element))
    if name == OURS:
        step = own_step(*pair)
    else:
        step = _their_step(found.peers.table(name)[op], row.workload.wrt, *pair)
    # Once before: code is compiled and loaded, thread pools stand, and what is freed is given back.
    step()
    pullback.empty_cache()
    gc.collect()
    sys.stdout.write(json.dumps({"peak": _peak(step)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
