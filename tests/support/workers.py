"""The workers of a running gateway, seen from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psutil
from support.gateways import GatewayProcess, running_gateway_process
from support.waiting import wait_until

WORKER_TIMEOUT_S = 60.0


@asynccontextmanager
async def running_workers(
    config: Mapping[str, Any], worker_count: int = 3, **options: Any
) -> AsyncIterator[GatewayProcess]:
    """As `running_gateway_process`; all workers take connections, and are gone at the end."""
    started: set[psutil.Process] = set()
    try:
        async with running_gateway_process(
            config, arguments=["--workers", str(worker_count)], **options
        ) as gateway:
            await wait_for_workers(gateway, worker_count)
            try:
                yield gateway
            finally:
                if gateway.is_alive:
                    started |= set(find_workers(gateway).values())
    finally:
        try:
            await wait_until(
                lambda: all(map(has_ended, started)), "the workers' end", WORKER_TIMEOUT_S
            )
        finally:
            for process in started:
                if not has_ended(process):
                    process.kill()


def has_ended(process: psutil.Process) -> bool:
    """Also if nobody has asked for its status yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def find_workers(gateway: GatewayProcess) -> dict[int, psutil.Process]:
    """By their numbers."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process(gateway.pid).children():
        try:
            name, command = process.name(), process.cmdline()
        except psutil.Error:  # it ended just now
            continue
        if name.startswith("worker-"):  # a fork
            found[int(name.removeprefix("worker-"))] = process
        elif "gateway.web.app.worker" in command:
            found[int(command[-1])] = process
    return found


async def wait_for_workers(
    gateway: GatewayProcess, worker_count: int = 3, start_count: int | None = None
) -> None:
    """Until so many workers have started in all. starts: including those that crashed."""
    complete = "Application startup complete"
    await wait_until(
        lambda: (
            gateway.log.count(complete) >= (start_count or worker_count)
            and len(find_workers(gateway)) == worker_count
        ),
        lambda: f"the workers: {gateway.read_log_tail()}",
        WORKER_TIMEOUT_S,
    )


def count_connections(gateway: GatewayProcess) -> dict[int, int]:
    """How many connections each worker has."""
    found = {}
    for number, process in find_workers(gateway).items():
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        found[number] = sum(
            each.laddr.port == gateway.port and each.status == psutil.CONN_ESTABLISHED
            for each in connections
        )
    return found
