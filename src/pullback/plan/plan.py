"""The body all plan classes share: select, can_implement, run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from operator import attrgetter
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from pullback.contract.element import ElementKind, describe
from pullback.contract.errors import (
    InvalidProblem,
    KernelFailure,
    Unsupported,
    WorkspaceTooSmall,
)
from pullback.contract.guarantee import KernelSku, PlanPreference, PrecisionGuarantee
from pullback.contract.imports import IMPORTS, uninterrupted
from pullback.contract.kinds import BackendKind, Reproducibility
from pullback.contract.once import once
from pullback.contract.record import (
    PlanRecord,
    check_extent,
    check_kind,
    check_option,
    resolve,
)
from pullback.cpu.pool import get_num_threads
from pullback.plan.launch import Launch, Rules, check_tensor, index_elsewhere
from pullback.plan.reference import ReferenceRunner
from pullback.plan.stream import Stream, Workspace
from pullback.tensor.adapters import (
    adapter_of,
    check_inside_owner,
    check_storage,
    is_inside_owner,
    numpy_address,
)
from pullback.tensor.view import TensorMut, TensorRef

D = TypeVar("D")
A = TypeVar("A")

# Layouts and plans kept ready; past that the oldest half goes.
_KEEP = 1024

_DEFAULT = PlanPreference()


def exact(value: Any) -> Any:
    """A value as part of a key: the two zeros of a float are not the same."""
    if isinstance(value, np.generic):
        return value.tobytes()
    return str(value) if type(value) is float and value == 0 else value


def _exactly(descriptor: Any) -> list[Any]:
    """What equal descriptors may still differ in: 3 and 3.0 are equal, and so are the two zeros."""
    parts: list[Any] = []
    for value in vars(descriptor).values():
        kind = type(value)
        parts.append(kind)
        if kind is tuple:
            parts += map(type, value)
        elif isinstance(value, float | np.generic):
            parts.append(exact(value))
    return parts


def remember(table: dict[Any, Any], key: Any, value: Any) -> Any:
    """Insert into a bounded table; the dictionary keeps insertion order, so the old go first. What
    another thread has inserted meanwhile stays, and is returned."""
    if len(table) >= _KEEP:
        for stale in list(table)[: _KEEP // 2]:
            table.pop(stale, None)
    return table.setdefault(key, value)


def _always_miss(stream: Any, workspace: Any, args: Any) -> Any:
    """The lookup of a plan that has no call cache yet."""


class Plan(Generic[D, A]):
    """A kernel chosen for a descriptor. Immutable, reusable, safe to run from many threads."""

    record: ClassVar[PlanRecord]
    _selected: ClassVar[dict[Any, Any]] = {}

    def __init__(self, descriptor: D, device: str, backend: BackendKind) -> None:
        record = self.record
        self.descriptor, self.device, self.backend = descriptor, device, backend
        self.op = record.op(descriptor)
        self._tensors = attrgetter(*(slot.part_of or slot.name for slot in record.slots))
        self._used = tuple(slot.used(descriptor) and not slot.part_of for slot in record.slots)
        self._launches: dict[Any, Launch] = {}
        self._cache: Any = None  # a CallCache, once it has run on the CPU
        self._lookup: Callable[..., Any] = _always_miss
        self._layout = (
            None if backend is BackendKind.REFERENCE else resolve(record.backends[backend])
        )
        # A backend's layout may promise otherwise than the record, and borrow more.
        kept = getattr(self._layout, "guarantee", record.guarantee)(descriptor)
        element: ElementKind = descriptor.element  # type: ignore[attr-defined]
        self.sku = KernelSku(
            record.category,
            record.kind(descriptor),
            record.direction,
            element,
            record.aux,
            platform.machine() if device == "cpu" else _gpu_arch(device),
            backend,
            kept,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        # What a plan says of itself is settled once it has a SKU; what it remembers is private.
        if "sku" in vars(self) and not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} is immutable: `{name}` cannot be set")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: `{name}` cannot be deleted")

    # --- choosing ------------------------------------------------------------------------------

    @classmethod
    def select(cls, stream: Stream, desc: D, pref: PlanPreference = _DEFAULT) -> Self:
        """The plan for a descriptor, made once and then found again."""
        key: Any = None
        try:
            key = (cls, desc, pref, stream.device, *_exactly(desc))
            found = cls._selected.get(key)
        except (TypeError, ValueError, AttributeError):
            found = None  # an unhashable field or another object: the validation below names it
        if found is None:
            plan = cls._choose(stream, desc, pref)
            # No lock: a child forked while another thread held it would wait for ever.
            found = cls._selected.get(key) or remember(cls._selected, key, plan)
        return found  # type: ignore[no-any-return]

    @classmethod
    def _choose(cls, stream: Stream, descriptor: D, preference: PlanPreference) -> Self:
        record, name = cls.record, f"{cls.record.name}Plan"
        check_kind(name, "stream", stream, Stream)
        check_kind(name, "desc", descriptor, record.descriptor)
        check_kind(name, "pref", preference, PlanPreference)
        record.validate(descriptor)
        descriptor = _plain(descriptor)
        op, device = record.op(descriptor), stream.device
        _check_sizes(record, op, descriptor)
        _check_preference(op, preference)
        plan = cls(descriptor, device, _backend(record, op, device, preference))
        reached = plan.precision_guarantee.reproducibility
        if reached < preference.reproducibility:
            raise Unsupported(
                op, "preference", f"at most {reached.name} here", preference.reproducibility.name
            )
        limit = preference.max_workspace_bytes
        if limit is not None and plan.workspace_size > limit:
            raise Unsupported(
                op, "preference", f"a workspace of {plan.workspace_size} bytes or more", f"{limit}"
            )
        return plan

    # --- what it says of itself ------------------------------------------------------------------

    @once
    def workspace_size(self) -> int:
        """Bytes of scratch memory a run needs; follows from the descriptor alone."""
        if self._layout is None:
            return 0
        return int(getattr(self._layout, "workspace", self.record.workspace)(self.descriptor))

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        return self.sku.precision_guarantee

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sku}>"

    # --- running ---------------------------------------------------------------------------------

    def can_implement(self, args: A) -> None:
        """None if `run` would accept these args; otherwise raises what `run` would raise."""
        launch, addresses, arrays = self._prepare(args)
        launch.check_addresses(addresses, arrays)

    def run(self, stream: Stream, workspace: Workspace, args: A) -> None:
        """Validate, launch, write into the args. Allocates nothing."""
        if self._lookup(stream, workspace, args) is not None:
            return None
        try:
            if workspace.nbytes < self.workspace_size:
                self.can_implement(args)
                raise WorkspaceTooSmall(self.op, "workspace", self.workspace_size, workspace.nbytes)
            threads = stream.threads or get_num_threads()
            launch, addresses, arrays = self._prepare(args)
            if stream.handle is None:
                status = launch.run(addresses, arrays, workspace.address, threads)
            else:
                with resolve("pullback.gpu.device:using")(stream.device, stream.handle):
                    status = launch.run(addresses, arrays, workspace.address, 1)
            self._insert(launch, args)
            return self.fail(*status) if status[0] else None
        except AttributeError:  # asked only now, since it is the rarest mistake
            check_kind(self.op, "stream", stream, Stream)
            check_kind(self.op, "workspace", workspace, Workspace)
            self._arrays_of(args)
            raise

    def _insert(self, launch: Launch, args: A) -> None:
        """Have the call cache repeat runs on arrays laid out like these."""
        if launch.record is None:
            launch.record = self._record_of(launch, args) or False
        if launch.record:
            if self._cache is None:
                self._cache = resolve("pullback.cpu.call_cache:CallCache")()
                self._lookup = self._cache.lookup
            self._cache.insert(launch.record)

    def _record_of(self, launch: Launch, args: A) -> Any:
        """The record of this run for the call cache; None where native code cannot read it."""
        if self.backend is not BackendKind.NUMBA:
            return None
        unused = resolve("pullback.cpu.operands:UNUSED")
        given = zip(self._tensors(args), self._used, strict=True)
        native = launch.for_arrays([value if used else unused for value, used in given])
        if native is None:
            return None
        names = [slot.part_of or slot.name for slot in self.record.slots]
        kinds = Stream, Workspace, type(args)
        plan_record = resolve("pullback.cpu.call_record:plan_record")
        return plan_record(native, *kinds, self.workspace_size, names)

    def fail(self, status: int, position: int, value: int, op: str = "") -> None:
        """Raise the error that the status of a launch stands for."""
        failure = self.record.failures.get(status)
        if failure is None:
            raise KernelFailure(op or self.op, status)
        raise failure.raised(op or self.op, self.descriptor, position, value)

    def _prepare(self, args: A) -> tuple[Launch, list[int], list[Any]]:
        """The launch for these layouts, made once; the addresses, and the tensors at them."""
        arrays = self._arrays_of(args)
        keys: list[Any] = []
        addresses: list[int] = []
        for position, array in enumerate(arrays):
            if type(array) is np.ndarray and self._used[position]:
                if not is_inside_owner(array):
                    check_inside_owner(array, self.op, self.record.slots[position].name)
                keys.append((array.shape, array.strides, array.dtype, array.flags.writeable))
                addresses.append(numpy_address(array))
            else:
                key, address = self._look_at(arrays, position)
                keys.append(key)
                addresses.append(address)
        launch = self._launches.get(tuple(keys))
        if launch is None:
            for bundle in (value for value in self._tensors(args) if hasattr(value, "bundle")):
                self.record.admit(self.op, self.descriptor, bundle)
            launch = remember(self._launches, tuple(keys), self.lay_out(arrays))
        return launch, addresses, arrays

    def _arrays_of(self, args: A) -> list[Any]:
        try:
            return list(self._tensors(args))
        except AttributeError:
            raise InvalidProblem(
                self.op, "args", f"a {self.record.name}Args", describe(args)
            ) from None

    def _look_at(self, arrays: list[Any], position: int) -> tuple[Any, int]:
        """Key and address of an argument that is not a plain NumPy array."""
        array, part = arrays[position], self.record.slots[position].part
        if part and hasattr(array, "bundle"):
            if self.device != array.device:
                name = self.record.slots[position].name
                raise index_elsewhere(self.op, name, self.device, array.device)
            arrays[position] = tensor = array.bundle[part]
            if tensor is None:
                return array.bundle_key, 0
            if type(tensor) is np.ndarray:
                return array.bundle_key, numpy_address(tensor)
            return array.bundle_key, int(tensor.data_ptr())
        if array is None or not self._used[position]:
            arrays[position] = None
            return None, 0
        if isinstance(array, TensorRef):
            if array.family == "torch" and array.address:  # whose memory may have changed since
                name = self.record.slots[position].name
                check_storage(array.array, *array.bounds(), self.op, name)
            layout = (array.shape, array.extents, array.strides)
            return (*layout, array.element, array.writable, array.device), array.address
        adapter = adapter_of(array, self.op, self.record.slots[position].name)
        if adapter.convert is not None:
            arrays[position] = array = adapter.convert(array)
        return adapter.key(array), adapter.address(array)

    def lay_out(self, arrays: list[Any], op: str = "", names: Sequence[str] = ()) -> Launch:
        """Validate tensors against the descriptor and lay the launch out for their strides. Errors
        name `op` and `names`: the plan's own and its slots, unless a function asks."""
        lent = 0 if op else self.workspace_size  # a function has a workspace of its own
        op, slots = op or self.op, self.record.slots
        names = names or [slot.name for slot in slots]
        views = self._checked(arrays, op)
        rules = Rules.of(slots, views, lent)
        return Launch(slots, op, rules, names, *self._runner(views, rules))

    def program(self, arrays: list[Any], op: str = "") -> Any:
        """What such a launch runs, for front ends that launch it themselves."""
        return self._program(self._checked(arrays, op or self.op))

    def _program(self, views: list[TensorRef | None]) -> Any:
        assert self._layout is not None
        with IMPORTS, uninterrupted():  # layouts import the kernels they choose
            return self._layout(self.descriptor, *views)

    def _checked(self, arrays: list[Any], op: str) -> list[TensorRef | None]:
        record, desc = self.record, self.descriptor
        views: list[TensorRef | None] = []
        for slot, array in zip(record.slots, arrays, strict=True):
            if array is None:
                if slot.used(desc) and slot.needed(desc):
                    raise InvalidProblem(op, slot.name, slot.why_needed, "None")
                views.append(None)
                continue
            kind = TensorMut if slot.written else TensorRef
            view = kind(array, op=op, argument=slot.name)
            check_tensor(op, slot, desc, view, self.device)
            views.append(view)
        return views

    def _runner(self, views: list[TensorRef | None], rules: Rules) -> tuple[Any, Any]:
        """What runs on other backends, and what runs here."""
        if self._layout is None:
            return ReferenceRunner(self.record, self.descriptor, views), None
        program = self._program(views)
        if self.backend is BackendKind.TRITON:
            runner = resolve("pullback.gpu.runner:TritonRunner")
            return runner(program, self.device, self.fail), None
        element: ElementKind = self.descriptor.element  # type: ignore[attr-defined]
        native = resolve("pullback.cpu.native_launch:NativeLaunch")
        pairs = (*rules.apart, *rules.lent)
        return None, native.of(program, element, len(views), rules.aligned, pairs)


