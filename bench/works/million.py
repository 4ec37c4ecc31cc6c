"""Serve up to a million clients in one process, to see what grows faster than their number.

A process may have no more descriptors than its system allows, so these clients have no sockets:
`bench.crowded_gateway` is the application with outlets that count. At each count it is measured
what a client takes of memory, what a record, a scrape and a list of all streams take, the longest
callback and pause, and how long a drain and everybody's return last. At last, clients with a key
each come back from far behind while records come in, as when another worker was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ..crowded_gateway import Options
from ..kafka import Kafka
from ..machine import pin_command
from ..peers.peer import ROOT, Peer
from .work import Cell, note_failure

OUTPUT_BYTES = 1 << 20  # of one line of results


@dataclass(frozen=True)
class Size:
    """own_keys: also with clients that each have a view of their own, of one key.

    missed_records: so far behind come the `resuming_clients`, while `live_rate` records a second
    are produced; 0 to leave that out.
    """

    counts: Sequence[int] = (10_000, 100_000, 1_000_000)
    own_keys: Sequence[bool] = (False, True)
    records: int = 5
    idle_s: float = 5.0
    resuming_clients: int = 2500
    missed_records: int = 25_000
    live_rate: float = 5000.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for own_keys in size.own_keys:
        options = Options(
            kafka.bootstrap_servers, kafka.create_topic(1), tuple(size.counts),
            own_keys=own_keys, records=size.records, idle_s=size.idle_s,
        )  # fmt: skip
        suffix = ", own keys" if own_keys else ""
        with note_failure(cell, f"clients{suffix}"):
            async with _running_crowd(options) as results:
                async for result in results:
                    _add_rows(cell, f"{result['clients']:,} clients{suffix}", options, result)
    if size.missed_records:
        await _measure_resume(cell, kafka, size)
    return cell


async def _measure_resume(cell: Cell, kafka: Kafka, size: Size) -> None:
    case = (
        f"{size.resuming_clients:,} clients, own keys, {size.missed_records:,} behind, "
        f"{size.live_rate:,g}/s"
    )
    options = Options(
        kafka.bootstrap_servers, kafka.create_topic(1), (size.resuming_clients,), own_keys=True,
        missed_records=size.missed_records, live_rate=size.live_rate,
    )  # fmt: skip
    with note_failure(cell, case):
        async with _running_crowd(options) as results:
            async for result in results:
                phase = result["phases"]["return"]
                cell.add_row(case, "all at the head", "s", phase["wall_s"])
                cell.add_row(case, "CPU", "s", phase["cpu_s"])
                cell.add_row(case, "longest callback, cpu", "ms", 1000 * phase["longest_cpu_s"])
                cell.add_row(case, "lost", "", result["lost"])
                if phase["longest"]:
                    cell.add_note(f"{case}: the longest was {phase['longest']}")


@asynccontextmanager
async def _running_crowd(options: Options) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    process = await asyncio.create_subprocess_exec(
        *pin_command(sys.executable, "-m", "bench.crowded_gateway", json.dumps(asdict(options))),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=asyncio.subprocess.PIPE,
        limit=OUTPUT_BYTES,
    )
    assert process.stdout is not None
    output = process.stdout

    async def read_results() -> AsyncIterator[dict[str, Any]]:
        async for line in output:
            yield json.loads(line)
        if await process.wait() != 0:
            raise ChildProcessError(f"it ended with {process.returncode}")

    try:
        yield read_results()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _add_rows(cell: Cell, case: str, options: Options, result: dict[str, Any]) -> None:
    phases, clients = result["phases"], result["clients"]
    cell.add_row(case, "memory of a client", "KB", result["bytes_per_client"] / 1024)
    cell.add_row(case, "CPU of a connect", "ms", 1000 * result["open_cpu_s"])
    cell.add_row(case, "CPU of a record", "s", phases["records"]["cpu_s"] / options.records)
    cell.add_row(case, "idle, of a core", "%", 100 * phases["idle"]["cpu_s"] / options.idle_s)
    cell.add_row(case, "a scrape", "ms", 1000 * phases["scrape"]["wall_s"])
    cell.add_row(case, "a list of all streams", "ms", 1000 * phases["list"]["wall_s"])
    cell.add_row(case, "drained", "s", phases["drain"]["wall_s"])
    cell.add_row(case, "all back", "s", phases["return"]["wall_s"])
    cell.add_row(case, "CPU of a return", "ms", 1000 * phases["return"]["cpu_s"] / clients)
    worst = max(phases, key=lambda name: phases[name]["longest_cpu_s"])
    cell.add_row(case, "longest callback, cpu", "ms", 1000 * phases[worst]["longest_cpu_s"])
    if phases[worst]["longest"]:
        cell.add_note(f"{case}: the longest was in {worst}, {phases[worst]['longest']}")
    pause = max(phase["longest_pause_s"] for phase in phases.values())
    cell.add_row(case, "longest pause of the collector", "ms", 1000 * pause)
