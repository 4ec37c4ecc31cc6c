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

from support.filter_oracle import Shown, passes

from gateway.config import Route
from gateway.config.types.filters import fields_of, filters_of
from gateway.core.channel.filters import Filters
from gateway.core.client.slow_client import SlowClient
from gateway.core.log.record import TopicPartition
from gateway.hub.fanout.view import View
from gateway.web.access import Grant, Granted
from gateway.web.routing.views import Chosen, Fill, view_of

GUARD = "users"
CLAIM = f"${{guarded['{GUARD}'].identity}}"

Offsets = dict[TopicPartition, int]


class Wrong(AssertionError):
    """A client was shown what it may not see, or not shown what it may."""


class Written(NamedTuple):
    """A record as Kafka has it."""

    tp: TopicPartition
    offset: int
    key: bytes | None
    value: Mapping[str, Any]
    headers: Sequence[tuple[str, bytes]]

    def __repr__(self) -> str:
        return f"{self.tp} {self.offset}: {self.value['n']} of {self.key!r}"

    @property
    def shown(self) -> Shown:
        return Shown(self.key, json.dumps(self.value).encode(), self.headers)


@dataclass(frozen=True)
class Ask:
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
    chosen: Any = None
    fields: Sequence[str] = ()
    chosen_fields: Sequence[str] = ()
    format: str = "value"
    binary: str = "error"
    interval: str | None = None
    slow: SlowClient = SlowClient.CATCH_UP
    snapshot: bool = False

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
        filters = Filters() if self.chosen is None else filters_of(self.chosen)
        chosen = Chosen(filters, fields_of(list(self.chosen_fields) or None))
        granted = Granted([Grant(GUARD, self.identity)])
        return view_of(route, Fill({}, {}, granted), chosen, known=self.topics)

    @property
    def conflates(self) -> bool:
        """Only the latest of each key is certain to come."""
        return self.interval is not None or self.snapshot or self.slow is SlowClient.CONFLATE

    def sees(self, written: Written) -> bool:
        if written.tp.topic not in self.topics:
            return False
        own = [_claimed(each, self.identity) for each in self.filters]
        within = not own or passes(own, written.shown)
        return within and (self.chosen is None or passes(self.chosen, written.shown))

    def content(self, written: Written) -> Any:
        """What it is shown of the value."""
        fields = self.chosen_fields or self.fields
        return _cut(written.value, [each.split("/")[1:] for each in fields] or [[]])

    def read(self, data: str) -> Any:
        """The value in the data of an event."""
        if self.format == "envelope":
            return json.loads(json.loads(data)["value"])
        if self.format == "cloudevents":
            return json.loads(data)["data"]
        return json.loads(base64.b64decode(data) if self.binary == "base64" else data)


@dataclass
class Stretch:
    """What a client got of one view, from where it began there.

    starts: Offsets. ends: where it went on as another view; none if it did not.
    gaps:   Partition, and the offsets from and to which there is nothing.
    kept:   How much of `got` and `gaps` it had as of its last id.
    """

    ask: Ask
    starts: Offsets
    ends: Offsets | None = None
    got: list[Written] = field(default_factory=list)
    gaps: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    kept: tuple[int, int] = (0, 0)
    _seen: dict[int, bool] = field(default_factory=dict, repr=False)

    def keep(self) -> None:
        self.kept = len(self.got), len(self.gaps)

    def forget(self) -> None:
        """Its connection is gone, and what came after the last id comes again."""
        del self.got[self.kept[0] :], self.gaps[self.kept[1] :]

    def hear(self, data: str, written: Mapping[int, Written]) -> None:
        """Raise Wrong for a record that is not of this view, or is shown otherwise."""
        content = self.ask.read(data)
        record = written[content["n"]]
        if not self._sees(record):
            raise Wrong(f"foreign: {record} to {self.ask}")
        expected = self.ask.content(record)
        if _text(content) != _text(expected):
            raise Wrong(f"{_text(content)} of {record} to {self.ask}, not {_text(expected)}")
        self.got.append(record)

    def missing(self, written: Iterable[Written]) -> list[Written]:
        """What is yet to come of what is there. Raises Wrong for what came twice, or in another
        order than that of its partition."""
        due = [each for each in written if self._is_due(each)]
        got: dict[TopicPartition, list[Written]] = defaultdict(list)
        for each in self.got:
            before = got[each.tp]
            if before and before[-1].offset >= each.offset:
                raise Wrong(f"twice, or too late: {each} after {before[-1]} to {self.ask}")
            before.append(each)
        have = {(each.tp, each.offset) for each in self.got}
        early = have - {(each.tp, each.offset) for each in due}
        if early:
            raise Wrong(f"not of this stretch: {sorted(early)} to {self}")
        if self.ask.conflates:
            due = [] if self.ends is not None else _latest(due)
        return [each for each in due if (each.tp, each.offset) not in have]

    def _is_due(self, each: Written) -> bool:
        tp, offset = each.tp, each.offset
        if not self.starts.get(tp, 0) <= offset < (self.ends or {}).get(tp, 1 << 62):
            return False
        if any(of == tp and start <= offset < end for of, start, end in self.gaps):
            return False
        return self._sees(each)

    def _sees(self, each: Written) -> bool:
        """Found out once: values are long."""
        number = each.value["n"]
        if number not in self._seen:
            self._seen[number] = self.ask.sees(each)
        return self._seen[number]


def _latest(due: Sequence[Written]) -> list[Written]:
    """Of each key of a topic, and all without a key."""
    by_key: dict[Any, Written] = {}
    for n, each in enumerate(due):
        by_key[each.tp.topic, n if each.key is None else each.key] = each
    return list(by_key.values())


def _claimed(filter: Any, identity: str) -> Any:
    """The filter of a route, with the identity in its place."""
    if isinstance(filter, str):
        return filter.replace(CLAIM, identity)
    if isinstance(filter, Mapping):
        return {name: _claimed(each, identity) for name, each in filter.items()}
    return [_claimed(each, identity) for each in filter] if isinstance(filter, list) else filter


def _cut(value: Any, paths: Sequence[Sequence[str]]) -> Any:
    """Of nested objects, what these paths lead to."""
    if [] in paths or not isinstance(value, Mapping):
        return value
    below: dict[str, list[Sequence[str]]] = defaultdict(list)
    for step, *rest in paths:
        below[step].append(rest)
    kept = {
        name: _cut(each, below[name])
        for name, each in value.items()
        if name in below and ([] in below[name] or isinstance(each, Mapping))
    }
    return {name: each for name, each in kept.items() if each != {} or [] in below[name]}


def _text(value: Any) -> str:
    """Equal for values that are equal and of equal types: 1 is not true."""
    return json.dumps(value, sort_keys=True)
