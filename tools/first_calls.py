"""What a first call takes in a fresh process: processor time beyond the import of the framework.

    python tools/first_calls.py                   every function
    python tools/first_calls.py softmax cumsum    some
    python tools/first_calls.py --framework torch --framework jax
    python tools/first_calls.py --dtype bf16 --limit 0.5
    python tools/first_calls.py --against FOLDER  what this tree takes to compile, and another

Run it where the wheel is installed. Fails if a call takes longer than the limit or
imports Numba. With --against, FOLDER has src/pullback of another version: both take turns at the
functions that both have, each with an empty cache; it prints both sums and fails above --most.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHILD = """
import pickle, sys, time
import numpy
try:
    import ml_dtypes
except ImportError:
    pass
with open(sys.argv[1], 'rb') as file:
    name, arguments = pickle.load(file)
if sys.argv[2] == 'torch':
    import torch
    kind, made = numpy.ndarray, torch.from_numpy
elif sys.argv[2] == 'jax':
    import jax, jax.numpy
    jax.config.update('jax_enable_x64', True)
    kind, made = numpy.ndarray, jax.numpy.asarray
    made(numpy.ones(1)).block_until_ready()  # starts what runs programs
else:
    kind, made = (), None
arguments = {k: made(v) if isinstance(v, kind) else v for k, v in arguments.items()}
begun = time.process_time()
import pullback
getattr(pullback, name)(**arguments)
print(time.process_time() - begun, 'numba' in sys.modules)
"""


def arguments(name: str, dtype: str) -> dict[str, Any]:
    """Those of the first case of its family that the function takes."""
    from pullback.contract.element import ElementKind
    from pullback.verify.subject import subjects

    subject, element = subjects()[name], ElementKind(dtype)
    made = (
        subject.arguments(case, element, ElementKind.I64, subject.variants[0])
        for case in subject.cases()
    )
    return next(found for found in made if found is not None)


def measured(
    framework: str, name: str, dtype: str, src: Path | None = None
) -> tuple[float | None, str]:
    """Seconds of a first call with an empty cache, and what is wrong with it; None if it fails.
    `src`: where to import pullback from, if not from where it is found."""
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(pickle.dumps((name, arguments(name, dtype))))
        env = {**os.environ, "PULLBACK_CACHE_DIR": folder, "PULLBACK_NOTICE": "0"}
        if src is not None:
            env["PYTHONPATH"] = str(src)
        command = [sys.executable, "-c", CHILD, str(file), framework]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    seconds, numba = done.stdout.split()
    return float(seconds), "with Numba" * (numba == "True")


def compared(names: list[str], dtype: str, other: Path, most: float) -> int:
    """This tree against another: the processor time of first calls that compile."""
    import pullback

    trees = Path(pullback.__file__).parents[1], other.resolve() / "src"
    sums = [0.0, 0.0]
    for name in names:
        times = [measured("numpy", name, dtype, src) for src in trees]
        if missing := [about for seconds, about in times if seconds is None]:
            print(f"{name:44} left out: {missing[0]}", flush=True)
            continue
        new, old = (seconds or 0.0 for seconds, _ in times)
        sums = [sums[0] + new, sums[1] + old]
        print(f"{name:44} {new:7.2f} s {old:7.2f} s {new / old:6.2f}", flush=True)
    if not sums[1]:
        print("no function is in both")
        return 1
    ratio = sums[0] / sums[1]
    print(f"{'together':44} {sums[0]:7.2f} s {sums[1]:7.2f} s {ratio:6.2f}")
    return int(ratio > most)


def main() -> int:
    from pullback.verify.subject import subjects

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--framework", action="append", choices=("numpy", "torch", "jax"))
    parser.add_argument("--limit", type=float, default=0.5, help="seconds")
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--most", type=float, default=1.0, help="of the time of the other tree")
    given = parser.parse_args()
    if given.against is not None:
        return compared(given.names or sorted(subjects()), given.dtype, given.against, given.most)
    times, failed = [], []
    for framework, name in product(given.framework or ["numpy"], given.names or sorted(subjects())):
        title = f"{framework} {name}"
        seconds, about = measured(framework, name, given.dtype)
        if seconds is None:
            failed.append(f"{title}: {about}")
            continue
        times.append(seconds)
        print(f"{title:50} {seconds:.3f} s {about}".rstrip(), flush=True)
        if seconds > given.limit or about:
            failed.append(title)
    if times:
        times.sort()
        print(f"{len(times)} calls: median {times[len(times) // 2]:.3f} s, most {times[-1]:.3f} s")
    for line in failed:
        print(f"failed: {line}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
