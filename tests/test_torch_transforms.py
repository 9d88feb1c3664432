"""torch.compile, opcheck, torch.func: every function goes through, or says why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402

import pullback  # noqa: E402
from differentiable import SUBJECTS, smooth  # noqa: E402
from pullback.frontends.torch_library import as_op  # noqa: E402
from pullback.verify.subject import Subject  # noqa: E402
from tensors import of_floats, several, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
FORWARDS = [subject for subject in SUBJECTS if subject.forward is None]


# --- the registered ops -------------------------------------------------------------------------


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_opcheck(subject: Subject) -> None:
    calls = (as_op(subject.function, tensors(point, grad=True)) for point in smooth(subject))
    for op, given in {op.name(): (op, given) for op, given in calls}.values():
        torch.library.opcheck(op, (), given)


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_meta(subject: Subject) -> None:
    """Shapes and dtypes without memory."""
    for arguments in smooth(subject):
        given = tensors(arguments)
        bare = {n: v.to("meta") if torch.is_tensor(v) else v for n, v in given.items()}
        wanted = several(subject.function(**given))
        for got, want in zip(several(subject.function(**bare)), wanted, strict=True):
            assert (got.shape, got.dtype, got.device.type) == (want.shape, want.dtype, "meta")


# --- torch.compile ------------------------------------------------------------------------------


def agrees(subject: Subject, arguments: Any, **options: Any) -> None:
    """Compiled as a whole, forward and backward, it gives the eager bits."""
    run, floats = of_floats(subject, arguments)
    compiled = torch.compile(run, fullgraph=True, **options)
    wanted, found = run(*floats), compiled(*floats)
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got, want)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in wanted]
    found, wanted = ([y for y in results if y.requires_grad] for results in (found, wanted))
    cotangents = [torch.ones_like(result) for result in wanted]
    pairs = zip(
        torch.autograd.grad(found, floats, cotangents, allow_unused=True),
        torch.autograd.grad(wanted, floats, cotangents, allow_unused=True),
        strict=True,
    )
    for got, want in pairs:
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_compile_aot_eager(subject: Subject) -> None:
    torch._dynamo.reset()
    agrees(subject, smooth(subject)[-1], backend="aot_eager")


@pytest.mark.parametrize("name", ["cumprod", "lerp", "segment_max", "embedding"])
def test_compile_inductor(name: str) -> None:
    torch._dynamo.reset()
    (subject,) = (subject for subject in SUBJECTS if subject.name == name)
    agrees(subject, smooth(subject)[-1], backend="inductor")


def test_the_first_graph_of_a_process_may_be_traced_anew() -> None:
    """Which torch.compile does after a generator: it must then come by the same calls."""
    code = (
        "import torch, pullback\n"
        "run = lambda x: tuple(y for y in (pullback.lerp(x, x, x),) if y.is_floating_point())\n"
        "x = torch.rand(3)\n"
        "print(torch.equal(torch.compile(run, fullgraph=True, backend='eager')(x)[0], run(x)[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_dynamic_shapes() -> None:
    """One graph for all extents."""
    torch._dynamo.reset()
    from torch._dynamo.testing import CompileCounterWithBackend

    graphs = CompileCounterWithBackend("aot_eager")

    def run(x: Any, w: Any, ids: Any) -> Any:
        y = pullback.lerp(pullback.cumprod(x, 1), x, w)
        return pullback.segment_max(y, ids, x.shape[0] + 2).sum()

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=graphs)
    for rows, columns in ((5, 7), (8, 3), (11, 40)):
        x = torch.rand(rows, columns, requires_grad=True)
        given = x, torch.rand(columns), torch.arange(rows) // 2
        want, got = run(*given), compiled(*given)
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(y, x)[0] for y in (got, want)]
        torch.testing.assert_close(*gradients)
    assert graphs.frame_count == 1


def test_compiled_options_and_out() -> None:
    torch._dynamo.reset()

    def run(x: Any, out: Any) -> Any:
        values, places = pullback.cummax(x, return_indices=True, ties=pullback.TieRule.LAST)
        pullback.cumsum(x, out=out)
        return values + places

    x, out = torch.rand(3, 4), torch.empty(3, 4)
    want = run(x, torch.empty(3, 4))
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x, out), want)
    assert torch.equal(out, pullback.cumsum(x))


def test_functions_are_nodes_of_graphs() -> None:
    """Nothing that a graph would have to guard is between a call and its node."""
    torch._dynamo.reset()
    targets = []

    def backend(graph: Any, _: Any) -> Any:
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    x = torch.rand(3, 4)
    for axis in (0, 1):  # what traces the first call tells it
        torch.compile(lambda x, axis=axis: pullback.cumsum(x, axis), backend=backend)(x)
    assert targets[-1] is pullback.cumsum


def printed(code: str) -> str:
    """What a new process prints."""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout.strip()


def test_first_call_may_be_compiled() -> None:
    """Nothing of pullback's torch side is loaded before the graph is traced."""
    code = (
        "import torch, pullback; f = torch.compile(lambda x: pullback.cumsum(x) * 2, "
        "fullgraph=True, backend='aot_eager'); print(f(torch.ones(3)).tolist())"
    )
    assert printed(code) == "[2.0, 4.0, 6.0]"


