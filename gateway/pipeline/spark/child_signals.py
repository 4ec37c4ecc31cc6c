"""Keep a signal to a whole group of processes from ending Spark's JVM before its driver.

systemd (`KillMode=control-group`, the default), `timeout` and Kubernetes' `preStop` scripts send
SIGTERM to all processes of a service. If the JVM ended, each call of the driver would fail, and the
present batch could not end. A process inherits that a signal is ignored, also through `exec`
(POSIX), and Java then installs no handler for it. The JVM ends with the driver in any case, because
it reads the pipe that the driver holds.

The signal is ignored in the child, between `fork` and `exec`. To ignore it in the driver for a
moment would lose a signal of this moment: blocking it does not help, because the kernel gives it to
any thread that does not block it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Children(threading.local):
    """Whether the processes that this thread starts ignore SIGTERM."""

    ignore_sigterm = False


_children = _Children()


def _ignore_sigterm_if_wanted() -> None:
    if _children.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm_if_wanted)


@contextmanager
def ignore_sigterm_in_children() -> Iterator[None]:
    """Let the processes that this thread starts in the context ignore SIGTERM.

    This is so for `os.fork`, and for `subprocess` if `preexec_fn` is given, as PySpark does: Python
    calls functions that are registered for a fork only in such children.
    """
    _children.ignore_sigterm = True
    try:
        yield
    finally:
        _children.ignore_sigterm = False
