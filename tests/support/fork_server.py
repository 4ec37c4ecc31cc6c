"""Commands of `gateway` as forks of a process that has imported them.

Python's start and the imports take 0.6 s of CPU, a fork takes 0.05 s, and the tests start hundreds
of gateways. The fork is a process like any other: signals, exit statuses, files and sockets are its
own. A gateway's workers are forks, too: of their supervisor, which has no threads that would be
missed. That `python -m gateway` starts both is shown by tests/e2e/test_workers.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import reduction
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

PRELOADED_MODULES = [
    "gateway.cli.sidecar",
    "gateway.cli.tail.run",
    "gateway.config",
    "gateway.kafka.embedded",
    "gateway.web.app.server",
    "gateway.web.workers.bus",
    "gateway.web.app.supervisor",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
]

COMMAND_TIMEOUT_S = 120.0
WORKER_COMMAND = (sys.executable, "-m", "gateway.web.app.worker")
PR_SET_NAME = 15

_kept: list[object] = []

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED_MODULES)


class ForkedCommand:
    """A running command, with the part of `subprocess.Popen` that the tests use.

    Args:
        arguments: Those after `gateway`.
        environment: The whole environment of the process.
        log_path: The file that both of its outputs are appended to, unless they are given.
        streams: Descriptors of its standard input and outputs, in place of nothing and of that
            file.
        directory: Where it runs; by default that of the tests.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path | None = None,
        *,
        streams: Sequence[int] | None = None,
        directory: Path | None = None,
    ) -> None:
        sys.audit("gateway.tests.process")
        shared = None if streams is None else [_SharedDescriptor(fd) for fd in streams]
        self._process = _context.Process(
            target=_run_command,
            args=(list(arguments), dict(environment), log_path, shared, directory),
            daemon=True,
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

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit status; None if it is still running after this time."""
        self._process.join(timeout_s)
        return self._process.exitcode


class _SharedDescriptor:
    """A descriptor that a fork gets as it is pickled for it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_descriptor, (reduction.DupFd(self._fd),)


def _receive_descriptor(duplicate: Any) -> int:
    return int(duplicate.detach())


def run_forked(
    *arguments: str,
    stdin: bytes = b"",
    directory: Path | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of `gateway` to its end. environment: all it has but PATH."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        streams = [file.fileno() for file in (given, output, errors)]
        environ = {"PATH": os.environ["PATH"], **environment}
        command = ForkedCommand(arguments, environ, streams=streams, directory=directory)
        if command.wait(timeout_s) is None:
            command.kill()
            command.wait()
        for file in (output, errors):
            file.seek(0)
        status = command.returncode or 0
        return subprocess.CompletedProcess(arguments, status, output.read(), errors.read())


def _run_command(
    arguments: list[str],
    environment: dict[str, str],
    log_path: Path | None,
    streams: list[int] | None,
    directory: Path | None,
) -> None:
    from gateway.cli import main

    if streams is None:
        assert log_path is not None
        log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        streams = [os.open(os.devnull, os.O_RDONLY), log, os.dup(log)]
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    _open_streams()
    if directory is not None:
        os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["gateway", *arguments]
    subprocess.Popen = WorkerForkingPopen  # type: ignore[misc]
    main()


class WorkerForkingPopen(subprocess.Popen[bytes]):
    """Starts a worker by a fork without an exec; other commands as ever."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if isinstance(args, Sequence) and tuple(args[:-1]) == WORKER_COMMAND:
            options["preexec_fn"] = partial(_run_worker, args[-1], options["pass_fds"])
        super().__init__(args, *more, **options)


def _run_worker(number: str, passed_fds: Sequence[int]) -> NoReturn:
    """In the child, whose standard input is connected already."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does at its start
        # What had the descriptors must live on: it would close them again, when they are others'.
        _kept.extend((sys.stdin, sys.stdout, sys.stderr, asyncio.get_event_loop_policy()))
        gc.freeze()
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in passed_fds:
                with suppress(OSError):  # that of the directory
                    os.close(fd)
        ctypes.CDLL(None).prctl(PR_SET_NAME, f"worker-{number}".encode(), 0, 0, 0)
        gc.enable()  # which a Popen with a function disables
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(None)
        _open_streams()
        sys.argv = ["worker", number]
        runpy.run_module(WORKER_COMMAND[-1], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        else:
            status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _open_streams() -> None:
    """The old ones may hold text that another process has not written yet."""
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
