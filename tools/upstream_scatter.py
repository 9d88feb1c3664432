"""Run the tests of torch_scatter against `pullback.compat.torch_scatter`.

    python tools/upstream_scatter.py <clone of rusty1s/pytorch_scatter> [options of pytest]

Nothing of the clone is copied: its tests are run where they lie, and its `testing.py`, which holds
their tables, is the only file of the package that is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from pullback.compat import torch_scatter


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[1]).resolve()
    torch_scatter.install()
    name = "torch_scatter.testing"
    spec = importlib.util.spec_from_file_location(name, root / "torch_scatter" / "testing.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(root / "test"), "-o", "addopts="]
    return int(
        pytest.main([*options, "--import-mode=importlib", str(root / "test"), *sys.argv[2:]])
    )


if __name__ == "__main__":
    sys.exit(main())
