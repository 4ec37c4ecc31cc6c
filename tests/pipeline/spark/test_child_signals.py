"""SIGTERM to all processes of a service, of which only the driver may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from gateway.pipeline.spark.child_signals import ignore_sigterm_in_children

CHILD = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)"


def is_ignored_by_child() -> bool:
    return subprocess.check_output([sys.executable, "-c", CHILD]).strip() == b"True"


def test_processes_that_are_started_in_the_context_ignore_sigterm():
    """Spark's JVM ended by the signal to the group, and the driver failed in a call of py4j."""
    with ignore_sigterm_in_children():
        assert is_ignored_by_child()
    assert not is_ignored_by_child()


def test_a_signal_to_the_driver_is_handled_when_the_context_is_left():
    received = []
    previous_handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with ignore_sigterm_in_children():
            os.kill(os.getpid(), signal.SIGTERM)
            assert not received
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
