"""Asks the workers of a gateway what they hold, and compares it with what they held before.

The workers answer by `observer/sitecustomize.py`, which their environment has them import.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from support.waiting import wait_until

OBSERVER = Path(__file__).parent / "observer"
# What a worker keeps of Kafka and of its own does not depend on clients; a record that is cached is
# for later clients, too. Views and tokens of clients that were there are kept in bounded caches.
KEPT_PREFIXES = (
    "gateway.kafka.", "gateway.core.log.", "gateway.telemetry.", "gateway.config.",
    "gateway.hub.reads.view.", "gateway.core.channel.filters.", "gateway.core.token.",
)  # fmt: skip
TIMER_TYPES = ("uvloop.loop.TimerHandle", "asyncio.events.TimerHandle")


@dataclass
class Census:
    """What a process holds.

    Attributes:
        tasks: Tasks, by the names of their coroutines.
        types: Objects, by the names of their types.
        client_sockets: Connections that were accepted.
        other_descriptors: Descriptors that are no connections. Connections to brokers come and go
            with faults.
    """

    tasks: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    client_sockets: int = 0
    other_descriptors: int = 0

    @property
    def task_count(self) -> int:
        """Return the number of tasks."""
        return sum(self.tasks.values())

    @property
    def timer_count(self) -> int:
        """Return the number of timers of the event loop."""
        return sum(self.types.get(name, 0) for name in TIMER_TYPES)


def build_environment(directory: Path) -> Mapping[str, str]:
    """Return the variables that make a gateway answer.

    Args:
        directory: Where its answers go.
    """
    path = os.pathsep.join(filter(None, [str(OBSERVER), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, "SOAK_CENSUS_DIRECTORY": str(directory)}


async def take_census(
    process: psutil.Process, directory: Path, port: int, *, is_collected: bool = False
) -> Census:
    """Ask a worker what it holds.

    Args:
        process: The worker.
        directory: Where its answers go.
        port: Where it takes connections of clients.
        is_collected: Whether it is to collect all garbage before, which takes long.
    """
    answer = directory / f"{process.pid}.json"
    answer.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR1 if is_collected else signal.SIGUSR2)
    await wait_until(answer.exists, f"the census of {process.pid}")
    connections = process.net_connections("tcp")
    accepted = sum(
        each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in connections
    )
    return Census(
        **json.loads(answer.read_text()),
        client_sockets=accepted,
        other_descriptors=process.num_fds() - len(connections),
    )


def list_leftovers(before: Census, after: Census) -> Iterator[str]:
    """Yield what a worker has more of than before its first client, though all have left."""
    yield from _list_growth("task", before.tasks, after.tasks)
    own = {name: n for name, n in after.types.items() if _belongs_to_clients(name)}
    yield from _list_growth("object", before.types, own)
    if after.client_sockets > before.client_sockets:
        yield f"{after.client_sockets - before.client_sockets} connections of clients"
    if after.other_descriptors > before.other_descriptors:
        yield f"{after.other_descriptors - before.other_descriptors} descriptors"


def _belongs_to_clients(name: str) -> bool:
    is_own = name.startswith("gateway.") or name in TIMER_TYPES
    return is_own and not name.startswith(KEPT_PREFIXES)


def _list_growth(kind: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    for name, count in sorted((Counter(after) - Counter(before)).items()):
        yield f"{count} of {kind} {name}"
