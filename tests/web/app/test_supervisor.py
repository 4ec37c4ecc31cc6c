"""The supervisor, with workers that are small programs of the test's own; real ones are in
tests/e2e/test_workers.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.config import Settings
from gateway.web.app.supervisor import ListeningSockets, Supervisor, private_folder
from gateway.web.workers.sockets import bind_shared

pytestmark = pytest.mark.needs("process")

# Says its number, its pid and its log level, comes to the bus, and does as it is told by ACTS.
PROGRAM = """
import os, pickle, signal, socket, sys, time
number = int(sys.argv[1])
sys.stdin.buffer.read(4)  # the length
job = pickle.load(sys.stdin.buffer)
acts = {acts!r}
if "ends" in acts:
    sys.exit(acts["ends"])
if acts.get("deaf") == number:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(acts.get("status", 0)))
bus = socket.socket(socket.AF_UNIX)
bus.connect(str(job.bus_path))
bus.sendall(b'["hello",%d]\\n' % number)
assert socket.socket(fileno=job.listening_fd).getsockname()[1]
with open({log!r}, "a") as log:
    print(number, os.getpid(), job.settings.telemetry.logs.level, file=log, flush=True)
if acts.get("crashes") == number:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(60)
"""


class RunningSupervisor:
    """ended: the exit status, once it is over."""

    def __init__(self, supervisor: Supervisor, log: Path) -> None:
        self.supervisor = supervisor
        self.run_task = asyncio.create_task(supervisor.run())
        self._log = log

    def list_pids(self, number: int) -> list[int]:
        """The pids that a worker has had."""
        return [int(pid) for _, pid, _ in self._list_starts(number)]

    def list_levels(self, number: int) -> list[str]:
        """The log levels that the processes of a worker were started with."""
        return [level for _, _, level in self._list_starts(number)]

    def _list_starts(self, number: int) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split() for line in lines if line.split()[0] == str(number)]

    async def wait_for_start(self, count: int = 3) -> None:
        await wait_until(
            lambda: all(self.list_pids(n) for n in range(1, count + 1)) or self.run_task.done(),
            "the workers",
            60,
        )

    async def terminate(self, number: int = signal.SIGTERM) -> int:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            return await self.run_task


def build_settings(count: int, level: str = "info") -> Settings:
    return Settings.model_validate(
        {
            "listen": {"port": 0, "workers": count, "drainTimeout": "100ms"},
            "kafka": {"servers": ["localhost:1"]},
            "telemetry": {"logs": {"level": level}},
        }
    )


def interrupt_start(
    monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], Awaitable[object]]
) -> None:
    """Await something while the first process is being started."""
    start_process, interrupts = asyncio.create_subprocess_exec, [interrupt]

    async def start_late(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start_process(*command, **options)
        if interrupts:
            await interrupts.pop()()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)


@asynccontextmanager
async def start_supervisor(
    tmp_path: Path,
    kind: type[Supervisor] = Supervisor,
    count: int = 3,
    load_settings: Callable[[], Settings] | None = None,
    **acts: int,
) -> AsyncIterator[RunningSupervisor]:
    program, log = tmp_path / "worker.py", tmp_path / "log"
    program.write_text(PROGRAM.format(acts=acts, log=str(log)))

    class FakeWorkersSupervisor(kind):  # type: ignore[misc, valid-type]
        WORKER_COMMAND = (sys.executable, str(program))
        # Those that are to end have as long as every condition of a test.
        KILL_GRACE_S = WAIT_TIMEOUT_S if kind is Supervisor else kind.KILL_GRACE_S

    settings = build_settings(count)
    sockets = ListeningSockets(bind_shared("127.0.0.1", 0, count))
    before = set(psutil.Process().children())  # brokers of other tests, perhaps
    with private_folder() as folder:
        supervisor = FakeWorkersSupervisor(
            settings, frozenset(), sockets, folder / "bus", load_settings
        )
        running = RunningSupervisor(supervisor, log)
        try:
            yield running
        finally:
            running.run_task.cancel()
            await asyncio.gather(running.run_task, return_exceptions=True)
            assert set(psutil.Process().children()) <= before, "a worker was left behind"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_end_it_ends_all_with_status_0(tmp_path, number):
    async with start_supervisor(tmp_path) as running:
        await running.wait_for_start()
        assert await running.terminate(number) == 0


async def test_one_that_ended_badly_is_told_by_the_status(tmp_path):
    async with start_supervisor(tmp_path, status=3) as running:
        await running.wait_for_start()
        assert await running.terminate() == 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="waits for processes without threads")
async def test_a_second_signal_takes_no_exit_status_away(tmp_path, monkeypatch):
    """A worker that had ended well was reported with 255 on a busy machine, the gateway with 1."""
    is_waited_for = threading.Event()
    wait_for_process = asyncio.ThreadedChildWatcher._do_waitpid

    def wait_late(watcher: object, loop: object, pid: int, *arguments: object) -> None:
        is_waited_for.wait(60)
        wait_for_process(watcher, loop, pid, *arguments)

    handled = []

    class RecordingSupervisor(Supervisor):
        def _stop_workers(self, signum: int) -> None:
            super()._stop_workers(signum)
            handled.append(signum)

    monkeypatch.setattr(asyncio.ThreadedChildWatcher, "_do_waitpid", wait_late)
    async with start_supervisor(tmp_path, RecordingSupervisor) as running:
        await running.wait_for_start()
        pids = [pid for n in (1, 2, 3) for pid in running.list_pids(n)]
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until(
            lambda: all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids),
            "the end of the workers",
        )
        os.kill(os.getpid(), signal.SIGTERM)
        await wait_until(lambda: len(handled) == 2, "the second signal")
        is_waited_for.set()
        async with asyncio.timeout(60):
            assert await running.run_task == 0


class ImpatientSupervisor(Supervisor):
    KILL_GRACE_S = 0.5
    MAX_RESTART_DELAY_S = 0.4


async def test_one_that_does_not_end_is_killed_and_the_status_says_so(tmp_path):
    async with start_supervisor(tmp_path, ImpatientSupervisor, deaf=2) as running:
        await running.wait_for_start()
        assert await running.terminate() == 1


async def test_what_ends_the_first_at_its_start_ends_all_with_its_status(tmp_path):
    """A wrong configuration is not put right by trying again."""
    async with start_supervisor(tmp_path, ends=78) as running:
        async with asyncio.timeout(60):
            assert await running.run_task == 78
        assert [worker.restarts for worker in running.supervisor.workers] == [0, 0, 0]


async def test_one_that_crashed_is_started_again_at_once_and_the_others_go_on(tmp_path):
    async with start_supervisor(tmp_path) as running:
        await running.wait_for_start()
        for _ in range(2):  # and once more, later
            before = running.list_pids(2)
            os.kill(before[-1], signal.SIGKILL)
            await wait_until(lambda before=before: len(running.list_pids(2)) > len(before), "2", 60)
        assert len(running.list_pids(1)) == len(running.list_pids(3)) == 1
        assert await running.terminate() == 0


async def test_one_that_crashes_again_and_again_is_started_less_and_less_often(tmp_path, caplog):
    """Its socket is closed meanwhile: clients that connect go to the others, not into a queue
    that nobody serves."""
    async with start_supervisor(tmp_path, ImpatientSupervisor, crashes=1) as running:
        await running.wait_for_start()
        worker = running.supervisor.workers[0]
        await wait_until(lambda: worker.listening_socket is None, "its socket is closed", 60, 0)
        await wait_until(lambda: len(running.list_pids(1)) > 4, "it is started again", 60)
        assert len(running.list_pids(2)) == 1
        await running.terminate()
    told = [record.getMessage() for record in caplog.records if "another starts" in record.msg]
    assert "another starts in 0.0 s" in told[0] and "ended with status -9" in told[0]
    assert all("another starts in 0.0 s" not in each for each in told[1:])


async def test_it_is_told_to_end_while_one_waits_to_be_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: 600.0 if high else 0.0)
    async with start_supervisor(tmp_path, crashes=1) as running:
        worker = running.supervisor.workers[0]
        await wait_until(lambda: worker.crashes > 1, "it waits", 60)
        assert await running.terminate() == 0


async def test_a_reload_while_one_is_started_reaches_it(tmp_path, monkeypatch):
    """It had its old settings already, and no pipe yet that new ones could be sent through."""
    reloads = []

    def load_settings() -> Settings:
        reloads.append(1)
        return build_settings(3, "debug")

    async def reload() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await wait_until(lambda: reloads, "the reload")

    interrupt_start(monkeypatch, reload)
    async with start_supervisor(tmp_path, load_settings=load_settings) as running:
        await running.wait_for_start()
        assert "debug" in running.list_levels(1)
        assert await running.terminate() == 0


async def test_it_is_told_to_end_while_one_is_started(tmp_path, monkeypatch):
    async with start_supervisor(tmp_path) as running:

        async def end() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            worker = running.supervisor.workers[0]
            await wait_until(lambda: worker.listening_socket is None, "its socket is closed")

        interrupt_start(monkeypatch, end)
        async with asyncio.timeout(60):
            assert await running.run_task == 0


async def test_a_key_pressed_in_the_terminal_reaches_the_supervisor_alone(tmp_path):
    """^C means: drain. Heard twice, from the terminal too, it would mean: at once."""
    async with start_supervisor(tmp_path) as running:
        await running.wait_for_start()
        groups = {os.getpgid(running.list_pids(n)[-1]) for n in (1, 2, 3)}
        assert os.getpgid(0) not in groups
        assert await running.terminate() == 0


@pytest.mark.parametrize("length", [10, 200])
def test_the_folder_of_the_bus_has_a_path_that_a_socket_can_have(tmp_path, monkeypatch, length):
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with private_folder() as made:
        assert len(str(made / "bus")) < 100
    assert not made.exists() and not list(folder.iterdir())
