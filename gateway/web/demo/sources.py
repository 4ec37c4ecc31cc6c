"""What the demo publishes: this machine's own figures, and orders that nobody placed."""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import psutil

Clock: TypeAlias = Callable[[], float]
KeyValue: TypeAlias = tuple[bytes, bytes]

CUSTOMERS = ("ada", "edsger", "frances", "grace", "hedy", "katherine", "linus", "radia")
STATUSES = ("created", "paid", "shipped")

_ITEMS = {
    "Drip kettle": 59.0,
    "Fountain pen": 34.5,
    "Globe": 89.0,
    "Headphones": 129.0,
    "Notebook": 12.9,
    "Slide rule": 45.0,
}
_OPEN_ORDERS = 12


class HostMetrics:
    """Samples the machine; rates are per second between one sample and the one before.

    clock: seconds since the epoch, what the records say and rates are measured by.
    """

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._host = platform.node() or "localhost"
        self._root = Path.home().anchor
        self._last = clock(), _counters()
        psutil.cpu_percent(percpu=True)  # the first answer of psutil means nothing

    def sample(self) -> list[KeyValue]:
        """One record a group (cpu, memory, disk, network), all with the host's name as key."""
        now, counters = self._clock(), _counters()
        then, before = self._last
        self._last = now, counters
        seconds = max(now - then, 0.001)
        rates = {n: max(0, round((counters[n] - before[n]) / seconds)) for n in counters}
        groups = {
            "cpu": _cpu(),
            "memory": _memory(),
            "disk": {**_disk(self._root), "read": rates["read"], "written": rates["written"]},
            "network": {"received": rates["received"], "sent": rates["sent"]},
        }
        at = round(now * 1000)
        return [
            _record(self._host, {"host": self._host, "metric": name, "at": at, **figures})
            for name, figures in groups.items()
        ]


def _cpu() -> dict[str, Any]:
    cores = psutil.cpu_percent(percpu=True)
    return {
        "percent": round(sum(cores) / max(1, len(cores)), 1),
        "cores": cores,
        "load": round(psutil.getloadavg()[0], 2),
    }


def _memory() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return {"percent": round(100 * used / memory.total, 1), "used": used, "total": memory.total}


def _disk(path: str) -> dict[str, Any]:
    disk = psutil.disk_usage(path)
    return {"percent": disk.percent, "used": disk.used, "total": disk.total}


def _counters() -> dict[str, int]:
    """Bytes since boot. A container may show no disks; then nothing was read."""
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
    return {
        "read": disk.read_bytes if disk else 0,
        "written": disk.write_bytes if disk else 0,
        "received": network.bytes_recv if network else 0,
        "sent": network.bytes_sent if network else 0,
    }


def orders(rng: random.Random, clock: Clock = time.time) -> Iterator[KeyValue]:
    """Order events without end, keyed by customer; every order goes through `STATUSES`."""
    number = 1000
    still_open: list[dict[str, Any]] = []
    while True:
        if len(still_open) < _OPEN_ORDERS and (not still_open or rng.random() < 0.4):
            number += 1
            order = _new_order(rng, number)
            still_open.append(order)
        else:
            order = rng.choice(still_open)
            order["status"] = STATUSES[STATUSES.index(order["status"]) + 1]
            if order["status"] == STATUSES[-1]:
                still_open.remove(order)
        yield _record(order["customer"], {**order, "at": round(clock() * 1000)})


def _new_order(rng: random.Random, number: int) -> dict[str, Any]:
    item, quantity = rng.choice(list(_ITEMS)), rng.choice((1, 1, 1, 2, 3))
    return {
        "order": f"A-{number}",
        "customer": rng.choice(CUSTOMERS),
        "status": STATUSES[0],
        "item": item,
        "quantity": quantity,
        "total": round(quantity * _ITEMS[item], 2),
    }


def _record(key: str, value: dict[str, Any]) -> KeyValue:
    return key.encode(), orjson.dumps(value)
