"""What a line of the log is about: the client's stream, its route, topic, partition, trace.

    with about(route="/events/{customer}", stream="7"):
        log.info("...")        # its line says so, and those of all tasks that are begun in here

Tasks inherit it, so one that is for all clients, begun by the first who needs it, is begun in a
context of its own (`apart`): its lines would name that client for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_NONE: Mapping[str, Any] = {}
_log_context: ContextVar[Mapping[str, Any]] = ContextVar("gateway_about", default=_NONE)


class log_context:
    """While it is entered, lines have these ids, besides those there are; None leaves one out."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: Any) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token = _log_context.set({**_log_context.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _log_context.reset(self._token)


def bind_log_context(**ids: Any) -> None:
    """From here on, to the end of the task."""
    _log_context.set({**_log_context.get(), **ids})


def get_log_context() -> Mapping[str, Any]:
    """The ids of the present context."""
    return _log_context.get()


def create_detached_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of nobody's."""
    return asyncio.get_running_loop().create_task(coro, context=Context())
