"""The functions as registered ops, `torch.ops.pullback.<name>`: schema, kernels, autograd, vmap.

Schemas follow from signatures. What changes how many results there are, or takes a number in place
of a tensor, makes an overload: `cummax.return_indices`, `lerp.number`. TorchScript tells overloads
apart by their arguments alone, so a flag is one of them. torch.jit.trace has tensors for extents,
and would make constants of them: `segment_sum.extent`. Ops change none of their arguments: whoever
dispatches writes their results to `out` and `accumulate_into`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

import pullback
from pullback.arrival import after_import
from pullback.contract.element import describe
from pullback.contract.errors import BufferTooSmall, InvalidProblem, Unsupported
from pullback.contract.imports import resolve
from pullback.frontends.torch_autograd import (
    AutogradPlan,
    EagerFunction,
    batched,
    plain_ids,
    transform,
)
from pullback.frontends.torch_gpu import on_gpu
from pullback.frontends.torch_launch import DTYPES, PLAIN, launch
from pullback.internals.torch import below_autograd, forward_mode, transforms
from pullback.plan.function import Function
from pullback.plan.launch import check_tensor, index_elsewhere
from pullback.plan.public import RETURNS
from pullback.tensor.adapters import check_dense, overrides
from pullback.tensor.view import TensorRef

Options = dict[str, Any]
Features = tuple[str, ...]

_LIBRARY = torch.library.Library("pullback", "DEF")
_FLAGS = (
    "return_indices",
    "return_probabilities",
)  # options that change how many results there are
_NUMBER, _EXTENT = "number", "extent"
_TYPES = {
    "int": "int",
    "int | None": "int?",
    "float": "float",
    "float | None": "float?",
    "bool": "bool",
}

# Kernels look in the call cache first: a compiled graph repeats its calls. Above autograd the cache
# sees to gradients; below it none may be recorded, so it is used only where none is wanted.
_ABOVE = "function.lookup({values}, None)"
_BELOW = f"None if is_grad_enabled() else {_ABOVE}"
_KERNEL = """\
def kernel({signature}):
    result = {lookup}
    return slow({names}) if result is None else result
