"""Serve up to a million clients in one process, to see what grows faster than their number.

A process may have no more descriptors than its system allows, so these clients have no sockets:
`bench.crowded_gateway` is the application with outlets that count. At each count it is measured
what a client takes of memory, what a record, a scrape and a list of all streams take, the longest
callback and pause, and how long a drain and everybody's return last.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..crowded_gateway import Options
from ..goals import CALLBACK
from ..kafka import Kafka
from ..machine import pin_command
from ..peers.peer import ENVIRONMENT, ROOT, Peer
from ..results import Cell
from .work import note_failure

OUTPUT_BYTES = 1 << 20  # of one line of results
# What, in which unit, of which phase, and by what it is multiplied.
PHASE_ROWS = (
    ("a scrape", "ms", "scrape", 1000.0), ("a list of all streams", "ms", "list", 1000.0),
    ("drained", "s", "drain", 1.0), ("all back", "s", "return", 1.0),
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """own_keys: also with clients that each have a view of their own, of one key."""

    counts: Sequence[int] = (10_000, 100_000, 1_000_000)
    own_keys: Sequence[bool] = (False, True)
    records: int = 5
    idle_s: float = 5.0


async def run(kafka: Kafka, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    for own_keys in size.own_keys:
        options = Options(
            kafka.bootstrap_servers, kafka.create_unique_topic(), tuple(size.counts),
            own_keys=own_keys, records=size.records, idle_s=size.idle_s,
        )  # fmt: skip
        suffix = ", own keys" if own_keys else ""
        with note_failure(cell, f"clients{suffix}"):
            async for result in _run_crowd(options):
                _add_rows(cell, f"{result['clients']:,} clients{suffix}", options, result)
    return cell


async def _run_crowd(options: Options) -> AsyncIterator[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *pin_command(sys.executable, "-m", "bench.crowded_gateway", json.dumps(asdict(options))),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        limit=OUTPUT_BYTES,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield json.loads(line)
        if await process.wait() != 0:
            raise ChildProcessError(f"it ended with {process.returncode}")
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
    for what, unit, phase, factor in PHASE_ROWS:
        cell.add_row(case, what, unit, factor * phases[phase]["wall_s"])
    cell.add_row(case, "CPU of a return", "ms", 1000 * phases["return"]["cpu_s"] / clients)
    worst = max(phases, key=lambda name: phases[name]["longest_cpu_s"])
    cell.add_row(case, CALLBACK, "ms", 1000 * phases[worst]["longest_cpu_s"])
    if phases[worst]["longest"]:
        cell.add_note(f"{case}: the longest was in {worst}, {phases[worst]['longest']}")
    pause = max(phase["longest_pause_s"] for phase in phases.values())
    cell.add_row(case, "longest pause of the collector", "ms", 1000 * pause)
