"""Block identities and pause routes until an operator allows them again.

The blocklist holds in all workers, also in one that is started later: the supervisor keeps it
(`serve_blocklist`) and passes it to each. A reload does not change it; a restart of the gateway
clears it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from gateway.core.client.terms import EndReason
from gateway.errors import RequestError
from gateway.web.routing.open_streams import StreamRegistry
from gateway.web.routing.paths import AccessRevoked, Match, RoutePaused
from gateway.web.workers.bus import Bus, SupervisorUnavailable
from gateway.web.workers.relay import Relay

from .listing import StreamFilter

BUS_TOPIC = "orders"
BUS_TIMEOUT_S = 5.0  # seconds for the supervisor, and the workers, to answer

BlocklistKey: TypeAlias = tuple[str, str, str]
"""The guard, identity and route of an entry; those that do not apply are empty."""


class BlocklistEntry(NamedTuple):
    """The access of an identity, or a route, that an operator forbids.

    `guard` is empty for any guard, `identity` if a route is paused, and `route` if access is
    revoked. Times are in seconds since 1970.
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
        if self.route:
            return StreamFilter(route=self.route)
        return StreamFilter(identity=self.identity, guard=self.guard or None)

    @property
    def reason(self) -> EndReason:
        return RoutePaused.reason if self.route else AccessRevoked.reason


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The effect of a change: how many streams end, and which workers did not answer."""

    ended: int
    missing: list[int]


class Blocklist:
    """The blocklist, as one worker knows it.

    While the whole list is being loaded from the supervisor, `_pending_changes` collects the
    changes that arrive meanwhile: they may be newer than the list.
    """

    def __init__(self, stream_registry: StreamRegistry, bus: Bus) -> None:
        self._stream_registry = stream_registry
        self._bus = bus
        self._entries: dict[BlocklistKey, BlocklistEntry] = {}
        self._pending_changes: list[Any] | None = None  # None while nothing is being loaded
        stream_registry.find_refusal = self.find_refusal
        bus.add_handler(BUS_TOPIC, self._on_change)
        bus.join_callbacks.append(self._on_joined)

    @property
    def entries(self) -> list[BlocklistEntry]:
        return [entry for entry in self._entries.values() if not entry.is_expired]

    def find_refusal(self, match: Match) -> RoutePaused | AccessRevoked | None:
        if not self._entries:
            return None
        if ("", "", match.route.name) in self._entries:
            return RoutePaused()
        for guard, grant in match.granted.items():
            for key in ((guard, grant.identity, ""), ("", grant.identity, "")):
                entry = self._entries.get(key)
                if entry is not None and not entry.is_expired:
                    return AccessRevoked()
        return None

    def find_pause(self, route: str) -> BlocklistEntry | None:
        return self._entries.get(("", "", route))

    def replace_entries(self, data: Iterable[Any]) -> None:
        """Replace the list, and end the streams that it forbids."""
        self._entries = {entry.key: entry for entry in map(_parse_entry, data)}
        for change in self._pending_changes or ():
            self._apply_change(*change)
        self._pending_changes = None
        for entry in self.entries:
            self._stream_registry.end_matching(entry.stream_filter.matches, entry.reason)

    async def add_entry(self, entry: BlocklistEntry) -> ChangeResult:
        """Add an entry in all workers; a 503 if the supervisor does not answer."""
        return await self._broadcast_change(entry.key, entry)

    async def remove_entry(self, key: BlocklistKey) -> ChangeResult:
        """Remove an entry in all workers; a 404 if there is none, a 503 as in `add_entry`."""
        if key not in self._entries:
            raise RequestError(404, "Not found", "nothing of this kind is forbidden; see the list")
        return await self._broadcast_change(key, None)

    async def _broadcast_change(
        self, key: BlocklistKey, entry: BlocklistEntry | None
    ) -> ChangeResult:
        # First the supervisor: a worker that starts from now on gets the change with its list.
        change = [key, entry]
        if self._bus.worker_count > 1:
            try:
                await self._bus.call_supervisor(BUS_TOPIC, change, timeout_s=BUS_TIMEOUT_S)
            except SupervisorUnavailable as exc:
                raise RequestError(503, "Busy", f"{exc}; try again", retry_after=1.0) from None
        answers = await self._bus.request(BUS_TOPIC, change, timeout_s=BUS_TIMEOUT_S)
        return ChangeResult(sum(answers.by_worker.values()), sorted(answers.missing))

    def _on_change(self, worker: int, change: tuple[Any, Any]) -> int:
        """Apply a change of any worker; return the number of streams that it ends here."""
        if self._pending_changes is not None:
            self._pending_changes.append(change)
        entry = self._apply_change(*change)
        return (
            0
            if entry is None
            else self._stream_registry.end_matching(entry.stream_filter.matches, entry.reason)
        )

    def _apply_change(self, key: Any, data: Any) -> BlocklistEntry | None:
        if data is None:
            self._entries.pop(tuple(key), None)
            return None
        entry = _parse_entry(data)
        self._entries = {known.key: known for known in (*self.entries, entry)}
        return entry

    def _on_joined(self) -> None:
        self._stream_registry.start_task(self._load_entries())

    async def _load_entries(self) -> None:
        """Load the list from the supervisor, until it answers or the connection is lost.

        After a new connection, `_on_joined` loads it again.
        """
        while True:
            self._pending_changes = []
            try:
                entries = await self._bus.call_supervisor(BUS_TOPIC, None, timeout_s=BUS_TIMEOUT_S)
            except SupervisorUnavailable:
                if not self._bus.is_linked:
                    return
                continue
            self.replace_entries(entries)
            return


def serve_blocklist(relay: Relay) -> Callable[[], list[BlocklistEntry]]:
    """Let a supervisor keep the blocklist; return a function that returns its entries."""
    entries: dict[BlocklistKey, BlocklistEntry] = {}

    def get_entries() -> list[BlocklistEntry]:
        for key in [key for key, entry in entries.items() if entry.is_expired]:
            del entries[key]
        return list(entries.values())

    def handle_call(worker: int, change: tuple[Any, Any] | None) -> list[BlocklistEntry]:
        if change is not None:
            key, data = change
            entries.pop(tuple(key), None)
            if data is not None:
                entry = _parse_entry(data)
                entries[entry.key] = entry
        return get_entries()

    relay.add_handler(BUS_TOPIC, handle_call)
    return get_entries


def _parse_entry(data: Any) -> BlocklistEntry:
    return BlocklistEntry(*data)
