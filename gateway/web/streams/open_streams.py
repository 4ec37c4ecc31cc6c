"""The streams that run here, whatever their wire: found, renewed, ended, and moved in place.

A stream outlives its clients: what it shows may change while it runs, and another client goes on
for it where the one before stood.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException

from gateway.config import Route
from gateway.core.client.slow_client import SlowClient
from gateway.errors import GatewayError, KafkaError, RequestError, UnknownTopic
from gateway.hub.fanout.alarm import WallAlarm
from gateway.hub.fanout.client import CHANGED, Client, Handover
from gateway.hub.fanout.hubs import TopicOf
from gateway.hub.fanout.view import View
from gateway.web.access import Granted
from gateway.web.websocket.request import Query

if TYPE_CHECKING:
    from gateway.web.admin.orders import Paused, Revoked
    from gateway.web.routing.routes import Match, Routes

AT_ONCE = 100  # streams that are looked at without a turn for others
DENIED = "access-changed"  # why one ends whose client may not have it any more
REMOVED = "route-removed"  # or whose route, or topic, is no longer there

log = logging.getLogger(__name__)


class Next(NamedTuple):
    """What a stream is to show from its next client on.

    anew: by another client, also where the one that it has by then shows the same.
    """

    match: Match
    query: Query
    view: View
    anew: bool = False


class Opened:
    """One stream, from its first client to its end.

    query:   as in a URL.
    address: of its client; empty if it is not known.
    name:    by which its client finds it again, and nobody else; empty while nobody needs it.
    since:   seconds since 1970.
    number:  among all of this process, in the order of their coming.
    """

    __slots__ = (
        "_alarm", "_begun", "_client", "_ending", "_next", "address", "is_over", "match", "name",
        "number", "query", "routes", "since",
    )  # fmt: skip

    # `_begun`: before that, a change waits: where its client starts is yet to be found out.
    # `_alarm`: when it asks for a new token.
    # `_ending`: the reason that it was told to end for, whichever client it has by then.

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
        self._alarm: WallAlarm | None = None
        self._ending = ""
        self.number = routes.openings.add(self)

    @property
    def client(self) -> Client | None:
        """None before it has one, and for the moment in which another takes over."""
        return self._client

    @property
    def matches(self) -> list[Match]:
        """What it shows, and what it was told to show next."""
        return [self.match] if self._next is None else [self.match, self._next.match]

    @property
    def transport(self) -> asyncio.Transport | None:
        """Of its connection, where it is ours; a socket has several streams on it."""
        return None

    def end(self, reason: str) -> None:
        """With an `end` event."""
        self._ending = self._ending or reason
        if self._client is not None:
            self._client.end(reason)

    async def renew(self, granted: Granted) -> None:
        """Go on as who is known now: until that is over, and with what is shown to it then. Raises
        RequestError for what cannot be; all is as it was then."""
        self.go_to(await self.renewed(granted))

    async def renewed(self, granted: Granted) -> Next:
        """What that would be, with nothing done yet. Raises as `renew`."""
        match, query = self._shown
        if not granted.has(match.route.guarded):  # which may ask for more since they were asked
            raise RequestError(403, "Forbidden", "the stream's route asks for other roles by now")
        match = match._replace(granted=granted)
        return Next(match, query, await self.routes.view(match, query))

    async def review(self, guards: Set[str], topics: Set[TopicOf]) -> str:
        """After what was configured anew: go on as before, as another view, or not at all; which
        of them it is, in a word. guards, topics: those that were changed."""
        before, query = self._shown
        try:
            match = self.routes.match(before.path)
            granted = kept(before, match.route, guards)
            if granted is None:
                return self._ended(DENIED)
            match = match._replace(granted=granted)
            view = await self.routes.view(match, query)
        except (GatewayError, HTTPException) as exc:
            return self._ended(reason_of(exc))
        rate = before.route.with_.max_rate != match.route.with_.max_rate
        anew = rate or any((view.cluster, topic) in topics for topic in view.topics)
        self.go_to(Next(match, query, view, anew))
        return "untouched" if self._next is None else "moved"

    def _ended(self, reason: str) -> str:
        self.end(reason)
        return f"ended ({reason})"

    # from one client to the next

    @property
    def _shown(self) -> tuple[Match, Query]:
        """Or, where that is other, what it was told to show next."""
        if self._next is None:
            return self.match, self.query
        return self._next.match, self._next.query

    def go_to(self, next: Next) -> None:
        """Show this, at once or as soon as it has begun."""
        if self._next is not None and self._next.anew:
            next = next._replace(anew=True)
        self._next = next
        if self._client is not None and self._begun:
            self._turn(self._client)

    def _begin(self, client: Client) -> None:
        """It is attached now."""
        self._begun = True
        self._mind_orders()
        if self._ending:
            client.end(self._ending)
        elif self._next is not None:
            self._turn(client)
        self._mind_expiry()

    def _turn(self, client: Client) -> None:
        """To what is next: another client's work, unless this one shows it already."""
        assert self._next is not None
        match, query, view, anew = self._next
        if anew or client.view != view or client.subscription.ended is not None:
            client.end(CHANGED)
            return
        self.match, self.query, self._next = match, query, None
        self._mind_orders()
        client.adapt(match.route.with_.heartbeat, SlowClient(match.route.with_.slow_client))
        client.expire_at(match.granted.expires)
        self._mind_expiry()

    def _mind_orders(self) -> None:
        refused = self.routes.openings.refusal(self.match)
        if refused is not None:
            self.end(refused.reason)

    def _handed(self) -> Handover:
        """From a client that ended as `CHANGED`, for the next one of what it is to show."""
        client, self._client, self._begun = self._client, None, False
        assert client is not None and self._next is not None
        self.match, self.query, _, _ = self._next
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
            ask = partial(self._challenge, ending.guard, ending.expires)
            self._alarm = WallAlarm(ending.expires - lead, ask)

    def _challenge(self, guard: str, expires: float) -> None:
        """Ask the client for a new token."""
        raise NotImplementedError

    def _forget_expiry(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def kept(before: Match, route: Route, changed: Set[str]) -> Granted | None:
    """What was granted, as far as a route that was configured anew asks for it; None if it does
    not let the client in, or a guard has to be asked for that. changed: guards that were."""
    granted = before.granted
    if not changed.isdisjoint(route.guarded) or not granted.has(route.guarded):
        return None
    own = granted.keys() - before.route.guarded.keys()  # of the application itself
    return granted.only(own | route.guarded.keys())


def reason_of(exc: GatewayError | HTTPException) -> str:
    """Why a stream ends that cannot go on."""
    if isinstance(exc, UnknownTopic | HTTPException):
        return REMOVED
    return "kafka-unavailable" if isinstance(exc, KafkaError) else DENIED


async def _ended(streams: Iterable[Opened], reason: str) -> None:
    for n, stream in enumerate(streams):
        stream.end(reason)
        if n % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)


