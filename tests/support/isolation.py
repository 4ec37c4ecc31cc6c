"""What clients may be shown, and what they were shown: by code of its own, for tests of isolation.

What a client asks for is described as it is written: the filters of a route with the claims of
the client in them, what the client chose itself, fields and format. The gateway makes a `View` of
that, the oracle a yes or no for each record (`filter_oracle`). A record is told by the number in
its value, which every choice of fields shows.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.filter_oracle import FilterRecord, matches_filters

from gateway.config import Route
from gateway.config.types.filters import parse_fields, parse_filter
from gateway.core.channel.filters import Filters
from gateway.core.client.terms import SlowClientPolicy
from gateway.core.log.record import TopicPartition
from gateway.hub.reads.view import View
from gateway.web.access import Grant, Granted
from gateway.web.routing.views import ClientSelection, TemplateValues, build_route_view

GUARD_NAME = "users"
IDENTITY_TEMPLATE = f"${{guarded['{GUARD_NAME}'].identity}}"

Offsets = dict[TopicPartition, int]


class IsolationError(AssertionError):
    """A client was shown what it may not see, or not shown what it may."""


class WrittenRecord(NamedTuple):
    """A record as Kafka has it."""

    tp: TopicPartition
    offset: int
    key: bytes | None
    value: Mapping[str, Any]
    headers: Sequence[tuple[str, bytes]]

    def __repr__(self) -> str:
        return f"{self.tp} {self.offset}: {self.value['n']} of {self.key!r}"

    @property
    def filter_record(self) -> FilterRecord:
        return FilterRecord(self.key, json.dumps(self.value).encode(), self.headers)


@dataclass(frozen=True)
class ViewRequest:
    """What a client asks for.

    identity: What its token says.
    filters:  Of the route, with `CLAIM` wherever the identity stands.
    chosen:   The filter of the client itself.
    fields:   Of the route; some always show the number. chosen_fields: of the client.
    snapshot: The latest of each key comes first.
    """

    topics: tuple[str, ...]
    identity: str
    filters: Sequence[Any] = ()
    client_filter: Any = None
    fields: Sequence[str] = ()
    client_fields: Sequence[str] = ()
    format: str = "value"
    binary: str = "error"
    interval: str | None = None
    slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP
    has_snapshot: bool = False

    @property
    def view(self) -> View:
        """As the gateway makes it of a route and a request."""
        with_: dict[str, Any] = {
            "topics": list(self.topics), "filters": list(self.filters), "format": self.format,
            "binary": self.binary, "clientFilters": True, "clientFields": True,
            **({"fields": list(self.fields)} if self.fields else {}),
            **({"interval": self.interval} if self.interval else {}),
        }  # fmt: skip
        route = Route.model_validate({"when": [{"path": "/a"}], "with": with_})
        filters = Filters() if self.client_filter is None else parse_filter(self.client_filter)
        chosen = ClientSelection(filters, parse_fields(list(self.client_fields) or None))
        granted = Granted([Grant(GUARD_NAME, self.identity)])
        return build_route_view(
            route, TemplateValues({}, {}, granted), chosen, known_topics=self.topics
        )

    @property
    def is_conflated(self) -> bool:
        """Only the latest of each key is certain to come."""
        return (
            self.interval is not None
            or self.has_snapshot
            or self.slow_policy is SlowClientPolicy.CONFLATE
        )

    def can_see(self, record: WrittenRecord) -> bool:
        if record.tp.topic not in self.topics:
            return False
        own = [_fill_identity(each, self.identity) for each in self.filters]
        within = not own or matches_filters(own, record.filter_record)
        return within and (
            self.client_filter is None or matches_filters(self.client_filter, record.filter_record)
        )

    def project_value(self, record: WrittenRecord) -> Any:
        """What it is shown of the value."""
        fields = self.client_fields or self.fields
        return _select_paths(record.value, [each.split("/")[1:] for each in fields] or [[]])

    def parse_value(self, data: str) -> Any:
        """The value in the data of an event."""
        if self.format == "envelope":
            return json.loads(json.loads(data)["value"])
        if self.format == "cloudevents":
            return json.loads(data)["data"]
        return json.loads(base64.b64decode(data) if self.binary == "base64" else data)


@dataclass
class ViewSegment:
    """What a client got of one view, from where it began there.

    starts: Offsets. ends: where it went on as another view; none if it did not.
    gaps:   Partition, and the offsets from and to which there is nothing.
    kept:   How much of `got` and `gaps` it had as of its last id.
    """

    request: ViewRequest
    starts: Offsets
    ends: Offsets | None = None
    received_records: list[WrittenRecord] = field(default_factory=list)
    gaps: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    confirmed_counts: tuple[int, int] = (0, 0)
    _visible_by_number: dict[int, bool] = field(default_factory=dict, repr=False)

    def confirm_received(self) -> None:
        self.confirmed_counts = len(self.received_records), len(self.gaps)

    def discard_unconfirmed(self) -> None:
        """Its connection is gone, and what came after the last id comes again."""
        del self.received_records[self.confirmed_counts[0] :], self.gaps[self.confirmed_counts[1] :]

    def accept_event(self, data: str, records_by_number: Mapping[int, WrittenRecord]) -> None:
        """Raise Wrong for a record that is not of this view, or is shown otherwise."""
        content = self.request.parse_value(data)
        record = records_by_number[content["n"]]
        if not self._can_see(record):
            raise IsolationError(f"foreign: {record} to {self.request}")
        expected = self.request.project_value(record)
        if _to_canonical_json(content) != _to_canonical_json(expected):
            raise IsolationError(
                f"{_to_canonical_json(content)} of {record} to {self.request}, "
                f"not {_to_canonical_json(expected)}"
            )
        self.received_records.append(record)

    def find_missing(self, records: Iterable[WrittenRecord]) -> list[WrittenRecord]:
        """What is yet to come of what is there. Raises Wrong for what came twice, or in another
        order than that of its partition."""
        due = [each for each in records if self._is_due(each)]
        got: dict[TopicPartition, list[WrittenRecord]] = defaultdict(list)
        for each in self.received_records:
            before = got[each.tp]
            if before and before[-1].offset >= each.offset:
                raise IsolationError(
                    f"twice, or too late: {each} after {before[-1]} to {self.request}"
                )
            before.append(each)
        have = {(each.tp, each.offset) for each in self.received_records}
        early = have - {(each.tp, each.offset) for each in due}
        if early:
            raise IsolationError(f"not of this stretch: {sorted(early)} to {self}")
        if self.request.is_conflated:
            due = [] if self.ends is not None else _select_latest(due)
        return [each for each in due if (each.tp, each.offset) not in have]

    def _is_due(self, record: WrittenRecord) -> bool:
        tp, offset = record.tp, record.offset
        if not self.starts.get(tp, 0) <= offset < (self.ends or {}).get(tp, 1 << 62):
            return False
        if any(of == tp and start <= offset < end for of, start, end in self.gaps):
            return False
        return self._can_see(record)

    def _can_see(self, record: WrittenRecord) -> bool:
        """Found out once: values are long."""
        number = record.value["n"]
        if number not in self._visible_by_number:
            self._visible_by_number[number] = self.request.can_see(record)
        return self._visible_by_number[number]


def _select_latest(records: Sequence[WrittenRecord]) -> list[WrittenRecord]:
    """Of each key of a topic, and all without a key."""
    by_key: dict[Any, WrittenRecord] = {}
    for n, each in enumerate(records):
        by_key[each.tp.topic, n if each.key is None else each.key] = each
    return list(by_key.values())


def _fill_identity(template: Any, identity: str) -> Any:
    """The filter of a route, with the identity in its place."""
    if isinstance(template, str):
        return template.replace(IDENTITY_TEMPLATE, identity)
    if isinstance(template, Mapping):
        return {name: _fill_identity(each, identity) for name, each in template.items()}
    return (
        [_fill_identity(each, identity) for each in template]
        if isinstance(template, list)
        else template
    )


def _select_paths(value: Any, paths: Sequence[Sequence[str]]) -> Any:
    """Of nested objects, what these paths lead to."""
    if [] in paths or not isinstance(value, Mapping):
        return value
    below: dict[str, list[Sequence[str]]] = defaultdict(list)
    for step, *rest in paths:
        below[step].append(rest)
    kept = {
        name: _select_paths(each, below[name])
        for name, each in value.items()
        if name in below and ([] in below[name] or isinstance(each, Mapping))
    }
    return {name: each for name, each in kept.items() if each != {} or [] in below[name]}


def _to_canonical_json(value: Any) -> str:
    """Equal for values that are equal and of equal types: 1 is not true."""
    return json.dumps(value, sort_keys=True)
