"""SIGTERM to all processes of a service, of which only the driver may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.pipeline.spark.session import ignore_sigterm_in_children

CHILD = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)"


def is_ignored_by_child() -> bool:
    output = subprocess.check_output([sys.executable, "-c", CHILD], preexec_fn=lambda: None)
    return output.strip() == b"True"


@pytest.mark.needs("process")
def test_processes_that_are_started_in_the_context_ignore_sigterm():
    """Spark's JVM ended by the signal to the group, and the driver failed in a call of py4j."""
    with ignore_sigterm_in_children():
        assert is_ignored_by_child()
    assert not is_ignored_by_child()


@pytest.mark.needs("process")
def test_a_thread_that_is_not_the_main_one_starts_such_processes_too():
    def start_child() -> bool:
        with ignore_sigterm_in_children():
            return is_ignored_by_child()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(start_child).result()
        assert not is_ignored_by_child()


def test_a_signal_to_the_driver_is_never_lost():
    """It was ignored in the driver, too, and another thread took it at that time."""
    received: list[int] = []
    previous_handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    with ThreadPoolExecutor(4) as pool:
        release = threading.Event()
        waiting = [pool.submit(release.wait) for _ in range(4)]
        try:
            with ignore_sigterm_in_children():
                os.kill(os.getpid(), signal.SIGTERM)
            assert received == [signal.SIGTERM]
        finally:
            release.set()
            signal.signal(signal.SIGTERM, previous_handler)
    assert all(each.result() for each in waiting)
