"""The thread pool in whole processes: loading, fork, signals and the end of the interpreter."""

from __future__ import annotations

import textwrap
import time

import pytest

from test_pool import python


def test_importing_is_free() -> None:
    script = """
        from pullback.cpu import pool
        assert pool.get_num_threads() > 0
        assert "numba" not in sys.modules
    """
    python(script, prelude=False)


def test_loading_and_unsplit_phases_start_no_thread() -> None:
    python("""
        before = len(os.listdir("/proc/self/task"))
        assert Sheet([(100, 100), (5, 9)]).run(4) == 0 and Sheet([(100, 3)]).run(1) == 0
        assert len(os.listdir("/proc/self/task")) == before
        assert Sheet([(100, 3)]).run(4) == 0
        assert len(os.listdir("/proc/self/task")) == before + 3
    """)


def test_fork_while_busy() -> None:
    python("""
        def busy():
            block = np.zeros(8, np.int64)
            while True:
                launch(linger, 100, 1, block, 3)

        for _ in range(3):
            threading.Thread(target=busy, daemon=True).start()
        time.sleep(0.05)
        rng = random.Random(2)
        for attempt in range(12):
            child = os.fork()
            if child == 0:
                assert len(os.listdir("/proc/self/task")) == 1
                for _ in range(50):
                    sheet = random_sheet(rng)
                    sheet.run(4)
                    sheet.check()
                grandchild = os.fork()
                sheet = Sheet([(300, 1)])
                sheet.run(3)
                sheet.check()
                if grandchild:
                    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """)


def test_fork_while_loading() -> None:
    """The child works although another thread was compiling when it was born."""
    python("""
        for _ in range(3):
            threading.Thread(target=Sheet([(100, 1)] * 50).run, args=(3,), daemon=True).start()
        for _ in range(4):
            child = os.fork()
            if child == 0:
                sheet = Sheet([(300, 1)])
                sheet.run(3)
                sheet.check()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """)


def test_multiprocessing_fork() -> None:
    python("""
        import multiprocessing

        def task(seed):
            sheet = random_sheet(random.Random(seed))
            sheet.run(3)
            sheet.check()
            return seed

        assert Sheet([(100, 1)]).run(3) == 0
        with multiprocessing.get_context("fork").Pool(3) as processes:
            assert processes.map(task, range(60)) == list(range(60))
    """)


END = {
    "falls off the end": "",
    "sys.exit": "sys.exit(0)",
    "while a thread is in a job": """
        def busy():
            while True:
                launch(linger, 200, 1, np.zeros(8, np.int64), 3)
        threading.Thread(target=busy, daemon=True).start()
        time.sleep(0.02)
        sys.exit(0)
    """,
    "in an exit hook": "import atexit; atexit.register(lambda: Sheet([(99, 1)]).run(5) and None)",
}


@pytest.mark.parametrize("end", END)
def test_the_process_ends_at_once(end: str) -> None:
    script = "launch(linger, 100, 1, np.zeros(8, np.int64), 4)\nprint(time.time(), flush=True)\n"
    begun = float(python(script + textwrap.dedent(END[end])))
    assert time.time() - begun < 5


def test_a_signal_reaches_the_main_thread() -> None:
    """Workers block signals, so the main thread wakes from its sleep."""
    python("""
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
        launch(linger, 100, 1, np.zeros(8, np.int64), 8)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert signal.sigwait([signal.SIGALRM]) == signal.SIGALRM
    """)
