"""Add context to log lines: the client's stream, its route, topic, partition, trace.

    with log_context(route="/events/{customer}", stream="7"):
        log.info("...")        # this line has both, as have those of tasks that are created here

Tasks inherit the context. A task that serves all clients, but is created for the first client that
needs it, must not: its lines would name that client for ever. `create_detached_task` creates it.
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
    """A context manager that adds ids to the log lines of its block; None removes an id."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: Any) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token = _log_context.set({**_log_context.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _log_context.reset(self._token)


def bind_log_context(**ids: Any) -> None:
    _log_context.set({**_log_context.get(), **ids})


def get_log_context() -> Mapping[str, Any]:
    return _log_context.get()


def create_detached_task(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Create a task whose log lines have no ids of the current context."""
    return asyncio.get_running_loop().create_task(coro, context=Context())
