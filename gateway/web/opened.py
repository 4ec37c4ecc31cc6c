"""The streams that run here, whatever their wire: found, renewed, ended, and moved in place.

A stream outlives its clients: what it shows may change while it runs, and another client goes on
for it where the one before stood.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException

from ..errors import GatewayError
from ..hub.client import CHANGED, Client, Handover
from .access import Granted
from .request import Query

if TYPE_CHECKING:
    from .routes import Match, Routes

DENIED = "access-changed"  # why one ends whose client may not have it any more
REMOVED = "route-removed"  # or whose route, or topic, is no longer there

log = logging.getLogger(__name__)


class Next(NamedTuple):
    """What a stream is to show from its next client on."""

    match: Match
    query: Query


class Opened:
    """One stream, from its first client to its end.

    query:   as in a URL.
    address: of its client; empty if it is not known.
    name:    by which its client finds it again, and nobody else; empty while nobody needs it.
    since:   seconds since 1970.
    """

    __slots__ = (
        "_alarm", "_begun", "_client", "_next", "address", "is_over", "match", "name", "query",
        "routes", "since",
    )  # fmt: skip

    # `_begun`: before that, a change waits: where its client starts is yet to be found out.
    # `_alarm`: when it asks for a new token.

    def __init__(self, routes: Routes, match: Match, query: Query, address: str = "") -> None:
        self.routes = routes
        self.match = match
        self.query = query
        self.address = address
        self.since = time.time()
        self.name = ""
        self.is_over = False
        self._client: Client | None = None
        self._begun = False
        self._next: Next | None = None
        self._alarm: asyncio.TimerHandle | None = None
        routes.openings.add(self)

    @property
    def client(self) -> Client | None:
        """None before it has one, and for the moment in which another takes over."""
        return self._client

    @property
    def matches(self) -> list[Match]:
        """What it shows, and what it was told to show next."""
        return [self.match] if self._next is None else [self.match, self._next.match]

    def end(self, reason: str) -> None:
        """With an `end` event."""
        if self._client is not None:
            self._client.end(reason)

    async def renew(self, granted: Granted) -> None:
        """Go on as who is known now: until that is over, and with what is shown to it then. Raises
        RequestError for what cannot be; all is as it was then."""
        at = self._next or Next(self.match, self.query)
        match = at.match._replace(granted=granted)
        view = await self.routes.view(match, at.query)
        if self._next is None and view == await self.routes.view(at.match, at.query):
            self.match = match
            if self._client is not None:
                self._client.expire_at(granted.expires)
            self._mind_expiry()
        else:
            self._go_to(Next(match, at.query))

    # from one client to the next

    def _go_to(self, next: Next) -> None:
        self._next = next
        if self._client is not None and self._begun:
            self._client.end(CHANGED)

    def _begin(self, client: Client) -> None:
        """It is attached now."""
        self._begun = True
        if self._next is not None:
            client.end(CHANGED)
        self._mind_expiry()

    def _handed(self) -> Handover:
        """From a client that ended as `CHANGED`, for the next one of what it is to show."""
        client, self._client, self._begun = self._client, None, False
        assert client is not None and self._next is not None
        self.match, self.query = self._next
        self._next = None
        return client.handover()

    def over(self) -> None:
        """Nothing of it is left. It may be called again."""
        self.is_over = True
        self._forget_expiry()
        self.routes.openings.discard(self)

    # expiry

    def _mind_expiry(self) -> None:
        self._forget_expiry()
        ending = self.match.granted.expiring
        lead = None if ending is None else self.routes.challenge(ending.guard)
        if ending is not None and lead is not None and ending.expires is not None:
            due = max(0.0, ending.expires - lead - time.time())
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(due, self._challenge, ending.guard, ending.expires)

    def _challenge(self, guard: str, expires: float) -> None:
        """Ask the client for a new token."""
        raise NotImplementedError

    def _forget_expiry(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class Openings:
    """All streams that run here, and what they wait for."""

    def __init__(self) -> None:
        self._all: set[Opened] = set()
        self._named: dict[str, Opened] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Opened]:
        """As they are now."""
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, stream: Opened) -> None:
        self._all.add(stream)

    def discard(self, stream: Opened) -> None:
        self._all.discard(stream)
        self._named.pop(stream.name, None)

    def name(self, stream: Opened) -> str:
        """By which its client finds it again, and nobody else."""
        if not stream.name:
            stream.name = secrets.token_urlsafe(16)
            self._named[stream.name] = stream
        return stream.name

    def find(self, name: str) -> Opened | None:
        return self._named.get(name)

    async def run(self) -> None:
        """Until it is cancelled, and with it what is still waited for."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Without anybody who waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._did)

    def _did(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a stream failed to go on", exc_info=error)

    async def renew(self, stream: Opened, granted: Granted) -> None:
        """As `Opened.renew`, of one whose client does not wait for the word: it ends if it cannot
        be."""
        try:
            await stream.renew(granted)
        except (GatewayError, HTTPException):
            stream.end(DENIED)
