"""What the clients of the bench look at, and what each may expect.

Every route has the format `envelope`, so that each record says where it is from. There are two
rules:

`Rule.STREAM`: every record of the view that was committed comes exactly once, in the order of its
    partition, none that is not of the view, and none of an aborted transaction. What Kafka no
    longer has is told by exactly one `gap` that covers it, and no `gap` is told of what came.
    `judge` leaves this to `support.oracle`. All these routes have `resume: exact`: a client that
    was cut at any byte gets nothing twice.

`Rule.TABLE` (snapshots, and conflated streams): in the end the client knows the latest record of
    each key, and no key that was deleted. Older records of a key may be missing. Within a
    connection the offsets of a key rise, so nothing older follows something newer. After a
    reconnect records may come again, since a flush that was cut is sent as a whole
    (`resume: batch`), but none from before the position that the client came back with. What comes
    is a committed record, unchanged.

Topics differ in what is done to them: all that happens to `ledger`, `solo`, `prices` and `typed`
must go unnoticed, while `trimmed`, `volatile` and `unclean` lose records, which has to be told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from support.stream_check import AckedRecord, RecordPredicate

LEDGER, SOLO, TRIMMED, VOLATILE, UNCLEAN, PRICES, TYPED = (
    "ledger", "solo", "trimmed", "volatile", "unclean", "prices", "typed",
)  # fmt: skip
# Of the broker that has its own clock: Kafka says with each record what time it is there.
CLOCKED, CLOCKED_CONFIGS = "clocked", {"message.timestamp.type": "LogAppendTime"}
KEY_COUNT = 7
LANES = ("red", "green", "blue", "grey")
LOGIN, SESSION, REGISTRY = "login", "session", "registry"
# Why each topic may lose records. Gaps of other topics, or for other reasons, are wrong.
GAP_REASONS: Mapping[str, str] = {
    TRIMMED: "retention", VOLATILE: "recreated", UNCLEAN: "truncated",
}  # fmt: skip


class Rule(StrEnum):
    """What a client may expect; see the module."""

    STREAM = "stream"
    TABLE = "table"


class Wire(StrEnum):
    """How a client is served."""

    SSE = "sse"
    HTTP2 = "sse, HTTP/2 through a proxy"
    NDJSON = "ndjson"
    WEBSOCKET = "websocket"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the bench.

    Attributes:
        name: Its name.
        replicas: The nodes of each partition, the preferred leader first.
        configs: Its settings in Kafka.
        settings: Its settings in `kafka.topics`.
    """

    name: str
    replicas: Sequence[Sequence[int]]
    configs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