class Openings:
    """All streams that run here, and what they wait for.

    refusal: what an operator has against a stream, whoever lets it in.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(4)  # of this process among those before it
        self._all: dict[int, Opened] = {}
        self._last = 0
        self.refusal: Callable[[Match], Paused | Revoked | None] = lambda match: None
        self._named: dict[str, Opened] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Opened]:
        """As they are now."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, stream: Opened) -> int:
        """The number that it has from now on."""
        self._last += 1
        self._all[self._last] = stream
        return self._last

    def after(self, number: int) -> Iterator[Opened]:
        """Those that came behind this one, in their order, as they are now."""
        numbers = list(self._all)
        for n in numbers[bisect_right(numbers, number) :]:
            yield self._all[n]

    def get(self, number: int) -> Opened | None:
        return self._all.get(number)

    def discard(self, stream: Opened) -> None:
        self._all.pop(stream.number, None)
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

    async def review(self, guards: Set[str], topics: Set[TopicOf]) -> dict[str, int]:
        """As `Opened.review`, of all; how many became what."""
        outcomes: Counter[str] = Counter()
        for n, stream in enumerate(self):
            if not stream.is_over:
                outcomes[await stream.review(guards, topics)] += 1
            if n % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        return dict(outcomes)

    def end(self, fits: Callable[[Opened], bool], reason: str) -> int:
        """Those that it fits, some at a time; how many they are."""
        ending = [stream for stream in self._all.values() if not stream.is_over and fits(stream)]
        if ending:
            self.do(_ended(ending, reason))
        return len(ending)

    async def renew(self, stream: Opened, granted: Granted) -> None:
        """As `Opened.renew`, of one whose client does not wait for the word: it ends if it cannot
        be."""
        try:
            await stream.renew(granted)
        except (GatewayError, HTTPException):
            stream.end(DENIED)
