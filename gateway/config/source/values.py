"""Single options from a file beside the configuration, in the words of light-4j's `values.yml`.

    kafka-producer.keyFormat: binary
    health.timeout: 500

They beat what the configuration says; and `${kafka-producer.keyFormat:string}` in it is such a
value, or what stands behind the colon. Times are milliseconds there, sizes bytes. What is for a
part that is not configured changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from gateway.errors import ConfigError

from . import yaml_source as source
from .expression import nearest

_PRODUCER = ("sidecar", "producer")
_CONSUMER = ("sidecar", "consumer")
_GROUPS = ("sidecar", "reactive", "groups", "*")
_HEALTH = ("sidecar", "health")
_AUDIT = ("sidecar", "audit")
_EVER = frozenset({_HEALTH, ("listen",), ("kafka",), ()})  # sections that need not be written

Way = tuple[str, ...]


class Key(NamedTuple):
    """Where a value goes, and as what. Raises ValueError from `read`."""

    ways: tuple[Way, ...]
    read: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError("is neither true nor false; write true or false")


def _number(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    raise ValueError("is not a whole number; write such as 100")


def _millis(value: Any) -> str:
    return f"{_number(value)}ms"


def _bytes(value: Any) -> str:
    return f"{_number(value)}B"


def _percent(value: Any) -> str:
    return f"{_number(value)}%"


def _listed(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items]


def _audited(value: Any) -> str:
    return "topic" if _flag(value) else "off"


def _both(option: str, *, groups: str | None = None) -> tuple[Way, ...]:
    """Of instances and of groups."""
    return ((*_CONSUMER, option), (*_GROUPS, *(groups or option).split("/")))


KEYS: Mapping[str, Key] = {
    "kafka-producer.keyFormat": Key(((*_PRODUCER, "keyFormat"),), _same),
    "kafka-producer.valueFormat": Key(((*_PRODUCER, "valueFormat"),), _same),
    "kafka-producer.bootstrap.servers": Key((("kafka", "servers"),), _listed),
    "kafka-producer.auditEnabled": Key(((*_AUDIT, "to"),), _audited),
    "kafka-producer.auditTopic": Key(((*_AUDIT, "topic"),), _same),
    "kafka-consumer.keyFormat": Key(_both("keyFormat"), _same),
    "kafka-consumer.valueFormat": Key(_both("valueFormat"), _same),
    "kafka-consumer.topic": Key(((*_GROUPS, "topics"),), _listed),
    "kafka-consumer.groupId": Key(((*_GROUPS, "group"),), _same),
    "kafka-consumer.group.instance.id": Key(((*_GROUPS, "instanceId"),), _same),
    "kafka-consumer.bootstrap.servers": Key((("kafka", "servers"),), _listed),
    "kafka-consumer.backendApiHost": Key(((*_GROUPS, "backend", "host"),), _same),
    "kafka-consumer.backendApiPath": Key(((*_GROUPS, "backend", "path"),), _same),
    "kafka-consumer.requestMaxBytes": Key(_both("requestMaxBytes"), _bytes),
    "kafka-consumer.fetch.max.bytes": Key(_both("fetchMaxBytes"), _bytes),
    "kafka-consumer.max.partition.fetch.bytes": Key(_both("maxPartitionFetchBytes"), _bytes),
    "kafka-consumer.max.poll.records": Key(_both("maxPollRecords"), _number),
    "kafka-consumer.max.poll.interval.ms": Key(_both("maxPollInterval"), _millis),
    "kafka-consumer.session.timeout.ms": Key(_both("sessionTimeout"), _millis),
    "kafka-consumer.heartbeat.interval.ms": Key(_both("heartbeatInterval"), _millis),
    "kafka-consumer.auto.offset.reset": Key(_both("autoOffsetReset"), _same),
    "kafka-consumer.isolation.level": Key(_both("isolation"), _same),
    "kafka-consumer.instanceTimeoutMs": Key(((*_CONSUMER, "instanceTimeout"),), _millis),
    "kafka-consumer.maxRetries": Key(((*_GROUPS, "maxRetries"),), _number),
    "kafka-consumer.retryDelayMs": Key(((*_GROUPS, "retryDelay"),), _millis),
    "kafka-consumer.batchRollbackThreshold": Key(((*_GROUPS, "batchRollbackThreshold"),), _percent),
    "kafka-consumer.deadLetterEnabled": Key(((*_GROUPS, "deadLetterEnabled"),), _flag),
    "kafka-consumer.deadLetterTopicExt": Key(
        ((*_GROUPS, "deadLetterTopicExt"), ("sidecar", "deadLetter", "topicExt")), _same
    ),
    "kafka-consumer.auditEnabled": Key(((*_AUDIT, "to"),), _audited),
    "kafka-consumer.auditTopic": Key(((*_AUDIT, "topic"),), _same),
    "health.enabled": Key(((*_HEALTH, "enabled"),), _flag),
    "health.useJson": Key(((*_HEALTH, "useJson"),), _flag),
    "health.timeout": Key(((*_HEALTH, "timeout"),), _millis),
    "health.downstreamEnabled": Key(((*_HEALTH, "downstreamEnabled"),), _flag),
    "health.downstreamHost": Key(((*_HEALTH, "downstreamHost"),), _same),
    "health.downstreamPath": Key(((*_HEALTH, "downstreamPath"),), _same),
    "server.ip": Key((("listen", "host"),), _same),
    "server.httpPort": Key((("listen", "port"),), _number),
    "server.httpsPort": Key((("listen", "port"),), _number),
    "server.maxTransferFileSize": Key(((*_PRODUCER, "maxBytes"),), _bytes),
    "server.serviceId": Key((("name",),), _same),
}
"""What is read of such a file."""


class Values(dict[str, Any]):
    """Of one file, by their keys."""

    @property
    def texts(self) -> dict[str, str]:
        """As they are put into other texts."""
        return {key: _text(value) for key, value in self.items()}

    def over(self, raw: Any) -> Any:
        """A configuration with them in it; the values as written are not changed."""
        if not self or not isinstance(raw, dict):
            return raw
        made: dict[str, Any] = _copied(raw)
        for key, value in self.items():
            for way in KEYS[key].ways:
                _put(made, way, KEYS[key].read(value))
        return made


def read(path: str | PathLike[str]) -> Values:
    """Raises ConfigError with every problem of the file."""
    name = str(path)
    try:
        text = source.decode(Path(path).read_bytes(), name=name)
    except OSError as error:
        raise ConfigError([f"{name}:1:1: cannot be read ({error.strerror}); check it"]) from None
    document = source.read(text, name=name, environ={})
    given = document.values if isinstance(document.values, dict) else {}
    problems = list(document.problems)
    for key, value in given.items():
        marks = document.marks[key,]
        if key not in KEYS:
            problems.append((marks.key, f"unknown key '{key}'; {nearest(key, KEYS)}"))
            continue
        try:
            KEYS[key].read(value)
        except ValueError as error:
            problems.append((marks.value, f"{key}: {value!r} {error}"))
    if problems:
        raise ConfigError([document.line(*problem) for problem in sorted(problems)])
    return Values(given)


def _copied(value: Any) -> Any:
    """Texts stay the same: they know how they were written."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _put(raw: dict[str, Any], way: Way, value: Any) -> None:
    *sections, option = way
    for section in _sections(raw, tuple(sections)):
        section[option] = value


def _sections(raw: dict[str, Any], way: Way) -> Iterator[dict[str, Any]]:
    """Those that are written; some are made."""
    found: list[Any] = [raw]
    for depth, step in enumerate(way, 1):
        below: list[Any] = []
        for each in found:
            if step == "*":
                below += each if isinstance(each, list) else [each]
            elif isinstance(each, dict):
                if each.get(step) is None and (way[:depth] in _EVER or step == "backend"):
                    each[step] = {}
                below.append(each.get(step))
        found = below
    yield from (each for each in found if isinstance(each, dict))
