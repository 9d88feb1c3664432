"""A job given to OpenMP's threads while they wait for work: who does it, and that all is done."""

from __future__ import annotations

import textwrap

import pytest

from test_pool import python

pytest.importorskip("torch")

PRELUDE = """
import torch

torch.set_num_threads(2)
LARGE = torch.ones(1 << 20)

def work_of_torch():
    return LARGE + 1

def threads():
    return len(os.listdir("/proc/self/task"))

def run_sheets(size, seed):
    rng = random.Random(seed)
    for _ in range(20):
        work_of_torch()
        sheet = random_sheet(rng)
        assert sheet.run(size) == 0
        sheet.check()

def in_child(act):
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_waiting_team_takes_jobs() -> None:
    script = """
        work_of_torch()
        before = threads()
        Sheet([(300, 1)]).run(2)
        assert threads() == before  # met: no worker of ours was needed
        Sheet([(300, 1)]).run(5)
        assert threads() == before + 4  # too small for this job
        run_sheets(2, seed=1)
        run_sheets(3, seed=2)

        # Of many jobs some find the team awake; its worker is then among those who do them.
        team = (ctypes.c_int64 * 2)(threading.get_ident())
        ctypes.CDLL(None).GOMP_parallel(ctypes.c_void_p(meet.address), team, 2, 0)
        seen, block = np.zeros(64, np.int64), np.zeros(8, np.int64)
        block[COUNTS] = seen.ctypes.data
        for attempt in range(500):
            work_of_torch()
            launch(sign, 64, 1, block, 2)
            if team[1] in seen:
                break
        else:
            raise AssertionError("the team was never used")

        # What other threads want done is none of its business.
        callers = [threading.Thread(target=run_sheets, args=(2, seed)) for seed in (3, 4, 5)]
        for caller in callers: caller.start()
        for caller in callers: caller.join()

        # A child has OpenMP's memory of a team that it has not.
        in_child(lambda: [Sheet([(300, 1)]).run(2) for _ in range(20)])
    """
    python(PRELUDE + textwrap.dedent(script), OMP_WAIT_POLICY="ACTIVE")


def test_a_sleeping_team_is_left_alone() -> None:
    script = """
        work_of_torch()
        in_child(lambda: Sheet([(300, 1)]).run(2))  # loaded in the child for the first time
        before = threads()
        Sheet([(300, 1)]).run(2)
        assert threads() == before  # met
        time.sleep(0.2)
        Sheet([(300, 1)]).run(2)
        assert threads() == before + 1  # a worker of ours
        for size in (1, 2):
            torch.set_num_threads(size)
            run_sheets(2, seed=1)
    """
    python(PRELUDE + textwrap.dedent(script), OMP_WAIT_POLICY="PASSIVE")
