"""Assign cores to processes, and read what a process has used from /proc (Linux).

The server under measurement has the first core alone; clients, producer and broker share the last
one. If there is one core, or no way to pin, everything runs everywhere, and the result says so.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MIN_CPU_S = 1e-6  # s of CPU, so that all can be divided by it


_ALLOWED_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SERVER_CORE, CLIENT_CORE = (  # None: not pinned
    (_ALLOWED_CORES[0], _ALLOWED_CORES[-1]) if len(_ALLOWED_CORES) > 1 else (None, None)
)


def pin_process(*, is_pinned: bool = True) -> None:
    """Put this process, and with it all that it starts, on the clients' core, or on all again, with
    as many descriptors as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if CLIENT_CORE is not None:
        os.sched_setaffinity(0, {CLIENT_CORE} if is_pinned else _ALLOWED_CORES)


def pin_command(*command: str) -> tuple[str, ...]:
    """The command, to be run on the server's core; the process keeps its id."""
    if SERVER_CORE is None:
        return command
    return (sys.executable, str(Path(__file__).with_name("pin.py")), str(SERVER_CORE), *command)


def list_processes(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def get_cpu_seconds(pid: int) -> float:
    """Seconds of user and system time of a process and its children, ended ones included."""
    parent, *children = list_processes(pid)
    ended = parent.cpu_times()
    used = sum(_get_process_cpu(each) for each in (parent, *children))
    return float(ended.children_user + ended.children_system + used)


def _get_process_cpu(process: psutil.Process) -> float:
    """To the nanosecond: /proc tells CPU time in ticks of 10 ms, 2 % of half a second's work."""
    if sys.platform == "linux":
        with suppress(OSError):  # it has just ended
            return time.clock_gettime((~process.pid << 3) | 2)  # clock_getcpuclockid(3)
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def get_pss_bytes(pid: int) -> int:
    """Bytes of memory of a process and its children; shared pages count by their share."""
    total = 0
    for process in list_processes(pid):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


@dataclass
class Cost:
    """What a block of work took; filled in at its end.

    wall:   seconds of anybody's clock.   cpu: CPU seconds of the server.
    client: CPU seconds of this process.  ours: the same with Kafka and all else that is here.
    others: the shares that somebody else took of the server's core, and of the clients'.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    local_cpu_s: float = 0.0
    foreign_shares: tuple[float, float] = (0.0, 0.0)


@contextmanager
def measure_cost(pid: int) -> Iterator[Cost]:
    spent, before = Cost(), _take_sample(pid)
    yield spent
    found = zip(_take_sample(pid), before, strict=True)
    wall, used, client, family, server, clients = (after - then for after, then in found)
    ours = family - used
    spent.wall_s, spent.cpu_s, spent.client_cpu_s, spent.local_cpu_s = (
        wall,
        max(MIN_CPU_S, used),
        client,
        ours,
    )
    if SERVER_CORE is not None:
        spent.foreign_shares = max(0.0, server - used) / wall, max(0.0, clients - ours) / wall


def _take_sample(pid: int) -> tuple[float, ...]:
    used, family = get_cpu_seconds(pid), get_cpu_seconds(os.getpid())
    return (
        time.monotonic(),
        used,
        time.process_time(),
        family,
        _get_core_busy_s(SERVER_CORE),
        _get_core_busy_s(CLIENT_CORE),
    )


def _get_core_busy_s(core: int | None) -> float:
    """Seconds that a core has worked, for anybody."""
    if core is None:
        return 0.0
    times = psutil.cpu_times(percpu=True)[core]
    return float(sum(times[:8]) - times.idle - times.iowait)  # guests count in user already


def describe_cores() -> str:
    """How the cores are shared out."""
    if SERVER_CORE is None:
        return "no: server, clients and broker share the cores"
    return f"server on core {SERVER_CORE}, clients and broker on core {CLIENT_CORE}"
