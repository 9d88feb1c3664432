"""Derivatives in PyTorch: first and second order, both modes, of every function."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from differentiable import SUBJECTS, smooth  # noqa: E402
from pullback.verify.subject import Subject  # noqa: E402
from tensors import of_floats, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
EXACT = {"nondet_tol": 0.0, "atol": 1e-6, "rtol": 1e-5}


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_first_derivatives(subject: Subject) -> None:
    """Reverse mode, forward mode, and reverse mode over a batch of cotangents."""
    for arguments in smooth(subject):
        run, floats = of_floats(subject, arguments)
        options = {"check_forward_ad": True, "check_batched_grad": True, **EXACT}
        assert torch.autograd.gradcheck(run, floats, **options), arguments


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_second_derivatives(subject: Subject) -> None:
    """Reverse over reverse, and forward over reverse."""
    for arguments in smooth(subject):
        run, floats = of_floats(subject, arguments)
        options = {"check_fwd_over_rev": True, "fast_mode": True, **EXACT}
        assert torch.autograd.gradgradcheck(run, floats, **options), arguments


WRITTEN_OUT = [subject for subject in SUBJECTS if subject.function.calculus.composed is not None]


@pytest.mark.parametrize("subject", WRITTEN_OUT, ids=repr)
def test_the_written_out_form_is_the_function(subject: Subject) -> None:
    """What serves second derivatives computes what the kernel does."""
    from pullback.frontends.torch_autograd import XP
    from pullback.ops.calculus import asked

    composed = subject.function.calculus.composed
    for arguments in smooth(subject):
        known = subject.function.bind((), tensors(arguments))
        known["options"] = {n: v for n, v in known.items() if n not in subject.function.tensors}
        results = composed(XP, **{name: known[name] for name in asked(composed)})
        wanted = subject.function(**tensors(arguments))
        torch.testing.assert_close(results, wanted)