def _plain(descriptor: Any) -> Any:
    """The same with Python's own integers, which never overflow."""
    fields = vars(descriptor).items()
    return replace(descriptor, **{name: _python(value) for name, value in fields})


def _python(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_python, value))
    return int(value) if isinstance(value, np.integer) else value


def _check_sizes(record: PlanRecord, op: str, descriptor: Any) -> None:
    """Refuse tensors that no memory can hold. (Extents may be symbols, which say nothing yet.)"""
    for slot in record.slots:
        shape = slot.shape(descriptor) if slot.used(descriptor) else ()
        known = [max(extent, 1) for extent in shape if isinstance(extent, int)]
        size = slot.elements(descriptor.element)[-1].itemsize
        if len(known) == len(shape) and prod(known) * size > sys.maxsize:
            expected = f"of a shape that memory can hold, up to {sys.maxsize} bytes"
            raise InvalidProblem(op, slot.name, expected, f"shape {shape}")


def _check_preference(op: str, preference: PlanPreference) -> None:
    if preference.max_workspace_bytes is not None:
        check_extent(op, "max_workspace_bytes", preference.max_workspace_bytes)
    if preference.prefer_backend is not None:
        check_option(op, "prefer_backend", preference.prefer_backend, BackendKind)
    check_option(op, "reproducibility", preference.reproducibility, Reproducibility)


def _gpu_arch(device: str) -> str:
    return str(resolve("pullback.gpu.device:arch")(device))


def _backend(record: PlanRecord, op: str, device: str, preference: PlanPreference) -> BackendKind:
    native = BackendKind.NUMBA if device == "cpu" else BackendKind.TRITON
    wanted = preference.prefer_backend or native
    if wanted is BackendKind.REFERENCE and device == "cpu":
        return wanted
    if wanted is not native or wanted not in record.backends:
        offered = ", ".join(kind.name for kind in record.backends)
        raise Unsupported(
            op, "preference", f"a backend for {device} (there are {offered})", wanted.name
        )
    if wanted is BackendKind.TRITON:
        resolve("pullback.gpu.device:require")(op, device)
    return wanted
