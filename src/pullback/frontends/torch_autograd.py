"""Gradients of the functions in torch: the calculus of each as an `autograd.Function`.

`EagerFunction` wraps the plain launch, and the registered op below autograd. `FunctorchFunction` is
the form torch.func and forward mode understand; it costs ten times as much, so only they use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.contract.errors import Unsupported
from pullback.internals.torch import jvp_levels, transforms
from pullback.ops.calculus import asked, each
from pullback.ops.calculus import batched as in_one
from pullback.plan.function import Function


class TorchArrays:
    """What the rules of a calculus ask of a framework."""

    exp = staticmethod(torch.exp)
    expm1 = staticmethod(torch.expm1)
    log = staticmethod(torch.log)
    sqrt = staticmethod(torch.sqrt)
    where = staticmethod(torch.where)
    moveaxis = staticmethod(torch.movedim)
    full_like = staticmethod(torch.full_like)
    broadcast_to = staticmethod(torch.broadcast_to)

    @staticmethod
    def sum(x: Tensor, axis: int | tuple[int, ...], keepdims: bool) -> Tensor:
        return torch.sum(x, axis, keepdim=keepdims)

    @staticmethod
    def concatenate(arrays: list[Tensor], axis: int) -> Tensor:
        return torch.cat(arrays, axis)

    @staticmethod
    def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return torch.index_select(x, axis, indices)

    @staticmethod
    def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return torch.gather(x, axis, indices)

    @staticmethod
    def add_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return torch.zeros_like(x).scatter_add(axis, indices, x)

    @staticmethod
    def arange(n: int, like: Tensor) -> Tensor:
        return torch.arange(n, device=like.device)

    @staticmethod
    def pieces(offsets: Tensor, n: int) -> Tensor:
        at = torch.arange(n, device=offsets.device, dtype=offsets.dtype)
        return torch.searchsorted(offsets[1:].contiguous(), at, right=True)

    @staticmethod
    def argsort(x: Tensor) -> Tensor:
        return torch.argsort(x, stable=True)

    @staticmethod
    def ids(segment_ids: Any) -> Tensor:
        return plain_ids(segment_ids)

    @staticmethod
    def constant(x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def linked(value: Tensor, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return function(x) if torch.is_grad_enabled() else value


XP = TorchArrays()


def plain_ids(value: Any) -> Any:
    """The ids of a SegmentIndex as a tensor; anything else as it is."""
    if getattr(value, "bundle", None) is None:
        return value
    # Those of an array are read-only.
    return value.ids if isinstance(value.ids, Tensor) else torch.tensor(value.ids)


RESULTS = ("result", "recorded")  # what rules call the first result and the one after it


class AutogradPlan:
    """What all differentiable calls of one kind share: it depends on the function, the options, and
    which arguments are tensors of which shape. `names` are the tensors, in autograd's order."""

    def __init__(self, function: Function, arguments: Mapping[str, Any]) -> None:
        calculus = function.calculus
        self.function, self.calculus = function, calculus
        tensors = {n: a for n in function.tensors if isinstance(a := arguments[n], Tensor)}
        self.names = tuple(tensors)
        self.floats = tuple(n for n, tensor in tensors.items() if tensor.is_floating_point())
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.options = {n: a for n, a in arguments.items() if n not in function.tensors}
        extra = calculus.records(arguments) if calculus.records else {}
        self.extra = {n: value for n, value in extra.items() if self.options[n] != value}
        self.reverse = calculus.pull or calculus.composed
        wanted = set(asked(self.reverse))
        if calculus.saves:
            wanted &= {*calculus.saves(arguments), "result", "recorded"}
        self.kept = tuple(i for i, name in enumerate(self.names) if name in wanted)
        self.kept_results = tuple(i for i, name in enumerate(RESULTS) if name in wanted)
        self.kept_names = (
            *(self.names[i] for i in self.kept),
            *(RESULTS[i] for i in self.kept_results),
        )

    def others(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What stands in the place of a tensor and is none: a number, a SegmentIndex, nothing."""
        return {n: arguments[n] for n in self.function.tensors if n not in self.shapes}

    def shown(self, results: Any) -> Any:
        """The results without those that only the rules asked for."""
        return results[0] if self.extra else results

    def asked(self, rule: Any, known: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """What a rule asks for, of what is known."""
        known = {**self.options, "options": self.options, "shapes": self.shapes, **known, **more}
        return {name: known.get(name) for name in asked(rule)}

    def pull(
        self, known: Mapping[str, Any], wanted: frozenset[str], cotangents: tuple[Tensor, ...]
    ) -> Mapping[str, Tensor]:
        """Gradients of the arguments from those of the results."""
        rule = self.calculus.pull
        if rule is not None:
            more = self._checked_before(cotangents)
            return rule(XP, cotangents[0], **self.asked(rule, known, wanted=wanted, **more))  # type: ignore[no-any-return]
        run, primals = self._composed(known)
        return dict(zip(primals, _pulled(run, tuple(primals.values()), cotangents), strict=True))

    def _checked_before(self, cotangents: tuple[Tensor, ...]) -> dict[str, Any]:
        """Options of a gradient that differ from the call's: on a GPU the ids are checked once, by
        the call, and the gradient leaves out what is out of range."""
        if "out_of_range" not in self.options or not cotangents[0].is_cuda:
            return {}
        return {"out_of_range": "skip", "options": {**self.options, "out_of_range": "skip"}}

    def push(self, known: Mapping[str, Any], tangents: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Tangents of the float results from those of the arguments."""
        rule = self.calculus.push
        if rule is not None:
            return (rule(XP, tangents, **self.asked(rule, known)),)
        run, primals = self._composed(known)
        values = tuple(primals.values())

        # The transpose of the transpose: needs nothing but reverse mode, at any level.
        def transpose(*cotangents: Tensor) -> tuple[Tensor, ...]:
            found = zip(values, _pulled(run, values, cotangents), strict=True)
            return tuple(torch.zeros_like(p) if g is None else g for p, g in found)

        zeros = tuple(torch.zeros_like(result) for result in run(*values))
        return _pulled(transpose, zeros, tuple(tangents[name] for name in primals))

    def _composed(self, known: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
        """The function written out, of those of its float arguments that it looks at."""
        rule = self.calculus.composed
        primals = {name: known[name] for name in self.floats if name in asked(rule)}

        def run(*floats: Tensor) -> tuple[Tensor, ...]:
            more = dict(zip(primals, floats, strict=True))
            results = rule(XP, **self.asked(rule, known, **more))
            return results if isinstance(results, tuple) else (results,)

        return run, primals


def _pulled(
    run: Callable[..., tuple[Tensor, ...]],
    primals: tuple[Tensor, ...],
    cotangents: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Gradients of what `run` is given, from those of what it gives; None for what it ignores."""
    if transforms() is not None:
        return _pulled_inside(run, primals, cotangents)
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, because one primal may have been computed from another. Not `detach`, which
        # would drop tangents of forward mode.
        aliases = [p.view_as(p) for p in primals]
        for alias in aliases:
            alias.requires_grad_(True)
        pairs = [(r, c) for r, c in zip(run(*aliases), cotangents, strict=True) if r.requires_grad]
    results, given = zip(*pairs, strict=True)
    return torch.autograd.grad(results, aliases, given, create_graph=again, allow_unused=True)  # type: ignore[no-any-return]


def _pulled_inside(
    run: Callable[..., tuple[Tensor, ...]],
    primals: tuple[Tensor, ...],
    cotangents: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """The same within a torch.func transform. Not by `torch.func.vjp`, whose second half runs when
    its level is gone: this is one level, alive to the end."""

    def paired(*inputs: Tensor) -> Any:
        return sum((r * c).sum() for r, c in zip(run(*inputs), cotangents, strict=True))

    return torch.func.grad(paired, tuple(range(len(primals))))(*primals)  # type: ignore[no-any-return]


def _constants(ctx: Any, autograd: AutogradPlan, results: Any) -> tuple[Tensor, ...]:
    """Results as a tuple; if there is a rule for the first, those after it have no derivative."""
    if not isinstance(results, tuple):
        return (results,)
    constants = results[1:] if autograd.calculus.pull is not None else ()
    if constants:
        ctx.mark_non_differentiable(*constants)
    return results


# `Function` without the preparations for torch.func, which never comes here: a fifth of the cost.
_Plain = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)


class EagerFunction(_Plain):  # type: ignore[misc, valid-type]
    """A call, however it is run, and its gradient. `run` also gives what only the rules want."""

    @staticmethod
    def forward(ctx: Any, call: tuple[AutogradPlan, Any, Any], *tensors: Tensor) -> Any:
        autograd, run, others = call
        ctx.about, results = (autograd, others), run()
        if autograd.kept_names or type(results) is tuple:
            several = _constants(ctx, autograd, results)
            kept = [tensors[i] for i in autograd.kept]
            kept += [several[i] if i < len(several) else None for i in autograd.kept_results]
            ctx.save_for_backward(*kept)
        return autograd.shown(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        autograd, others = ctx.about
        needs = ctx.needs_input_grad[1:]
        wanted = frozenset(n for n, need in zip(autograd.names, needs, strict=True) if need)
        known = dict(zip(autograd.kept_names, ctx.saved_tensors, strict=True), **(others or {}))
        gradients = autograd.pull(known, wanted, cotangents)
        return None, *(gradients.get(n) if n in wanted else None for n in autograd.names)


class FunctorchFunction(torch.autograd.Function):  # type: ignore[misc]
    """The same for torch.func and forward mode: at each level of a transform it is run again."""

    @staticmethod
    def forward(autograd: AutogradPlan, others: Any, *tensors: Tensor) -> Any:
        arguments = dict(zip(autograd.names, tensors, strict=True))
        return autograd.function(**{**autograd.options, **autograd.extra, **others, **arguments})

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.autograd, ctx.others, *tensors = inputs
        kept = (*tensors, *_constants(ctx, ctx.autograd, output))
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def _known(ctx: Any) -> tuple[dict[str, Any], int]:
        saved = ctx.saved_tensors
        names = (*ctx.autograd.names, *RESULTS)
        known = dict(zip(names, saved, strict=False), **ctx.others)
        return known, len(saved) - len(ctx.autograd.names)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        autograd = ctx.autograd
        known, _ = FunctorchFunction._known(ctx)
        gradients = autograd.pull(known, frozenset(autograd.floats), cotangents)
        return None, None, *(gradients.get(name) for name in autograd.names)

    @staticmethod
    def jvp(ctx: Any, _autograd: None, _others: None, *given: Tensor | None) -> Any:
        autograd = ctx.autograd
        known, count = FunctorchFunction._known(ctx)
        tangents = {
            name: torch.zeros_like(known[name]) if tangent is None else tangent
            for name, tangent in zip(autograd.names, given, strict=True)
            if name in autograd.floats
        }
        pushed = autograd.push(known, tangents)
        return pushed[0] if count == 1 else (*pushed, *(None,) * (count - len(pushed)))

    @staticmethod
    def vmap(info: Any, dims: Any, autograd: AutogradPlan, others: Any, *tensors: Tensor) -> Any:
        mapped = dict(zip(autograd.names, dims[2:], strict=True))
        arguments = dict(zip(autograd.names, tensors, strict=True))
        arguments = {**autograd.options, **autograd.extra, **others, **arguments}
        return batched(autograd.function, info.batch_size, mapped, arguments)


def batched(
    function: Any, size: int, dims: Mapping[str, int | None], arguments: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Run a batch: at once where the function knows how, else one by one. Results, and the place
    of their batch axis."""
    mapped = frozenset(name for name, dim in dims.items() if dim is not None)
    moved = {name: arguments[name].movedim(dims[name], 0) for name in mapped}
    results = in_one(XP, function, size, mapped, {**arguments, **moved})
    if results is None:
        rows = [
            function(**{**arguments, **{name: moved[name][i] for name in mapped}})
            for i in range(size)
        ]
        several = isinstance(rows[0], tuple)
        results = tuple(map(torch.stack, zip(*rows, strict=True))) if several else torch.stack(rows)
    return results, each(results, lambda _: 0)


def transform(function: Function, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> Any:
    """Run a function under torch.func transforms or forward mode."""
    if jvp_levels() > 1:
        # PyTorch loses the outer tangent in the jvp of any autograd.Function, without a word.
        raise NotImplementedError(
            f"pullback.{function.name}: forward mode over forward mode; use torch.func.jacrev or "
            "grad for one of the two"
        )
    arguments = function.bind(args, options)
    if out is not None or arguments.get("accumulate_into") is not None:
        name = "out" if out is not None else "accumulate_into"
        raise Unsupported(function.name, name, "None under a function transform", "a tensor")
    autograd = AutogradPlan(function, arguments)
    tensors = (arguments[name] for name in autograd.names)
    return autograd.shown(FunctorchFunction.apply(autograd, autograd.others(arguments), *tensors))
