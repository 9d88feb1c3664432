"""Run the tests of entmax against `pullback.compat.entmax`.

    python tools/upstream_entmax.py <clone of deep-spin/entmax> [options of pytest]

Its tests are run in a temporary folder; no module of its package is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

import pytest

from pullback.compat import entmax


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[1]).resolve()
    entmax.install()
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts="]
    with TemporaryDirectory() as folder:  # beside its package, they would be imported as part of it
        for test in sorted((root / "entmax").glob("test_*.py")):
            copy(test, folder)
        ended = pytest.main([*options, "--rootdir", folder, folder, *sys.argv[2:]])
    assert sys.modules["entmax"] is entmax
    return int(ended)


if __name__ == "__main__":
    sys.exit(main())
