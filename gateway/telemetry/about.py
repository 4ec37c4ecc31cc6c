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
_about: ContextVar[Mapping[str, Any]] = ContextVar("gateway_about", default=_NONE)


class about:
    """While it is entered, lines have these ids, besides those there are; None leaves one out."""

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: Any) -> None:
        self._ids = ids

    def __enter__(self) -> None:
        self._token = _about.set({**_about.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _about.reset(self._token)


def note(**ids: Any) -> None:
    """From here on, to the end of the task."""
    _about.set({**_about.get(), **ids})


def noted() -> Mapping[str, Any]:
    """The ids of the present context."""
    return _about.get()


def apart(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of nobody's."""
    return asyncio.get_running_loop().create_task(work, context=Context())
