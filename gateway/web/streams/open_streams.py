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
from gateway.core.client.slow_client import SlowClientPolicy
from gateway.errors import GatewayError, KafkaError, RequestError, UnknownTopic
from gateway.hub.fanout.client import END_CHANGED, Client, Handover
from gateway.hub.fanout.hubs import ClusterTopic
from gateway.hub.fanout.view import View
from gateway.hub.fanout.wall_clock_timer import WallClockTimer
from gateway.web.access import Granted
from gateway.web.websocket.request import QueryPairs

if TYPE_CHECKING:
    from gateway.web.admin.blocklist import AccessRevoked, RoutePaused
    from gateway.web.routing.routes import Match, Routes

STREAMS_PER_SLICE = 100  # streams that are looked at without a turn for others
END_ACCESS_CHANGED = "access-changed"  # why one ends whose client may not have it any more
END_ROUTE_REMOVED = "route-removed"  # or whose route, or topic, is no longer there

log = logging.getLogger(__name__)


class StreamChange(NamedTuple):
    """What a stream is to show from its next client on.

    anew: by another client, also where the one that it has by then shows the same.
    """

    match: Match
    query: QueryPairs
    view: View
    needs_new_client: bool = False


class OpenStream:
    """One stream, from its first client to its end.

    query:   as in a URL.
    address: of its client; empty if it is not known.
    name:    by which its client finds it again, and nobody else; empty while nobody needs it.
    since:   seconds since 1970.
    number:  among all of this process, in the order of their coming.
    """

    __slots__ = (
        "_challenge_timer",
        "_client",
        "_end_reason",
        "_has_begun",
        "_pending_change",
        "address",
        "is_closed",
        "match",
        "number",
        "opened_at",
        "query",
        "renewal_name",
        "routes",
    )  # fmt: skip

    # `_begun`: before that, a change waits: where its client starts is yet to be found out.
    # `_alarm`: when it asks for a new token.
    # `_ending`: the reason that it was told to end for, whichever client it has by then.

    def __init__(self, routes: Routes, match: Match, query: QueryPairs, address: str = "") -> None:
        self.routes = routes
        self.match = match
        self.query = query
        self.address = address
        self.opened_at = time.time()
        self.renewal_name = ""
        self.is_closed = False
        self._client: Client | None = None
        self._has_begun = False
        self._pending_change: StreamChange | None = None
        self._challenge_timer: WallClockTimer | None = None
        self._end_reason = ""
        self.number = routes.stream_registry.add(self)

    @property
    def client(self) -> Client | None:
        """None before it has one, and for the moment in which another takes over."""
        return self._client

    @property
    def matches(self) -> list[Match]:
        """What it shows, and what it was told to show next."""
        return (
            [self.match]
            if self._pending_change is None
            else [self.match, self._pending_change.match]
        )

    @property
    def transport(self) -> asyncio.Transport | None:
        """Of its connection, where it is ours; a socket has several streams on it."""
        return None

    def end(self, reason: str) -> None:
        """With an `end` event."""
        self._end_reason = self._end_reason or reason
        if self._client is not None:
            self._client.end(reason)

    async def renew(self, granted: Granted) -> None:
        """Go on as who is known now: until that is over, and with what is shown to it then. Raises
        RequestError for what cannot be; all is as it was then."""
        self.apply_change(await self.build_renewal(granted))

    async def build_renewal(self, granted: Granted) -> StreamChange:
        """What that would be, with nothing done yet. Raises as `renew`."""
        match, query = self._latest_match_and_query
        if not granted.has(match.route.guarded):  # which may ask for more since they were asked
            raise RequestError(403, "Forbidden", "the stream's route asks for other roles by now")
        match = match._replace(granted=granted)
        return StreamChange(match, query, await self.routes.get_view(match, query))

    async def apply_reload(
        self, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> str:
        """After what was configured anew: go on as before, as another view, or not at all; which
        of them it is, in a word. guards, topics: those that were changed."""
        before, query = self._latest_match_and_query
        try:
            match = self.routes.match(before.path)
            granted = keep_grants(before, match.route, changed_guards)
            if granted is None:
                return self._end_after_reload(END_ACCESS_CHANGED)
            match = match._replace(granted=granted)
            view = await self.routes.get_view(match, query)
        except (GatewayError, HTTPException) as exc:
            return self._end_after_reload(get_end_reason(exc))
        rate = before.route.with_.max_rate != match.route.with_.max_rate
        anew = rate or any((view.cluster, topic) in changed_topics for topic in view.topics)
        self.apply_change(StreamChange(match, query, view, anew))
        return "untouched" if self._pending_change is None else "moved"

    def _end_after_reload(self, reason: str) -> str:
        self.end(reason)
        return f"ended ({reason})"

    # from one client to the next

    @property
    def _latest_match_and_query(self) -> tuple[Match, QueryPairs]:
        """Or, where that is other, what it was told to show next."""
        if self._pending_change is None:
            return self.match, self.query
        return self._pending_change.match, self._pending_change.query

    def apply_change(self, change: StreamChange) -> None:
        """Show this, at once or as soon as it has begun."""
        if self._pending_change is not None and self._pending_change.needs_new_client:
            change = change._replace(needs_new_client=True)
        self._pending_change = change
        if self._client is not None and self._has_begun:
            self._apply_pending_change(self._client)

    def _on_attached(self, client: Client) -> None:
        """It is attached now."""
        self._has_begun = True
        self._end_if_blocked()
        if self._end_reason:
            client.end(self._end_reason)
        elif self._pending_change is not None:
            self._apply_pending_change(client)
        self._schedule_challenge()

    def _apply_pending_change(self, client: Client) -> None:
        """To what is next: another client's work, unless this one shows it already."""
        assert self._pending_change is not None
        match, query, view, anew = self._pending_change
        if anew or client.view != view or client.subscription.end_reason is not None:
            client.end(END_CHANGED)
            return
        self.match, self.query, self._pending_change = match, query, None
        self._end_if_blocked()
        client.apply_route_settings(
            match.route.with_.heartbeat, SlowClientPolicy(match.route.with_.slow_client)
        )
        client.set_expiry(match.granted.expires)
        self._schedule_challenge()

    def _end_if_blocked(self) -> None:
        refused = self.routes.stream_registry.find_error(self.match)
        if refused is not None:
            self.end(refused.reason)

    def _take_handover(self) -> Handover:
        """From a client that ended as `CHANGED`, for the next one of what it is to show."""
        client, self._client, self._has_begun = self._client, None, False
        assert client is not None and self._pending_change is not None
        self.match, self.query, _, _ = self._pending_change
        self._pending_change = None
        return client.take_handover()

    def mark_closed(self) -> None:
        """Nothing of it is left. It may be called again."""
        self.is_closed = True
        self._cancel_challenge()
        self.routes.stream_registry.discard(self)

    # expiry

    def _schedule_challenge(self) -> None:
        self._cancel_challenge()
        ending = self.match.granted.expiring
        lead = None if ending is None else self.routes.get_challenge_lead(ending.guard)
        if ending is not None and lead is not None and ending.expires is not None:
            ask = partial(self._send_challenge, ending.guard, ending.expires)
            self._challenge_timer = WallClockTimer(ending.expires - lead, ask)

    def _send_challenge(self, guard: str, expires_at: float) -> None:
        """Ask the client for a new token."""
        raise NotImplementedError

    def _cancel_challenge(self) -> None:
        if self._challenge_timer is not None:
            self._challenge_timer.cancel()
            self._challenge_timer = None


def keep_grants(previous_match: Match, route: Route, changed_guards: Set[str]) -> Granted | None:
    """What was granted, as far as a route that was configured anew asks for it; None if it does
    not let the client in, or a guard has to be asked for that. changed: guards that were."""
    granted = previous_match.granted
    if not changed_guards.isdisjoint(route.guarded) or not granted.has(route.guarded):
        return None
    own = granted.keys() - previous_match.route.guarded.keys()  # of the application itself
    return granted.only(own | route.guarded.keys())


def get_end_reason(exc: GatewayError | HTTPException) -> str:
    """Why a stream ends that cannot go on."""
    if isinstance(exc, UnknownTopic | HTTPException):
        return END_ROUTE_REMOVED
    return "kafka-unavailable" if isinstance(exc, KafkaError) else END_ACCESS_CHANGED


async def _end_streams(streams: Iterable[OpenStream], reason: str) -> None:
    for n, stream in enumerate(streams):
        stream.end(reason)
        if n % STREAMS_PER_SLICE == STREAMS_PER_SLICE - 1:
            await asyncio.sleep(0)


class StreamRegistry:
    """All streams that run here, and what they wait for.

    refusal: what an operator has against a stream, whoever lets it in.
    """

    def __init__(self) -> None:
        self.instance_id = secrets.token_hex(4)  # of this process among those before it
        self._by_number: dict[int, OpenStream] = {}
        self._last_number = 0
        self.find_error: Callable[[Match], RoutePaused | AccessRevoked | None] = lambda match: None
        self._by_renewal_name: dict[str, OpenStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[OpenStream]:
        """As they are now."""
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, stream: OpenStream) -> int:
        """The number that it has from now on."""
        self._last_number += 1
        self._by_number[self._last_number] = stream
        return self._last_number

    def iter_after(self, number: int) -> Iterator[OpenStream]:
        """Those that came behind this one, in their order, as they are now."""
        numbers = list(self._by_number)
        for n in numbers[bisect_right(numbers, number) :]:
            yield self._by_number[n]

    def get(self, number: int) -> OpenStream | None:
        return self._by_number.get(number)

    def discard(self, stream: OpenStream) -> None:
        self._by_number.pop(stream.number, None)
        self._by_renewal_name.pop(stream.renewal_name, None)

    def ensure_renewal_name(self, stream: OpenStream) -> str:
        """By which its client finds it again, and nobody else."""
        if not stream.renewal_name:
            stream.renewal_name = secrets.token_urlsafe(16)
            self._by_renewal_name[stream.renewal_name] = stream
        return stream.renewal_name

    def find_by_renewal_name(self, name: str) -> OpenStream | None:
        return self._by_renewal_name.get(name)

    async def run(self) -> None:
        """Until it is cancelled, and with it what is still waited for."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def start_task(self, coro: Coroutine[Any, Any, None]) -> None:
        """Without anybody who waits for it."""
        task = asyncio.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a stream failed to go on", exc_info=error)

    async def apply_reload(
        self, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> dict[str, int]:
        """As `Opened.review`, of all; how many became what."""
        outcomes: Counter[str] = Counter()
        for n, stream in enumerate(self):
            if not stream.is_closed:
                outcomes[await stream.apply_reload(changed_guards, changed_topics)] += 1
            if n % STREAMS_PER_SLICE == STREAMS_PER_SLICE - 1:
                await asyncio.sleep(0)
        return dict(outcomes)

    def end_matching(self, predicate: Callable[[OpenStream], bool], reason: str) -> int:
        """Those that it fits, some at a time; how many they are."""
        ending = [
            stream
            for stream in self._by_number.values()
            if not stream.is_closed and predicate(stream)
        ]
        if ending:
            self.start_task(_end_streams(ending, reason))
        return len(ending)

    async def renew_or_end(self, stream: OpenStream, granted: Granted) -> None:
        """As `Opened.renew`, of one whose client does not wait for the word: it ends if it cannot
        be."""
        try:
            await stream.renew(granted)
        except (GatewayError, HTTPException):
            stream.end(END_ACCESS_CHANGED)