_THREE = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
_TWO = ([1, 2], [2, 3], [3, 1])
# A key that nobody writes any more is in the table for good, and a tombstone stays for a day.
_COMPACTED = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
TOPICS: Sequence[Topic] = (
    Topic(LEDGER, [*_THREE, *_THREE], {"min.insync.replicas": "2"}),
    Topic(SOLO, [[1], [2], [3]]),
    # Who was away has to find the log start ahead of itself, not the records in memory.
    Topic(TRIMMED, _THREE, {"min.insync.replicas": "2"}, {"cache": {"bytes": "1KiB"}}),
    Topic(VOLATILE, _TWO, {"min.insync.replicas": "1"}),
    Topic(
        UNCLEAN,
        _TWO,
        {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
    ),
    Topic(PRICES, _THREE, _COMPACTED),
    Topic(
        TYPED,
        _THREE,
        {"min.insync.replicas": "2"},
        {"value": {"model": "jsonschema", "catalog": REGISTRY}},
    ),
)


@dataclass(frozen=True, slots=True)
class View:
    """What a class of clients looks at.

    Attributes:
        name: Of the class, in reports.
        topic: The topic.
        path: Path and query.
        share: How many of 200 clients are of this class.
        wires: Their wires, in turn.
        rule: What they may expect.
        user: Who they log in as; nobody if empty.
        is_visible: Which records are of the view.
        begins_late: Whether they begin in the middle of the schedule, from the earliest record.
    """

    name: str
    topic: str
    path: str
    share: int
    wires: Sequence[Wire] = tuple(Wire)
    rule: Rule = Rule.STREAM
    user: str = ""
    is_visible: RecordPredicate = lambda acked: True
    begins_late: bool = False


def _see_key(number: int) -> RecordPredicate:
    key = f"key-{number}".encode()
    return lambda acked: acked.key == key


def _see_lane(lane: str) -> RecordPredicate:
    return lambda acked: read_lane(acked.value) == lane


def _see_keys(*numbers: int) -> RecordPredicate:
    keys = {f"key-{number}".encode() for number in numbers}
    return lambda acked: acked.key in keys


@lru_cache(maxsize=1 << 17)
def _read_metadata(value: bytes) -> tuple[str, int]:
    """Return the lane and the timestamp that a written value names."""
    written = json.loads(value)
    return written["lane"], written["at"]


def read_lane(value: bytes | None) -> str | None:
    """Return the lane that a written value names."""
    return None if value is None else _read_metadata(value)[0]


def build_metadata(value: bytes) -> dict[str, Any]:
    """Return the timestamp and the headers that a value is written with, as it names them."""
    lane, timestamp_ms = _read_metadata(value)
    return {"timestamp": timestamp_ms, "headers": [("lane", lane.encode())]}


def describe_other_metadata(
    value: bytes, timestamp_ms: int, headers: Sequence[Sequence[str]]
) -> str:
    """Return how a record's timestamp or headers differ from those it was written with.

    Args:
        value: The value of the record.
        timestamp_ms: The timestamp that came with it.
        headers: The headers that came with it, as pairs of name and value.

    Returns:
        Nothing if they are the same, or if the value was not written by the bench.
    """
    try:
        lane, written_ms = _read_metadata(value)
    except (ValueError, KeyError):
        return ""
    came, written = (timestamp_ms, list(map(list, headers))), (written_ms, [["lane", lane]])
    return "" if came == written else f"timestamp and headers {came}, written {written}"


_PLAIN_WIRES = (Wire.SSE, Wire.WEBSOCKET, Wire.NDJSON)
_CHOSEN_KEYS = "filter=%7B%22key%22%3A%7B%22in%22%3A%5B%22key-1%22%2C%22key-4%22%5D%7D%7D"
VIEWS: Sequence[View] = (
    View("ledger, SSE", LEDGER, "/ledger", 26, (Wire.SSE,)),
    View("ledger, HTTP/2", LEDGER, "/ledger", 18, (Wire.HTTP2,)),
    View("ledger, WebSocket", LEDGER, "/ledger", 16, (Wire.WEBSOCKET,)),
    View("ledger, NDJSON", LEDGER, "/ledger", 12, (Wire.NDJSON,)),
    View("ledger, late", LEDGER, "/ledger?from=earliest", 8, _PLAIN_WIRES, begins_late=True),
    *(
        View("own key", LEDGER, f"/own/key-{n}", 4, is_visible=_see_key(n))
        for n in range(KEY_COUNT)
    ),
    *(View("filtered", LEDGER, f"/lane/{lane}", 4, is_visible=_see_lane(lane)) for lane in LANES),
    View("own filter", LEDGER, f"/ledger?{_CHOSEN_KEYS}", 6, is_visible=_see_keys(1, 4)),
    *(
        View(name, LEDGER, path, 4, _PLAIN_WIRES, user=f"key-{n}", is_visible=_see_key(n))
        for name, path, n in (
            ("guarded, JWT", "/mine", 2),
            ("guarded, JWT", "/mine", 5),
            ("guarded, HTTP", "/session", 3),
        )
    ),
    View("solo", SOLO, "/solo", 10),
    View("trimmed", TRIMMED, "/trimmed", 16),
    View("volatile", VOLATILE, "/volatile", 9),
    View("unclean", UNCLEAN, "/unclean", 9),
    View("typed", TYPED, "/typed", 6, _PLAIN_WIRES),
    View("snapshot", PRICES, "/prices", 8, rule=Rule.TABLE),
    View("snapshot, late", PRICES, "/prices", 4, _PLAIN_WIRES, Rule.TABLE, begins_late=True),
    View("conflated", PRICES, "/ticker", 6, rule=Rule.TABLE),
)


def build_routes() -> list[dict[str, Any]]:
    """Build the section `routes` for all views."""
    own_user = f"${{guarded['{LOGIN}'].identity}}"
    session_user = f"${{guarded['{SESSION}'].identity}}"
    return [
        *(_build_route(f"/{name}", name) for name in (SOLO, TRIMMED, VOLATILE, UNCLEAN, TYPED)),
        _build_route("/ledger", LEDGER, clientFilters=True),
        _build_route("/own/{key}", LEDGER, filters=[{"key": "${params.key}"}]),
        _build_route("/lane/{lane}", LEDGER, filters=[{"value": {"/lane": "${params.lane}"}}]),
        _build_route("/mine", LEDGER, LOGIN, filters=[{"key": own_user}]),
        _build_route("/session", LEDGER, SESSION, filters=[{"key": session_user}]),
        _build_route("/prices", PRICES, mode="snapshot"),
        _build_route("/ticker", PRICES, interval="250ms", slowClient="conflate"),
    ]


def _build_route(path: str, topic: str, guard: str = "", **options: Any) -> dict[str, Any]:
    route = {
        "when": [{"path": path}],
        "with": {"topic": topic, "format": "envelope", "heartbeat": "2s", **options},
    }
    return {**route, "guarded": {guard: []}} if guard else route


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client of the bench: one of a view, with its wire."""

    number: int
    view: View
    wire: Wire


def plan_clients(count: int) -> list[ClientPlan]:
    """Return `count` clients, or one for each view if there are more views, by their shares."""
    total = sum(view.share for view in VIEWS)
    plans: list[ClientPlan] = []
    for view in VIEWS:
        for number in range(max(1, round(view.share * count / total))):
            wire = view.wires[(len(plans) + number) % len(view.wires)]
            plans.append(ClientPlan(len(plans), view, wire))
    return plans


def describe_record(acked: AckedRecord) -> str:
    """Return a record's place, key and value, short."""
    value = "tombstone" if acked.value is None else acked.value.decode(errors="replace")
    return f"{acked.tp.topic}-{acked.tp.partition}@{acked.offset} {acked.key!r} {value:.80}"
