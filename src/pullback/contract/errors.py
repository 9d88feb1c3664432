"""Every error a caller can see. One family, one sentence: op, argument, expected, got."""

from __future__ import annotations

from typing import Any


class PullbackError(Exception):
    """The common ancestor; `op`, `argument`, `expected` and `got` say what went wrong where."""

    def __init__(self, op: str, argument: str, expected: Any, got: Any) -> None:
        self.op, self.argument, self.expected, self.got = op, argument, expected, got
        super().__init__(self.sentence())

    def sentence(self) -> str:
        return f"{self.op}: `{self.argument}` must be {self.expected}, got {self.got}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.argument, self.expected, self.got)


class InvalidProblem(PullbackError, ValueError):
    """Shape, axis, missing saved tensor, unsorted ids, aliasing, a misspelt option."""


class IndexOutOfRange(InvalidProblem, IndexError):
    """An index outside its range, under the policy ERROR."""


class Unsupported(PullbackError, NotImplementedError):
    """A dtype, rank, device or preference no kernel serves."""


class MisalignedOperand(PullbackError):
    """A pointer or stride that is not a multiple of the element size."""


class _TooSmall(PullbackError):
    what = "memory"

    def __init__(self, op: str, argument: str, needed: int, got: int) -> None:
        self.needed = needed
        super().__init__(op, argument, needed, got)

    def sentence(self) -> str:
        return (
            f"{self.op}: `{self.argument}` must have at least {self.expected} bytes of "
            f"{self.what}, got {self.got}"
        )


class BufferTooSmall(_TooSmall):
    """Memory shorter than shape and strides reach."""


class WorkspaceTooSmall(_TooSmall):
    """A workspace shorter than the plan's `workspace_size`."""

    what = "workspace"


class KernelFailure(PullbackError):
    """A kernel reported a failure that no validation foresaw."""

    def __init__(self, op: str, code: int) -> None:
        self.code = code
        super().__init__(op, "kernel", "able to finish", f"status {code}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.code)
