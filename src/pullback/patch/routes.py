"""How an op of PyTorch is patched: a kernel of ours in place of that for the CPU key, which is kept
and called wherever ours declines. Only ops with a CPU kernel of their own are patched: one that
PyTorch composes of others would lose its derivative."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.library import Library, get_kernel

from pullback.contract.errors import InvalidProblem, PullbackError
from pullback.patch.served import SERVED


class Route:
    """One op, from the first patch that names it to the last that ends."""

    def __init__(self, name: str) -> None:
        self.name, self.patches = name, 0
        self._serve: Callable[..., Any] = SERVED[name][0]
        self._at = SERVED[name][2]
        self._counts = _counts[name]
        self._least = 0
        self._prior: Any = None
        self._library: Any = None

    def open(self, least: int | None) -> None:
        least = SERVED[self.name][1] if least is None else least
        self._least = min(self._least, least) if self.patches else least
        self.patches += 1
        if self.patches == 1:
            self._prior = get_kernel(f"aten::{self.name}", "CPU")
            self._library = Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", UserWarning
                )  # that a kernel is replaced is the point
                self._library.impl(
                    self.name, self._run, "CPU", with_keyset=True, allow_override=True
                )

    def close(self) -> None:
        self.patches -= 1
        if self.patches == 0:
            self._library._destroy()
            self._library = None

    def _run(self, keyset: Any, *args: Any, **options: Any) -> Any:
        for at in self._at:  # few words for a small call, which is to lose no time
            if args[at].numel() >= self._least:
                break
        else:
            self._counts[1] += not _inside.active
            return self._prior.call_boxed(keyset, *args, **options)
        if _inside.active:
            return self._prior.call_boxed(keyset, *args, **options)
        return self._try(keyset, args, options)

    def _try(self, keyset: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        _inside.active = True
        try:
            with torch.no_grad():
                answer = self._serve(*args, **options)
        except PullbackError:
            answer = NotImplemented  # PyTorch has its own words for what is wrong
        finally:
            _inside.active = False
        if answer is not NotImplemented:
            self._counts[0] += 1
            return answer
        self._counts[1] += 1
        return self._prior.call_boxed(keyset, *args, **options)


class _Inside(threading.local):
    """Whether this thread is in a call that is served: what our own code calls stays PyTorch's."""

    active = False


_inside = _Inside()
_counts: dict[str, list[int]] = {}
_routes: dict[str, Route] = {}
_lock = threading.Lock()


def counted() -> dict[str, tuple[int, int]]:
    return {name: (served, left) for name, (served, left) in sorted(_counts.items())}


class Patch:
    """Ops that are patched until `restore`, or until the end of a `with` block."""

    def __init__(self, ops: Iterable[str] | None = None, least: int | None = None) -> None:
        chosen = list(SERVED) if ops is None else [ops] if isinstance(ops, str) else [*ops]
        for name in chosen:
            if name not in SERVED:
                raise InvalidProblem("patch.torch", "ops", f"among {', '.join(SERVED)}", repr(name))
        self.ops = tuple(dict.fromkeys(chosen))
        self._open = True
        with _lock:
            for name in self.ops:
                _counts.setdefault(name, [0, 0])
                _routes.setdefault(name, Route(name)).open(least)

    def restore(self) -> None:
        """Give the ops back to PyTorch, unless another patch holds them; again it does nothing."""
        with _lock:
            if self._open:
                self._open = False
                for name in self.ops:
                    _routes[name].close()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        return f"<patch of {', '.join(self.ops)}{'' if self._open else ', ended'}>"
