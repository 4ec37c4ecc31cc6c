"""Keep a signal to a whole group of processes from ending Spark's JVM before its driver.

systemd (`KillMode=control-group`, the default), `timeout` and Kubernetes' `preStop` scripts send
SIGTERM to all processes of a service. If the JVM ended, each call of the driver would fail, and the
present batch could not end. A process inherits that a signal is ignored, also through `exec`
(POSIX), and Java then installs no handler for it. The JVM ends with the driver in any case, because
it reads the pipe that the driver holds.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_sigterm_in_children() -> Iterator[None]:
    """Let the processes that are started in the context ignore SIGTERM.

    A SIGTERM to this process is handled when the context is left: Linux keeps a blocked signal,
    even if it is ignored at that time. Outside of the main thread, which alone can change how
    signals are handled, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    previous_handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
