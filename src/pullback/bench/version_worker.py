"""One version of pullback in a process of its own, timed on request.

Run as a script with the `src` of the version on PYTHONPATH. The version may be older than this
file, so nothing of it is used but the public API. Messages are pickles of plain data: requests come
on the standard input, answers go to what was the standard output when the process began.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[], Any]
Message = dict[str, Any]


def build(value: Any) -> Any:
    """A value of the driver: `{"public": name}` is a name of pullback, called if there is `given`.
    Arrays are copied, so that a row that is built again lies elsewhere in memory."""
    import numpy as np

    import pullback

    if not isinstance(value, dict):
        return value.copy() if isinstance(value, np.ndarray) else value
    found: Any = pullback
    for part in value["public"].split("."):
        found = getattr(found, part)
    return found(*value["given"]) if "given" in value else found


def _arguments(row: Message) -> dict[str, Any]:
    return {name: build(value) for name, value in row["arguments"].items()}


def _arrays(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _call(row: Message) -> tuple[Run, tuple[Any, ...]]:
    function, arguments = build(row["function"]), _arguments(row)
    results = _arrays(function(**arguments))
    return lambda: function(**arguments), results


def _out(row: Message) -> tuple[Run, tuple[Any, ...]]:
    import numpy as np

    function, arguments = build(row["function"]), _arguments(row)
    results = function(**arguments)
    outs = tuple(np.zeros_like(array) for array in _arrays(results))
    arguments["out"] = outs if isinstance(results, tuple) else outs[0]
    function(**arguments)
    return lambda: function(**arguments), outs


def _plan(row: Message) -> tuple[Run, tuple[Any, ...]]:
    import numpy as np

    import pullback

    stream = pullback.Stream.cpu()
    descriptor = {name: build(value) for name, value in row["descriptor"].items()}
    plan = build({"public": row["plan"] + "Plan"}).select(
        stream, build({"public": row["plan"] + "Descriptor"})(**descriptor)
    )
    outs = {name: np.zeros(shape, dtype) for name, (shape, dtype) in row["outs"].items()}
    args = build({"public": row["plan"] + "Args"})(**_arguments(row), **outs)
    workspace = pullback.Workspace.allocate(plan)
    plan.run(stream, workspace, args)
    return lambda: plan.run(stream, workspace, args), tuple(outs.values())


def _torch(row: Message) -> tuple[Run, tuple[Any, ...]]:
    import numpy as np
    import torch

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)

    function = build(row["function"])
    arguments = {name: tensor(value) for name, value in _arguments(row).items()}
    results = _arrays(function(**arguments))
    return lambda: function(**arguments), tuple(r.contiguous().view(torch.uint8) for r in results)


WAYS = {"call": _call, "out": _out, "plan": _plan, "torch": _torch}
"""How a row is run: as people write it, into given arrays, through its plan, on torch tensors."""

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def digest(results: tuple[Any, ...]) -> str:
    """Equal where all bits are."""
    import numpy as np

    found = hashlib.blake2b(digest_size=16)
    for result in results:
        array: Any = np.ascontiguousarray(result)
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(memoryview(array.reshape(-1).view(np.uint8)))
    return found.hexdigest()


class Worker:
    """Holds one row at a time."""

    def __init__(self) -> None:
        self.given: Message | None = None
        self.run: Run | None = None

    def about(self, _: Message) -> Message:
        import pullback

        return {"file": pullback.__file__, "threads": pullback.get_num_threads()}

    def row(self, message: Message) -> Message:
        self.given = message
        return self.renew(message)

    def renew(self, _: Message) -> Message:
        """Build the row in other memory: the old one is there until the new one is."""
        assert self.given is not None
        self.run, results = WAYS[self.given["row"]["way"]](self.given["row"])
        gc.collect()
        return {"digest": digest(results)}

    def sample(self, message: Message) -> Message:
        """The first call is not timed: the other version has used the caches meanwhile."""
        assert self.run is not None
        run, clock = self.run, CLOCKS[message["clock"]]
        run()
        start = clock()
        for _ in range(message["repeats"]):
            run()
        return {"seconds": clock() - start}

    def drop(self, _: Message) -> Message:
        self.given = self.run = None
        gc.collect()
        return {}


def main() -> None:
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a version prints must not come between the answers
    if len(sys.argv) > 1 and sys.platform == "linux":
        os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    gc.disable()
    worker = Worker()
    while True:
        try:
            message = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = getattr(worker, message["do"])(message)
        except Exception as error:  # a version may fail on a row; the driver tells of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


if __name__ == "__main__":
    main()
