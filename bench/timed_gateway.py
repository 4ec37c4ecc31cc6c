"""Run the gateway and time each callback: `python -m bench.timed_gateway REPORT run -c FILE`.

Every callback of the loop (steps of tasks among them), every method of a protocol and, within them,
every garbage collection is timed, by the wall clock and by the CPU time of its thread. Those over a
millisecond are written to REPORT, as JSON, at the end. This costs about 1 us a callback, so nothing
else is measured in such a process.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import uvloop

MIN_REPORTED_S = 0.001  # s
PROTOCOL_METHODS = (
    "connection_made", "connection_lost", "data_received", "eof_received",
    "pause_writing", "resume_writing", "buffer_updated",
)  # fmt: skip

CALLBACK_POSITIONS = {
    "call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1,
    "add_reader": 1, "add_writer": 1,
}  # fmt: skip

long_callbacks: list[dict[str, Any]] = []
timed_classes: set[type] = set()


def call_timed(callback: Callable[..., Any], *args: Any) -> Any:
    began, cpu = time.monotonic(), time.thread_time()
    try:
        return callback(*args)
    finally:
        wall = time.monotonic() - began
        if wall > MIN_REPORTED_S:
            used = time.thread_time() - cpu
            long_callbacks.append(
                {"at": began, "wall": wall, "cpu": used, "what": describe_callback(callback)}
            )


class GarbageTimer:
    """Times the collections of garbage."""

    def __init__(self) -> None:
        self._began_at = self._cpu_at = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_at, self._cpu_at = time.monotonic(), time.thread_time()
            return
        wall, cpu = time.monotonic() - self._began_at, time.thread_time() - self._cpu_at
        if wall > MIN_REPORTED_S:
            name = f"garbage of generation {info['generation']}"
            long_callbacks.append({"at": self._began_at, "wall": wall, "cpu": cpu, "what": name})


def describe_callback(callback: Callable[..., Any]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return repr(owner.get_coro())
    return getattr(callback, "__qualname__", repr(callback))


class TimedLoop(uvloop.Loop):
    """A loop that times each callback. uvicorn asks it for connections in these ways."""

    async def create_server(self, factory: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        timed = partial(create_timed_protocol, factory)
        return await super().create_server(timed, *args, **options)

    async def create_connection(self, factory: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        timed = partial(create_timed_protocol, factory)
        return await super().create_connection(timed, *args, **options)


def _take_timed(name: str, position: int) -> Callable[..., Any]:
    """The method of the loop that takes a callback in this position."""
    method = getattr(uvloop.Loop, name)

    def take(loop: TimedLoop, *args: Any, **options: Any) -> Any:
        return method(loop, *args[:position], call_timed, *args[position:], **options)

    return take


for name, position in CALLBACK_POSITIONS.items():
    setattr(TimedLoop, name, _take_timed(name, position))


def create_timed_protocol(factory: Callable[[], Any]) -> Any:
    """A protocol whose class has timed methods from here on."""
    protocol = factory()
    kind = type(protocol)
    if kind not in timed_classes:
        timed_classes.add(kind)
        _time_methods(kind, {name: getattr(kind, name, None) for name in PROTOCOL_METHODS})
    return protocol


class TimedProtocol(asyncio.Protocol):
    """In place of asyncio's: one that takes a transport over from another is timed, too."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _time_methods(cls, {name: vars(cls).get(name) for name in PROTOCOL_METHODS})


def _time_methods(protocol_class: type, methods: Mapping[str, Any]) -> None:
    for name, method in methods.items():
        if method is not None and not hasattr(method, "is_timed"):
            setattr(protocol_class, name, _wrap_method(method))


def _wrap_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)  # the gateway looks at the parameters of uvicorn's methods when it starts
    def wrapper(*args: Any) -> Any:
        return call_timed(method, *args)

    wrapper.is_timed = True  # type: ignore[attr-defined]
    return wrapper


def main() -> None:
    report = Path(sys.argv.pop(1))
    atexit.register(
        lambda: report.write_text(json.dumps({"least": MIN_REPORTED_S, "long": long_callbacks}))
    )
    gc.callbacks.append(GarbageTimer())
    uvloop.new_event_loop = TimedLoop  # what uvicorn calls
    asyncio.Protocol = TimedProtocol  # type: ignore[misc]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
