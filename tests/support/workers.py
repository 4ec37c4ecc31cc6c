"""The workers of a running gateway, seen from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psutil
from support.gateways import Gateway, running_gateway
from support.until import until

WITHIN = 60.0


@asynccontextmanager
async def running_workers(
    config: Mapping[str, Any], count: int = 3, **options: Any
) -> AsyncIterator[Gateway]:
    """As `running_gateway`; all workers take connections, and are gone at the end."""
    started: set[psutil.Process] = set()
    try:
        async with running_gateway(
            config, arguments=["--workers", str(count)], **options
        ) as gateway:
            await serving(gateway, count)
            try:
                yield gateway
            finally:
                if gateway.alive:
                    started |= set(workers(gateway).values())
    finally:
        try:
            await until(lambda: all(map(ended, started)), "the workers' end", WITHIN)
        finally:
            for process in started:
                if not ended(process):
                    process.kill()


def ended(process: psutil.Process) -> bool:
    """Also if nobody has asked for its status yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(gateway: Gateway) -> dict[int, psutil.Process]:
    """By their numbers."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process(gateway.pid).children():
        try:
            command = process.cmdline()
        except psutil.Error:  # it ended just now
            continue
        if "gateway.web.workers.worker" in command:
            found[int(command[-1])] = process
    return found


async def serving(gateway: Gateway, count: int = 3, starts: int | None = None) -> None:
    """Until so many workers have started in all. starts: including those that crashed."""
    complete = "Application startup complete"
    await until(
        lambda: gateway.log.count(complete) >= (starts or count) and len(workers(gateway)) == count,
        lambda: f"the workers: {gateway.tail()}",
        WITHIN,
    )


def clients(gateway: Gateway) -> dict[int, int]:
    """How many connections each worker has."""
    found = {}
    for number, process in workers(gateway).items():
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        found[number] = sum(
            each.laddr.port == gateway.port and each.status == psutil.CONN_ESTABLISHED
            for each in connections
        )
    return found
