"""`gpu-check`: what a GPU makes of the kernels, on a page to send back."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

Fact = tuple[str, str]


def gpu_check(
    write: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("gpu-check.md"),
    family: Annotated[str, typer.Option(help="Only this family of ops.")] = "",
) -> None:
    """Run one case of each op on the GPU, then measure GB/s against torch and a copy.

    Needs a GPU and the extras torch and gpu. Writes a page with versions, results and rates.

    [dim]pullback gpu-check
    pullback gpu-check --family scan --write page.md[/dim]
    """
    from pullback.cli import screen

    missing = missing_gpu()
    if missing:
        screen.tell(missing)
        raise typer.Exit(1)
    screen.make_room(write)
    lines = ["# pullback gpu-check", "", *table(("what", "found"), facts())]
    cases, failed = [], 0
    for op, verdict in checked(family):
        failed += verdict != "ok"
        screen.tell(f"{op}: {verdict}")
        cases.append((op, verdict))
    lines += ["", *table(("op", "one case against the oracle"), cases), ""]
    rates = []
    for row in measured(family):
        screen.tell("  ".join(row))
        rates.append(row)
    lines += table(("row", "GB/s", "torch", "copy"), rates)
    write.write_text("\n".join([*lines, ""]))
    screen.tell(f"{write}: {len(cases)} ops, {failed} of them failed")
    if failed:
        raise typer.Exit(1)


def missing_gpu() -> str:
    """What keeps this machine from the check, in one sentence; nothing where it can run."""
    absent = [name for name in ("torch", "triton") if find_spec(name) is None]
    if absent:
        return f"gpu-check needs {' and '.join(absent)}: pip install 'pullback[torch,gpu]'"
    import torch

    if torch.cuda.is_available():
        return ""
    build = torch.version.cuda or torch.version.hip
    if build is None:
        return f"gpu-check needs a GPU: torch {torch.__version__} was built without CUDA and ROCm"
    return f"gpu-check needs a GPU: torch {torch.__version__} ({build}) finds none it can use"


def facts() -> list[Fact]:
    """Versions, driver and devices."""
    import torch
    import triton

    import pullback
    from pullback.gpu.device import arch

    found = [
        ("pullback", pullback.__version__),
        ("python", platform.python_version()),
        ("torch", f"{torch.__version__}, CUDA {torch.version.cuda}, ROCm {torch.version.hip}"),
        ("triton", triton.__version__),
        ("driver", _driver()),
    ]
    for number in range(torch.cuda.device_count()):
        name, memory = torch.cuda.get_device_name(number), torch.cuda.mem_get_info(number)[1]
        said = f"{name}, {arch(f'cuda:{number}')}, {memory / 1e9:.0f} GB"
        found.append((f"device {number}", said))
    return found


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (no nvidia-smi)"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def table(heads: tuple[str, ...], rows: list[Any]) -> list[str]:
    """A table of a page."""
    lines = [heads, ("---",) * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def subjects_on_gpu(family: str) -> Iterator[Any]:
    """The functions that have Triton kernels."""
    from pullback.verify.emulated import on_gpu
    from pullback.verify.subject import subjects

    for subject in subjects().values():
        if family in ("", subject.family) and on_gpu(subject):
            yield subject


def to_gpu(value: Any) -> Any:
    """A NumPy array as a tensor on the GPU; anything else as it is."""
    import numpy as np
    import torch

    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(np.ascontiguousarray(value)).cuda()


def checked(family: str) -> Iterator[Fact]:
    """Every op, and "ok" or what is wrong with one case of it in f32."""
    from pullback.contract.element import ElementKind
    from pullback.contract.errors import Unsupported
    from pullback.verify import laws

    for subject in subjects_on_gpu(family):
        some = islice(laws.trials(subject, ElementKind.F32), 12)
        # The largest of them: the first may be empty.
        for arguments in sorted((given for _, given in some), key=_size, reverse=True):
            given = {name: to_gpu(value) for name, value in arguments.items()}
            try:
                results = subject.function(**given)
                several = results if isinstance(results, tuple) else (results,)
                laws.compare(subject, arguments, tuple(r.cpu().numpy() for r in several))
            except Unsupported:
                continue  # the next case is of another kind
            except laws.LawBroken as broken:
                yield subject.name, str(broken)
            else:
                yield subject.name, "ok"
            break


def _size(arguments: dict[str, Any]) -> int:
    return sum(getattr(value, "size", 0) for value in arguments.values())


def measured(family: str) -> Iterator[tuple[str, str, str, str]]:
    """The main row of every op: its GB/s, torch's where it has the op, and a copy's."""
    from pullback.bench.workload import F32, Draw, families, rows_of
    from pullback.contract.errors import Unsupported

    wanted = {subject.family for subject in subjects_on_gpu(family)}
    for known in (families()[name] for name in sorted(wanted)):
        peers = known.peers.table("torch")
        for row in rows_of(known):
            if not row.main:
                continue
            problem, forward = row.problems(Draw(F32))
            given = {name: to_gpu(value) for name, value in problem.arguments.items()}
            function = problem.subject.function
            try:
                own = _rate(lambda f=function, g=given: f(**g), problem.nbytes)  # type: ignore[misc]
            except Unsupported:
                continue
            peer, theirs = peers.get(row.op), "-"
            if peer is not None:
                theirs = _rate(_peer(peer, row, problem, forward), problem.nbytes)
            yield row.title, own, theirs, _copy_rate(problem.nbytes)


def _peer(peer: Callable[..., Any], row: Any, problem: Any, forward: Any) -> Callable[[], Any]:
    """The same in torch: its function, or what its autograd makes of that."""
    import torch

    given = {name: to_gpu(value) for name, value in forward.arguments.items()}
    if row.direction == "forward":
        return lambda: peer(**given)
    leaves = [given[name].requires_grad_() for name in row.workload.wrt if name in given]
    result = peer(**given)
    first = result[0] if isinstance(result, tuple) else result
    dy = to_gpu(problem.dy)
    return lambda: torch.autograd.grad(first, leaves, dy, retain_graph=True)


def _rate(run: Callable[[], Any], nbytes: int) -> str:
    import triton

    return f"{nbytes / triton.testing.do_bench(run) / 1e6:.0f}"


def _copy_rate(nbytes: int) -> str:
    """A copy that moves as many bytes."""
    import torch

    source = torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _rate(lambda: target.copy_(source), nbytes)
