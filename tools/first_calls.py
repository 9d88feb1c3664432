"""What a first call takes in a fresh process: processor time beyond the import of the framework.

    python tools/first_calls.py                   every function
    python tools/first_calls.py softmax cumsum    some
    python tools/first_calls.py --framework torch --framework jax
    python tools/first_calls.py --dtype bf16 --limit 0.5

Run it where the wheel is installed. Fails if a call takes longer than the limit or
imports Numba.
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


def measured(framework: str, name: str, dtype: str) -> tuple[float | None, str]:
    """Seconds of a first call with an empty cache, and what is wrong with it; None if it fails."""
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(pickle.dumps((name, arguments(name, dtype))))
        env = {**os.environ, "PULLBACK_CACHE_DIR": folder}
        command = [sys.executable, "-c", CHILD, str(file), framework]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    seconds, numba = done.stdout.split()
    return float(seconds), "with Numba" * (numba == "True")


def main() -> int:
    from pullback.verify.subject import subjects

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--framework", action="append", choices=("numpy", "torch", "jax"))
    parser.add_argument("--limit", type=float, default=0.5, help="seconds")
    given = parser.parse_args()
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
