"""PULLBACK_SAFE=1: no shortcut is taken, and results have the same bits."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import hashlib, sys
import numpy as np
import pullback as pb
from pullback.internals.numpy import headers_are_known
from pullback.verify.laws import trials
from pullback.verify.subject import subjects

x, digest = np.linspace(-2, 2, 60_000, dtype=np.float32).reshape(300, 200), hashlib.sha256()
desc = pb.ScanDescriptor(
    kind=pb.ScanKind.CUMSUM, input_shape=x.shape, scan_axis=1, element=pb.ElementKind.F32
)
plan = pb.ScanPlan.select(pb.Stream.cpu(), desc, pb.PlanPreference())
for name, subject in sorted(subjects().items()):
    _, arguments = next(trials(subject, pb.ElementKind.F32))
    for _ in range(2):
        for array in subject.answer(arguments):
            digest.update(np.ascontiguousarray(array).tobytes())
for _ in range(2):
    args = pb.ScanArgs(x=x, y=np.empty_like(x))
    plan.run(pb.Stream.cpu(), pb.Workspace.NONE, args)
    digest.update(args.y.tobytes() + pb.softmax(x).tobytes())
shortcuts = headers_are_known(), plan._cache is not None
large = pb.cumsum(np.ones((600, 600)))  # from the buffer pool
try:
    import torch
except ImportError:
    pass
else:
    leaf = torch.from_numpy(x.copy()).requires_grad_(True)
    for _ in range(2):
        pb.cumsum(leaf, 1).sum().backward()
    digest.update(leaf.grad.numpy().tobytes())
lookup = pb.softmax.function.lookup(*pb.softmax.function.values((x,), {}), None) is not None
print(digest.hexdigest(), *shortcuts, lookup, pb.cache_info().used_blocks > 0)
"""


def outcome(safe: str) -> list[str]:
    environment = {**os.environ, "PULLBACK_SAFE": safe}
    run = [sys.executable, "-c", SCRIPT]
    text = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
    return text.split()


def test_safe_mode_takes_no_shortcut_and_has_the_same_bits() -> None:
    digest, *shortcuts = outcome("0")
    assert shortcuts == ["True"] * 4
    assert outcome("1") == [digest, *["False"] * 4]
