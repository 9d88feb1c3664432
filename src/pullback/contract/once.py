"""Attributes that are computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - a decorator
    """As `functools.cached_property`, but without the lock that Python 3.11 gives each of those: a
    child forked while another thread held it would wait for ever. Two threads may both compute."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> once[T]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else vars(owner).setdefault(self.name, self.compute(owner))
