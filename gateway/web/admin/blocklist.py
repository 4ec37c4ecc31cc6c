"""What an operator forbids until it is allowed again: somebody's access, and whole routes.

It holds in all workers, also in one that is started later: the supervisor keeps it (`keep`), and
hands it to each. A reload changes nothing of it; a restart of the gateway forgets it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gateway.errors import RequestError
from gateway.web.routing.block_errors import AccessRevoked as AccessRevoked
from gateway.web.routing.block_errors import RoutePaused as RoutePaused
from gateway.web.routing.match import Match, get_route_name
from gateway.web.streams.open_streams import StreamRegistry
from gateway.web.workers.bus import Bus, SupervisorUnavailable
from gateway.web.workers.relay import Relay

from .stream_filter import StreamFilter

BUS_TOPIC = "orders"
BUS_TIMEOUT_S = 5.0  # seconds for the supervisor, and the workers, to answer

BlocklistKey: TypeAlias = tuple[str, str, str]


class BlocklistEntry(NamedTuple):
    """guard, identity: whose access is revoked; empty for any guard. Or the route that is paused.

    until, since: seconds since 1970. by: who asked.
    """

    guard: str = ""
    identity: str = ""
    route: str = ""
    until: float | None = None
    since: float = 0.0
    by: str = ""

    @property
    def key(self) -> BlocklistKey:
        return self.guard, self.identity, self.route

    @property
    def is_expired(self) -> bool:
        return self.until is not None and self.until <= time.time()

    @property
    def stream_filter(self) -> StreamFilter:
        """The streams that it ends."""
        if self.route:
            return StreamFilter(route=self.route)
        return StreamFilter(identity=self.identity, guard=self.guard or None)

    @property
    def reason(self) -> str:
        return RoutePaused.reason if self.route else AccessRevoked.reason


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """ended: streams, by now or in a moment. missing: workers that did not answer."""

    ended: int
    missing: list[int]


class Blocklist:
    """As one worker knows them."""

    def __init__(self, stream_registry: StreamRegistry, bus: Bus) -> None:
        self._stream_registry = stream_registry
        self._bus = bus
        self._entries: dict[BlocklistKey, BlocklistEntry] = {}
        self._pending_changes: list[Any] | None = None  # heard while all of them are asked for
        stream_registry.find_error = self.find_error
        bus.add_handler(BUS_TOPIC, self._on_change)
        bus.join_callbacks.append(self._on_joined)

    @property
    def entries(self) -> list[BlocklistEntry]:
        return [order for order in self._entries.values() if not order.is_expired]

    def find_error(self, match: Match) -> RoutePaused | AccessRevoked | None:
        """What forbids a stream now."""
        if not self._entries:
            return None
        if ("", "", get_route_name(match.route)) in self._entries:
            return RoutePaused()
        for guard, grant in match.granted.items():
            for key in ((guard, grant.identity, ""), ("", grant.identity, "")):
                order = self._entries.get(key)
                if order is not None and not order.is_expired:
                    return AccessRevoked()
        return None

    def find_pause(self, route: str) -> BlocklistEntry | None:
        return self._entries.get(("", "", route))

    def replace_entries(self, data: Iterable[Any]) -> None:
        """These, and no others."""
        self._entries = {order.key: order for order in map(_parse_entry, data)}
        for change in self._pending_changes or ():
            self._apply_change(*change)
        self._pending_changes = None
        for order in self.entries:
            self._stream_registry.end_matching(order.stream_filter.matches, order.reason)

    async def add_entry(self, entry: BlocklistEntry) -> ChangeResult:
        """Raises RequestError 503 where the supervisor does not answer."""
        return await self._broadcast_change(entry.key, entry)

    async def remove_entry(self, key: BlocklistKey) -> ChangeResult:
        """Raises as `give`; RequestError 404 for one that is not held."""
        if key not in self._entries:
            raise RequestError(404, "Not found", "nothing of this kind is forbidden; see the list")
        return await self._broadcast_change(key, None)

    async def _broadcast_change(
        self, key: BlocklistKey, entry: BlocklistEntry | None
    ) -> ChangeResult:
        change = [key, entry]
        if self._bus.worker_count > 1:
            try:
                await self._bus.call_supervisor(BUS_TOPIC, change, timeout_s=BUS_TIMEOUT_S)
            except SupervisorUnavailable as exc:
                raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        answers = await self._bus.request(BUS_TOPIC, change, timeout_s=BUS_TIMEOUT_S)
        return ChangeResult(sum(answers.by_worker.values()), sorted(answers.missing))

    def _on_change(self, worker: int, change: tuple[Any, Any]) -> int:
        if self._pending_changes is not None:
            self._pending_changes.append(change)
        order = self._apply_change(*change)
        return (
            0
            if order is None
            else self._stream_registry.end_matching(order.stream_filter.matches, order.reason)
        )

    def _apply_change(self, key: Any, data: Any) -> BlocklistEntry | None:
        if data is None:
            self._entries.pop(tuple(key), None)
            return None
        order = _parse_entry(data)
        self._entries = {each.key: each for each in (*self.entries, order)}
        return order

    def _on_joined(self) -> None:
        self._stream_registry.start_task(self._load_entries())

    async def _load_entries(self) -> None:
        """Until they are told; `_joined` is called anew where the supervisor went away."""
        while True:
            self._pending_changes = []
            try:
                told = await self._bus.call_supervisor(BUS_TOPIC, None, timeout_s=BUS_TIMEOUT_S)
            except SupervisorUnavailable:
                if not self._bus.is_linked:
                    return
                continue
            self.replace_entries(told)
            return


def serve_blocklist(relay: Relay) -> Callable[[], list[BlocklistEntry]]:
    """Let a supervisor keep them for its workers. What it keeps now, for one that starts."""
    held: dict[BlocklistKey, BlocklistEntry] = {}

    def get_entries() -> list[BlocklistEntry]:
        for key in [key for key, order in held.items() if order.is_expired]:
            del held[key]
        return list(held.values())

    def handle_call(worker: int, change: tuple[Any, Any] | None) -> list[BlocklistEntry]:
        if change is not None:
            key, told = change
            held.pop(tuple(key), None)
            if told is not None:
                order = _parse_entry(told)
                held[order.key] = order
        return get_entries()

    relay.add_handler(BUS_TOPIC, handle_call)
    return get_entries


def _parse_entry(data: Any) -> BlocklistEntry:
    return BlocklistEntry(*data)
