"""What a first call takes in a fresh process: processor time beyond NumPy's import.

    python tools/first_calls.py                   every function
    python tools/first_calls.py softmax cumsum    some
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


def main() -> int:
    from pullback.verify.subject import subjects

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--limit", type=float, default=0.5, help="seconds")
    given = parser.parse_args()
    times, failed = [], []
    with TemporaryDirectory() as folder:
        for name in given.names or sorted(subjects()):
            file = Path(folder, name)
            file.write_bytes(pickle.dumps((name, arguments(name, given.dtype))))
            env = {**os.environ, "PULLBACK_CACHE_DIR": folder}  # empty
            command = [sys.executable, "-c", CHILD, str(file)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.append(f"{name}: {done.stderr.strip().splitlines()[-1]}")
                continue
            seconds, numba = done.stdout.split()
            times.append(float(seconds))
            print(f"{name:45} {times[-1]:.3f} s" + " with Numba" * (numba == "True"), flush=True)
            if times[-1] > given.limit or numba == "True":
                failed.append(name)
    if times:
        times.sort()
        print(f"{len(times)} calls: median {times[len(times) // 2]:.3f} s, most {times[-1]:.3f} s")
    for line in failed:
        print(f"failed: {line}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