"""


REGISTERED: dict[Any, Op] = {}  # by overload


class Op:
    """One overload of a function, by its features: flags that are set, and what it takes in place
    of tensors or of extents. Flags that are not set are no part of its schema."""

    def __init__(self, function: Function, features: Features) -> None:
        self.function, overload = function, _name(features)
        self.fixed: Options = {flag: flag in features for flag in _flags(function)}
        self.fixed |= {name: name in features or None for name in _adding(function)}
        self.numbers, self.extents = _NUMBER in features, _EXTENT in features
        self.name = f"{function.name}.{overload}" if overload else function.name
        self.set = [flag for flag, value in self.fixed.items() if value]
        # A tensor that is given comes with those that must be: vmap takes none that is only named.
        self.given = [name for name in self.set if name in function.tensors]
        self.flags = [name for name in self.set if name not in function.tensors]
        own = [name for name in function.parameters if name not in self.fixed]
        needed = [name for name in own if name not in function.defaults]
        self.names = [*needed, *self.given, *own[len(needed) :], *self.flags]
        _LIBRARY.define(self.schema(), tags=(torch.Tag.pt2_compliant_tag,))
        self.op = getattr(getattr(torch.ops.pullback, function.name), overload or "default")
        REGISTERED[self.op] = self
        if self.extents:
            _LIBRARY.impl(self.name, self.read, "CompositeImplicitAutograd")
            return
        _LIBRARY.impl(self.name, self.asking(partial(self.run, launch), _BELOW), "CPU")
        _LIBRARY.impl(self.name, self.asking(self.autograd, _ABOVE), "Autograd")
        _LIBRARY.impl(self.name, partial(self.run, on_gpu), "CUDA")
        qualified = f"pullback::{self.name}"
        torch.library.register_fake(qualified, self.fake, lib=_LIBRARY)
        torch.library.register_vmap(qualified, self.vmap, lib=_LIBRARY)

    def schema(self) -> str:
        own = self.function.binder.parameters
        parameters = [
            f"Tensor {name}" if name in self.given else self._parameter(own[name])
            for name in self.names
            if name not in self.flags
        ]
        # Without a default: a saved graph leaves out what is one, and then finds another overload.
        parameters += ["*", *(f"bool {flag}" for flag in self.flags)] if self.flags else []
        results = ", ".join(["Tensor"] * self._count())
        return f"{self.name}({', '.join(parameters)}) -> ({results})"

    def _count(self) -> int:
        """How many results there are: two with a flag, else one, or a gradient per operand."""
        function, composed = self.function, self.function.calculus.composed
        if any(self.fixed[flag] for flag in _flags(function)):
            return 2
        if composed is None or "tuple" not in str(inspect.signature(composed).return_annotation):
            return 1
        forward: Function = getattr(pullback, function.name.removesuffix("_backward")).function
        left_out = {name for name in _adding(function) if name not in self.set}
        operands = forward.tensors.keys() - forward.indices - left_out
        return len([name for name in operands if not (self.numbers and forward.tensors[name])])

    def _parameter(self, parameter: inspect.Parameter) -> str:
        name, annotation, default = parameter.name, parameter.annotation, parameter.default
        if name in self.function.tensors:
            kind = "float" if self.numbers and self.function.tensors[name] else "Tensor"
            kind += "?" * annotation.endswith("None")
        elif self.extents and _is_extent(name):
            return f"Tensor {name}"
        else:
            kind = _TYPES.get(annotation, "str")
            # Extents may be symbols under dynamic shapes; other integers are constants.
            kind = kind.replace("int", "SymInt") if _is_extent(name) else kind
        if default is parameter.empty or self._before_extent(name):
            return f"{kind} {name}"
        return f"{kind} {name}=" + (f'"{default}"' if isinstance(default, str) else f"{default}")

    def _before_extent(self, name: str) -> bool:
        """Whether an extent follows that is a tensor, which has no default."""
        later = self.names[self.names.index(name) + 1 :]
        return self.extents and any(map(_is_extent, later))

    def asking(self, slow: Callable[..., Any], way: str) -> Any:
        """A kernel for calls that the cache may hold; `slow` is for the others."""
        defaults, parameters = self.function.defaults, self.function.parameters
        spelt = [
            f"{name}=default_{name}" if name in defaults and name not in self.set else name
            for name in self.names
        ]
        if self.flags:
            spelt.insert(-len(self.flags), "*")
        values = (name if name in self.names else str(self.fixed[name]) for name in parameters)
        source = _KERNEL.format(
            signature=", ".join(spelt),
            lookup=way.format(values=", ".join(values)),
            names=", ".join(n if n not in self.flags else f"{n}={n}" for n in self.names),
        )
        scope: Options = {f"default_{name}": value for name, value in defaults.items()}
        scope.update(function=self.function, slow=slow, is_grad_enabled=torch.is_grad_enabled)
        exec(compile(source, f"<torch.ops.pullback.{self.name}>", "exec"), scope)
        return scope["kernel"]

    def arguments(self, args: tuple[Any, ...], options: Options) -> Options:
        """All arguments of the function by name."""
        given = dict(zip(self.names, args, strict=False), **options)
        for flag in self.flags:
            if not given.get(flag):
                expected = "True, which this overload is for"
                raise InvalidProblem(self.function.name, flag, expected, "False")
        return self.function.bind((), {**self.fixed, **given})

    def read(self, *args: Any, **options: Any) -> Any:
        """Extents that are tensors as the numbers they hold."""
        arguments = self.arguments(args, options)
        numbers = {n: int(arguments[n]) for n in self.function.parameters if _is_extent(n)}
        return dispatch(self.function, (), {**arguments, **numbers}, None)

    def run(self, kernel: Any, *args: Any, **options: Any) -> Any:
        """On tensors with memory, below autograd."""
        arguments = self.function.completed(self.arguments(args, options))
        if arguments.get("accumulate_into") is not None:
            arguments["accumulate_into"] = arguments["accumulate_into"].clone()
        return kernel(self.function, **arguments)

    def fake(self, *args: Any, **options: Any) -> Any:
        """On tensors without memory: the body of the function says what its results are."""
        arguments = self.arguments(args, options)
        views = self.function.views(arguments)
        call = self.function.body(**views)
        record, desc = call.plan.record, call.descriptor
        call.validate(self.function.name)
        device = next(v.device for n in self.function.tensors if hasattr(v := views[n], "device"))
        for name, view in call.tensors.items():
            if isinstance(view, TensorRef) and record.slot(name).used(desc):
                check_tensor(self.function.name, record.slot(name), desc, view, device)
        results = tuple(
            torch.empty(spec.shape, dtype=DTYPES[spec.element], device=device)
            for spec in call.specs
        )
        return results if len(results) > 1 else results[0]

    def vmap(self, info: Any, dims: Any, *args: Any, **options: Any) -> Any:
        arguments = self.arguments(args, options)
        called = zip(self.names, dims, strict=False)
        mapped = {name: dim for name, dim in called if name in self.function.tensors}
        return batched(self, info.batch_size, mapped, arguments)

    def __call__(self, **arguments: Any) -> Any:
        return dispatch(self.function, (), arguments, None)

    def __getattr__(self, name: str) -> Any:
        """Everything else as the function has it: an op is run in batches as the function is."""
        return getattr(self.function, name)

    def autograd(self, *args: Any, **options: Any) -> Any:
        """Above the kernels: record what a gradient needs."""
        arguments = self.arguments(args, options)
        tensors = [a for a in arguments.values() if isinstance(a, Tensor)]
        forward = forward_mode()
        if forward and transforms() is None:
            return transform(self.function, (), arguments, None)
        graded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if not graded and not forward:
            with below_autograd():
                return self.op(*args, **options)
        if transforms() is not None:
            raise NotImplementedError(
                f"torch.ops.pullback.{self.name}: under torch.func call pullback."
                f"{self.function.name}, outside of torch.compile"
            )
        autograd = AutogradPlan(self.function, arguments)

        def run() -> Any:
            with below_autograd():
                return dispatch(self.function, (), {**arguments, **autograd.extra}, None)

        named = (arguments[name] for name in autograd.names)
        return EagerFunction.apply((autograd, run, autograd.others(arguments)), *named)


def _flags(function: Function) -> list[str]:
    return [flag for flag in _FLAGS if flag in function.parameters]


def _adding(function: Function) -> list[str]:
    """Tensors that a gradient may be given, and then has one more result for."""
    results = RETURNS[function.returns]
    return [results.by] if results.ways[0][0] == "None" else []


def _is_extent(name: str) -> bool:
    return name.startswith("num_")


def _name(features: Features) -> str:
    """Of an overload."""
    return "_".join(features)


def _overloads(function: Function) -> Iterator[Features]:
    yield ()
    yield from ((name,) for name in (*_flags(function), *_adding(function)))
    if any(function.tensors.values()):
        yield (_NUMBER,)
    if any(map(_is_extent, function.parameters)):
        yield from ((*flags, _EXTENT) for flags in ((), *((f,) for f in _flags(function))))


FUNCTIONS: dict[str, Function] = {
    name: function
    for name in pullback.__all__
    if (function := getattr(getattr(pullback, name), "function", None)) is not None
}
OPS = {
    (name, features): Op(function, features).op
    for name, function in FUNCTIONS.items()
    for features in _overloads(function)
}


def _tell_torchscript() -> None:
    """Have torch.jit.script take the functions for their ops, where this torch can be told."""
    table = getattr(torch.jit, "_builtins", None)
    tell = getattr(table, "_register_builtin", None)
    if tell is not None:
        for name, function in FUNCTIONS.items():
            tell(function.wrapper, f"pullback::{name}")


_tell_torchscript()


def dispatch(function: Function, args: tuple[Any, ...], options: Options, out: Any) -> Any:
    """Call the registered op."""
    if len(args) > len(function.parameters):
        function.bind(args, options)
    if function.numbers:
        args, options = function.without_numbers(args, options)
    # Defaults are spelt out: a compiled graph that lost one would shift those after it.
    given = {**function.defaults, **dict(zip(function.parameters, args, strict=False)), **options}
    for name, value in {**given, "out": out}.items():
        for tensor in value if isinstance(value, tuple) else (value,):
            check_dense(tensor, function.name, name)
    op, spelt = as_op(function, given)
    results = op(**spelt)
    if out is None:
        target = given.get("accumulate_into")
        return results if target is None else target.copy_(results)
    found = results if isinstance(results, tuple) else (results,)
    for target, result in _targets(function.name, out, found):
        target.copy_(result)
    return out


def override(function: Function, args: tuple[Any, ...], options: Options, out: Any) -> Any:
    """Leave a call to an argument that has `__torch_function__` and is no tensor."""
    given = options if out is None else {**options, "out": out}
    relevant = [value for value in (*args, *given.values()) if overrides(value)]
    return torch.overrides.handle_torch_function(function.wrapper, relevant, *args, **given)


def as_op(function: Function, given: Options) -> tuple[Any, Options]:
    """The overload that serves a call, and its arguments as the schema takes them."""
    adding = _adding(function)
    features = [flag for flag in _FLAGS if given.get(flag)]
    features += [name for name in adding if given.get(name) is not None]
    for name, takes_numbers in function.tensors.items():
        if takes_numbers and not isinstance(given.get(name), Tensor):
            features = [_NUMBER]
    if any(_is_extent(name) and isinstance(value, Tensor) for name, value in given.items()):
        features.append(_EXTENT)
    for name in function.indices:
        if hasattr(given.get(name), "bundle"):
            _check_beside_index(function, name, given)
    spelt = {
        name: plain_ids(value) if name in function.indices else _spelt(value)
        for name, value in given.items()
        if name not in (*_FLAGS, *adding) or name in features
    }
    return OPS[function.name, tuple(features)], spelt


def _check_beside_index(function: Function, index: str, given: Options) -> None:
    """Its ids become a tensor, and a kernel for another device would name that one instead."""
    own = given[index].device
    for name in function.tensors:
        tensor = given.get(name)
        if not isinstance(tensor, Tensor) or not (tensor.is_cuda or own != "cpu"):
            continue
        if str(tensor.device) != own:
            raise index_elsewhere(function.name, index, str(tensor.device), own)


def _spelt(value: Any) -> Any:
    """An option as a schema takes it."""
    return value.value if isinstance(value, Enum) else value


def _targets(op: str, out: Any, results: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    """What was given for the results, each with its own."""
    count = len(results)
    given = (out,) if count == 1 else out
    if not isinstance(given, tuple) or len(given) != count:
        got = f"a tuple of {len(given)}" if isinstance(given, tuple) else describe(given)
        raise InvalidProblem(op, "out", f"a tuple of {count} arrays", got)
    pairs = list(zip(given, results, strict=True))
    for target, result in pairs:
        _check_target(op, target, result)
    return pairs


def _check_target(op: str, target: Any, result: Tensor) -> None:
    """A result is copied only to what it might have been written to."""
    if not isinstance(target, Tensor):
        raise Unsupported(op, "out", "a torch array, as the others", describe(target))
    if target.shape != result.shape:
        expected = f"of shape {tuple(result.shape)}"
        raise InvalidProblem(op, "out", expected, f"shape {tuple(target.shape)}")
    for fact in ("dtype", "device"):
        wanted, got = getattr(result, fact), getattr(target, fact)
        if wanted != got:
            raise Unsupported(op, "out", f"of {fact} {wanted}", f"{got}")
    if type(target) in PLAIN and target.is_cpu and target.numel() and not target.data_ptr():
        raise BufferTooSmall(op, "out", target.nbytes, 0)


def _tell_dtensor() -> None:
    """Have DTensor ask what to do with the parts of a tensor."""
    resolve("pullback.distributed.torch_dtensor:register")()


after_import("torch.distributed.tensor", _tell_dtensor)
