"""The open streams of this process, on any wire: find them, renew, change and end them.

A stream outlives the hub's clients. A change while it is open ends its client with a handover, and
another client goes on from the same position on the same connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Set
from functools import partial
from itertools import chain
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from starlette.exceptions import HTTPException

from gateway.background_tasks import BackgroundTasks
from gateway.client_memory import ClientMemory, HeldPart
from gateway.config import Route
from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.errors import Busy, GatewayError, KafkaError, RequestError, UnknownTopic
from gateway.hub.fanout.client import Client, Handover
from gateway.hub.fanout.hubs import ClusterTopic
from gateway.hub.reads.pacing import WallClockTimer
from gateway.hub.reads.view import View
from gateway.web.access import Granted

from .messages import QueryPairs
from .paths import AccessRevoked, Match, RoutePaused

if TYPE_CHECKING:
    from .routes import Routes

STREAMS_PER_SLICE = 100  # streams that are visited before other tasks run
UNTOUCHED, MOVED = "untouched", "moved"  # what becomes of a stream that a reload does not end

log = logging.getLogger(__name__)

T = TypeVar("T")


class StreamChange(NamedTuple):
    """The next content of a stream, and whether another client is needed in any case."""

    match: Match
    query: QueryPairs
    view: View
    needs_new_client: bool = False


StreamOutcomes: TypeAlias = Mapping[tuple[str, str], int]
"""How many streams of a route, by its name before a reload, had an outcome."""


class OpenStream:
    """One stream, from its first client to its end. The base of the streams of both wires.

    It is registered in the `StreamRegistry` from its creation until `mark_closed`. Its client may
    be None before the first one, during a handover and at the end. A change that is requested
    before the client has begun is pending until then, because the position of the client, which the
    next one needs, is not known before.

    Attributes:
        renewal_name: The secret name by which its client renews the token; empty until needed.
        opened_at: When the stream was created, in seconds since 1970.
        number: Its number among all streams of this process, in the order of their creation.
    """

    __slots__ = (
        "_challenge_timer", "_client", "_end_reason", "_has_begun", "_pending_change", "address",
        "is_closed", "match", "number", "opened_at", "query", "renewal_name", "routes",
    )  # fmt: skip

    def __init__(self, routes: Routes, match: Match, query: QueryPairs, address: str = "") -> None:
        self.routes = routes
        self.match = match
        self.query = query
        self.address = address
        self.opened_at = time.time()
        self.renewal_name = ""
        self.is_closed = False
        self._client: Client | None = None
        self._has_begun = False  # the present client is attached, and has a position
        self._pending_change: StreamChange | None = None
        self._challenge_timer: WallClockTimer | None = None
        # Why the stream is to end. It is kept for the case that a handover is on its way.
        self._end_reason: EndReason | None = None
        self.number = routes.stream_registry.add(self)

    @property
    def client(self) -> Client | None:
        """The hub's client; None before there is one, and during a handover."""
        return self._client

    @property
    def matches(self) -> list[Match]:
        """The present match and, if a change is pending, the next one."""
        return (
            [self.match]
            if self._pending_change is None
            else [self.match, self._pending_change.match]
        )

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection, which several streams may share; None where another server owns it."""
        return None

    def end(self, reason: EndReason) -> None:
        self._end_reason = self._end_reason or reason
        if self._client is not None:
            self._client.end(reason)

    def release_memory(self) -> None:
        self.end(EndReason.SLOW)

    async def renew(self, granted: Granted) -> None:
        """Go on with new grants: until they expire, and with the view that they allow.

        If they do not allow the stream, it stays as it was, and a `RequestError` is raised.
        """
        self.apply_change(await self._plan(partial(self.build_renewal, granted)))

    async def _plan(self, build: Callable[[], Awaitable[T]]) -> T:
        """Return a change of the stream that is as it was when the change was begun to be built.

        Brokers may be asked meanwhile: a reload, a renewal or the client itself may be faster.
        """
        while True:
            match = self._latest_match_and_query[0]
            change = await build()
            if self._latest_match_and_query[0] is match:
                return change

    async def build_renewal(self, granted: Granted) -> StreamChange:
        """Return the change to new grants, without applying it; raises as `renew`."""
        match, query = self._latest_match_and_query
        # The route may require more than when the guards were asked.
        if not granted.has(match.route.guarded):
            raise RequestError(403, "Forbidden", "the stream's route asks for other roles by now")
        match = match._replace(granted=granted)
        return StreamChange(match, query, await self.routes.get_view(match, query))

    async def apply_reload(
        self, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> str:
        """Adapt to a configuration; return `untouched`, `moved`, or `ended (REASON)`."""
        plan = partial(self._plan_reload, self.routes, changed_guards, changed_topics)
        try:
            change = await self._plan(plan)
        except Exception:  # a fault of the gateway: the others have to be looked at
            log.exception("a stream of %s cannot be reviewed, and ends", self.match.path)
            change = EndReason.ERROR
        if isinstance(change, EndReason):
            self.end(change)
            return f"ended ({change})"
        self.apply_change(change)
        return UNTOUCHED if self._pending_change is None else MOVED

    async def predict_reload(
        self, new_routes: Routes, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> str:
        """Return the outcome of `apply_reload` for the new routes, and change nothing."""
        change = await self._plan_reload(new_routes, changed_guards, changed_topics)
        if isinstance(change, EndReason):
            return f"ended ({change})"
        client = self._client
        is_same = client is not None and client.view == change.view and self._has_begun
        return UNTOUCHED if is_same and not change.needs_new_client else MOVED

    async def _plan_reload(
        self, routes: Routes, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> StreamChange | EndReason:
        """Return what the stream shows by other routes, or why it has to end."""
        before, query = self._latest_match_and_query
        try:
            match = routes.match(before.path)
            granted = keep_grants(before, match.route, changed_guards)
            if granted is None:
                return EndReason.ACCESS_CHANGED
            match = match._replace(granted=granted)
            view = await routes.get_view(match, query)
        except (GatewayError, HTTPException) as exc:
            return get_end_reason(exc)
        # A client is created with its rate and the settings of its topics.
        rate_changed = before.route.stream.max_rate != match.route.stream.max_rate
        needs_new_client = rate_changed or any(
            (view.cluster, topic) in changed_topics for topic in view.topics
        )
        return StreamChange(match, query, view, needs_new_client)

    # From one client to the next.

    @property
    def _latest_match_and_query(self) -> tuple[Match, QueryPairs]:
        if self._pending_change is None:
            return self.match, self.query
        return self._pending_change.match, self._pending_change.query

    def apply_change(self, change: StreamChange) -> None:
        """Show something else, at once or as soon as the client has begun."""
        # The change that is replaced may be the reason that another client is needed.
        if self._pending_change is not None and self._pending_change.needs_new_client:
            change = change._replace(needs_new_client=True)
        self._pending_change = change
        if self._client is not None and self._has_begun:
            self._apply_pending_change(self._client)

    def _on_attached(self, client: Client) -> None:
        """Apply changes that were requested before the client began; called just before it does.

        A client that is to end, or to hand over, is sent nothing that it shows.
        """
        self._has_begun = True
        self._end_if_blocked()
        if self._end_reason:
            client.end(self._end_reason)
        elif self._pending_change is not None:
            self._apply_pending_change(client)
        self._schedule_challenge()

    def _apply_pending_change(self, client: Client) -> None:
        """Apply the pending change to the present client, or request a handover to another one."""
        assert self._pending_change is not None
        match, query, view, needs_new_client = self._pending_change
        # The client ends, and its outlet calls `hand_over`, which takes the change from here.
        if needs_new_client or client.view != view or client.subscription.end_reason is not None:
            client.end(EndReason.CHANGED)
            return
        self.match, self.query, self._pending_change = match, query, None
        self.routes.stream_registry.count_memory(self)
        self._end_if_blocked()
        client.apply_route_settings(
            match.route.stream.heartbeat, SlowClientPolicy(match.route.stream.slow_client)
        )
        client.set_expiry(match.granted.expires)
        self._schedule_challenge()

    def _end_if_blocked(self) -> None:
        """End the stream if an operator has blocked it since its client was admitted."""
        error = self.routes.stream_registry.find_refusal(self.match)
        if error is not None:
            self.end(error.reason)

    def _take_handover(self, taken: Handover | None = None) -> Handover:
        """Return the handover of a client that ended by `CHANGED`, and apply the change."""
        client, self._client, self._has_begun = self._client, None, False
        assert client is not None and self._pending_change is not None
        self.match, self.query, _, _ = self._pending_change
        self._pending_change = None
        self.routes.stream_registry.count_memory(self)
        return taken or client.take_handover()

    def mark_closed(self) -> None:
        self.is_closed = True
        self._cancel_challenge()
        self.routes.stream_registry.discard(self)

    # The expiry of grants.

    def _schedule_challenge(self) -> None:
        self._cancel_challenge()
        expiring = self.match.granted.expiring
        lead = None if expiring is None else self.routes.get_challenge_lead(expiring.guard)
        if expiring is not None and lead is not None and expiring.expires is not None:
            send = partial(self._send_challenge, expiring.guard, expiring.expires)
            self._challenge_timer = WallClockTimer(expiring.expires - lead, send)

    def _send_challenge(self, guard: str, expires_at: float) -> None:
        """Ask the client for a new token before `expires_at`, in seconds since 1970."""
        raise NotImplementedError

    def _cancel_challenge(self) -> None:
        if self._challenge_timer is not None:
            self._challenge_timer.cancel()
            self._challenge_timer = None


def keep_grants(previous_match: Match, route: Route, changed_guards: Set[str]) -> Granted | None:
    """Return the part of a client's grants that a reloaded route asks for.

    None means that they do not allow the route, or that a guard that was changed would have to be
    asked again.
    """
    granted = previous_match.granted
    if not changed_guards.isdisjoint(route.guarded) or not granted.has(route.guarded):
        return None
    # Grants of guards that the configuration does not name are those of the application itself.
    own = granted.keys() - previous_match.route.guarded.keys()
    return granted.only(own | route.guarded.keys())


def get_end_reason(exc: GatewayError | HTTPException) -> EndReason:
    """Return the reason in the `end` event of a stream that cannot go on for an error."""
    if isinstance(exc, UnknownTopic | HTTPException):
        return EndReason.ROUTE_REMOVED
    if isinstance(exc, Busy):
        return EndReason.BUSY
    return EndReason.KAFKA_UNAVAILABLE if isinstance(exc, KafkaError) else EndReason.ACCESS_CHANGED


async def _end_streams(streams: Iterable[OpenStream], reason: EndReason) -> None:
    for n, stream in enumerate(streams):
        stream.end(reason)
        if n % STREAMS_PER_SLICE == STREAMS_PER_SLICE - 1:
            await asyncio.sleep(0)


class StreamRegistry:
    """All open streams of this process, and the tasks that work on them.

    One for each worker. `run` must be running while tasks are started, and cancels them at the end.

    Attributes:
        instance_id: A random id of this process. Stream numbers begin at 1 in every process.
        find_refusal: Returns the error of a route that an operator has paused or of a client whose
            access was revoked. The blocklist sets it.
    """

    def __init__(self, client_memory: ClientMemory | None = None) -> None:
        self.instance_id = secrets.token_hex(4)
        self._client_memory = client_memory or ClientMemory()
        # Numbers only grow, so that the dictionary is ordered by them.
        self._by_number: dict[int, OpenStream] = {}
        self._last_number = 0
        self.find_refusal: Callable[[Match], RoutePaused | AccessRevoked | None] = lambda match: (
            None
        )
        self._by_renewal_name: dict[str, OpenStream] = {}
        self._tasks = BackgroundTasks(log)

    def __iter__(self) -> Iterator[OpenStream]:
        """Iterate over the streams that are open now, also if some close meanwhile."""
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, stream: OpenStream) -> int:
        self._last_number += 1
        self._by_number[self._last_number] = stream
        self.count_memory(stream)
        return self._last_number

    def count_memory(self, stream: OpenStream) -> None:
        """Count what a stream keeps of its request, by which a reload finds its route again."""
        match = stream.match
        size = sum(map(getsizeof, (match.path, *match.values, *chain(*stream.query))))
        self._client_memory.hold_if_large(HeldPart.RECEIVED, stream, size)

    def iter_after(self, number: int) -> Iterator[OpenStream]:
        """Yield the streams behind a number, in order. None may close during the iteration.

        The stream of the number need not be open any more.
        """
        numbers = list(self._by_number)
        for later_number in numbers[bisect_right(numbers, number) :]:
            yield self._by_number[later_number]

    def get(self, number: int) -> OpenStream | None:
        return self._by_number.get(number)

    def discard(self, stream: OpenStream) -> None:
        self._by_number.pop(stream.number, None)
        self._client_memory.release(HeldPart.RECEIVED, stream)
        self._by_renewal_name.pop(stream.renewal_name, None)

    def ensure_renewal_name(self, stream: OpenStream) -> str:
        """Return the secret name of a stream, which is created on the first call."""
        if not stream.renewal_name:
            stream.renewal_name = secrets.token_urlsafe(16)
            self._by_renewal_name[stream.renewal_name] = stream
        return stream.renewal_name

    def find_by_renewal_name(self, name: str) -> OpenStream | None:
        return self._by_renewal_name.get(name)

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self._tasks.close()

    def start_task(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for which nobody waits. An error is logged."""
        self._tasks.start(coro, "a change of streams")

    async def apply_reload(
        self, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> StreamOutcomes:
        """Adapt all streams to a new configuration, in slices; return the outcomes by route."""
        return await self._count_outcomes(
            lambda stream: stream.apply_reload(changed_guards, changed_topics)
        )

    async def predict_reload(
        self, new_routes: Routes, changed_guards: Set[str], changed_topics: Set[ClusterTopic]
    ) -> StreamOutcomes:
        """Return the outcomes of `apply_reload`, in slices, and change nothing."""
        return await self._count_outcomes(
            lambda stream: stream.predict_reload(new_routes, changed_guards, changed_topics)
        )

    async def _count_outcomes(
        self, visit: Callable[[OpenStream], Awaitable[str]]
    ) -> StreamOutcomes:
        """Visit all streams; one whose topics are asked for holds up no other."""
        outcomes: Counter[tuple[str, str]] = Counter()

        async def count_outcome(stream: OpenStream) -> None:
            if not stream.is_closed:  # by now
                route = stream.match.route.name
                outcomes[route, await visit(stream)] += 1

        async with asyncio.TaskGroup() as group:
            for n, stream in enumerate(self):
                group.create_task(count_outcome(stream))
                if n % STREAMS_PER_SLICE == STREAMS_PER_SLICE - 1:
                    await asyncio.sleep(0)
        return outcomes

    def end_matching(self, predicate: Callable[[OpenStream], bool], reason: EndReason) -> int:
        """End the streams that a predicate selects, in slices; return their number at once."""
        selected = [
            stream
            for stream in self._by_number.values()
            if not stream.is_closed and predicate(stream)
        ]
        if selected:
            self.start_task(_end_streams(selected, reason))
        return len(selected)

    async def renew_or_end(self, stream: OpenStream, granted: Granted) -> None:
        """Renew a stream, or end it if that fails. Its client does not wait for the result."""
        try:
            await stream.renew(granted)
        except (GatewayError, HTTPException):
            stream.end(EndReason.ACCESS_CHANGED)