def test_plain_calls_do_not_load_the_compiler() -> None:
    code = (
        "import sys, torch, pullback; x = torch.ones(3, requires_grad=True); "
        "pullback.cumsum(x).sum().backward(); print('torch._dynamo' in sys.modules)"
    )
    assert printed(code) == "False"


# --- torch.func ---------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", SUBJECTS, ids=repr)
def test_vmap(subject: Subject) -> None:
    """A batch of all floats, of the first alone along its last axis, and of everything."""
    for arguments in smooth(subject):
        given = tensors(arguments)
        arrays = [n for n, v in given.items() if torch.is_tensor(v)]
        floats = [n for n in arrays if given[n].is_floating_point()]
        for names, axis in ((floats, 0), (floats[:1], -1), (arrays, 0)):
            turns = {n: 0 if n == "offsets" else 1 for n in names}
            batch = [torch.stack([given[n], given[n].roll(turns[n])], axis) for n in names]

            def run(*mapped: Any, names: Any = names, given: Any = given) -> Any:
                return subject.function(**{**given, **dict(zip(names, mapped, strict=True))})

            rows = [several(run(*(b.select(axis, i) for b in batch))) for i in (0, 1)]
            found = several(torch.func.vmap(run, in_dims=axis)(*batch))
            for got, *want in zip(found, *rows, strict=True):
                torch.testing.assert_close(got, torch.stack(want))


@pytest.mark.parametrize("subject", FORWARDS, ids=repr)
def test_transforms(subject: Subject) -> None:
    """jacrev, jacfwd, vjp, jvp and three hessians agree with plain autograd."""
    func = torch.func
    run, floats = of_floats(subject, smooth(subject)[0])
    at, others = floats[0].detach(), [f.detach() for f in floats[1:]]

    def one(x: Any) -> Any:
        return run(x, *others)[0]

    def loss(x: Any) -> Any:
        return one(x).square().sum()

    jacobian = torch.autograd.functional.jacobian(one, at)
    torch.testing.assert_close(func.jacrev(one)(at), jacobian)
    torch.testing.assert_close(func.jacfwd(one)(at), jacobian)
    t = torch.rand_like(at)
    pushed = torch.tensordot(jacobian, t, t.dim())
    torch.testing.assert_close(func.jvp(one, (at,), (t,))[1], pushed)
    y, pull = func.vjp(one, at)
    torch.testing.assert_close(pull(y)[0], torch.autograd.functional.vjp(one, at, y)[1])
    hessian = torch.autograd.functional.hessian(loss, at)
    for nested in (func.hessian, lambda f: func.jacrev(func.jacrev(f))):
        torch.testing.assert_close(nested(loss)(at), hessian)
    torch.testing.assert_close(func.jacrev(func.jacfwd(loss))(at), hessian)
    batch = torch.stack([at, at.roll(1)])
    each = torch.stack([func.grad(loss)(x) for x in batch])
    torch.testing.assert_close(func.vmap(func.grad(loss))(batch), each)


def test_no_tangent_is_lost_in_silence() -> None:
    x = torch.rand(3, 4)
    jvp = torch.func.jvp
    with pytest.raises(NotImplementedError, match=r"under torch\.func call pullback\.cumprod"):
        jvp(torch.ops.pullback.cumprod, (x,), (x,))
    with pytest.raises(NotImplementedError, match="forward mode over forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(pullback.cumprod))(x)
    want = jvp(lambda x: torch.cumprod(x, -1), (x,), (x,))[1]

    def pushed(x: Any) -> Any:
        return jvp(pullback.cumprod, (x,), (x,))[1]

    torch.testing.assert_close(torch.compile(pushed, backend="aot_eager")(x), want)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"under torch\.func"):
        torch.compile(pushed, backend="aot_eager", fullgraph=True)(x)
    for run in (pullback.cumprod, torch.ops.pullback.cumprod):
        with forward_ad.dual_level():
            y = run(forward_ad.make_dual(x, x))
            torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, want)


def test_third_derivative() -> None:
    x = torch.rand(4, dtype=torch.float64)

    def of(cumprod: Any) -> Any:
        return torch.func.jacrev(torch.func.hessian(lambda x: cumprod(x, 0).square().sum()))(x)

    torch.testing.assert_close(of(pullback.cumprod), of(torch.cumprod))


def test_first_call_of_a_process_under_a_transform_or_mode() -> None:
    """What a front end looks at when it is loaded must not depend on what is active then."""
    script = Path(__file__).with_name("first_torch_calls.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
