"""Commands of `gateway` as forks of a process that has imported them.

Python's start and the imports take 0.6 s of CPU, a fork takes 0.05 s, and the tests start hundreds
of gateways. The fork is a process like any other: signals, exit statuses, files and sockets are its
own. That `python -m gateway` starts at all is shown by tests/test_cli.py.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED_MODULES = [
    "gateway.cli.sidecar_factory",
    "gateway.config",
    "gateway.kafka.embedded",
    "gateway.web.app.server",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED_MODULES)


class ForkedCommand:
    """A running command, with the part of `subprocess.Popen` that the tests use.

    Args:
        arguments: Those after `gateway`.
        environment: The whole environment of the process.
        log_path: The file that both of its outputs are appended to.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log_path: Path
    ) -> None:
        self._process = _context.Process(
            target=_run_command, args=(list(arguments), dict(environment), log_path), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, signal_number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal_number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def _run_command(arguments: list[str], environment: dict[str, str], log_path: Path) -> None:
    from gateway.cli import main

    with open(os.devnull, "rb") as empty, log_path.open("ab") as log:
        os.dup2(empty.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # The server's own streams may hold text that it has not written yet, and they have buffers.
    sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["gateway", *arguments]
    main()
