"""Read single options from a file beside the configuration, named as in light-4j's `values.yml`.

    kafka-producer.keyFormat: binary
    health.timeout: 500

They override the configuration, and replace `${kafka-producer.keyFormat:string}` in it, which
otherwise is the default behind the colon. In this file times are milliseconds and sizes are bytes.
An option of a section that is not configured has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from gateway.errors import ConfigError

from . import yaml_document as source
from .substitution import suggest

_PRODUCER = ("sidecar", "producer")
_CONSUMER = ("sidecar", "consumer")
_GROUPS = ("sidecar", "reactive", "groups", "*")
_HEALTH = ("sidecar", "health")
_AUDIT = ("sidecar", "audit")
_IMPLICIT_SECTIONS = frozenset(
    {_HEALTH, ("listen",), ("kafka",), ()}
)  # sections that need not be written

Loc = tuple[str, ...]


class ValueKey(NamedTuple):
    """The paths of the options that a value sets, and its conversion to the YAML's form.

    In a path `*` stands for every item of a list.
    """

    locs: tuple[Loc, ...]
    parse: Callable[[Any], Any]


def _parse_any(value: Any) -> Any:
    return value


def _parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError("is neither true nor false; write true or false")


def _parse_number(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise ValueError("is not a whole number; write such as 100")


def _parse_millis(value: Any) -> str:
    return f"{_parse_number(value)}ms"


def _parse_bytes(value: Any) -> str:
    return f"{_parse_number(value)}B"


def _parse_percent(value: Any) -> str:
    return f"{_parse_number(value)}%"


def _parse_list(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items]


def _parse_audit_target(value: Any) -> str:
    return "topic" if _parse_flag(value) else "off"


def _list_consumer_locs(option: str, *, group_option: str | None = None) -> tuple[Loc, ...]:
    return ((*_CONSUMER, option), (*_GROUPS, *(group_option or option).split("/")))


VALUE_KEYS: Mapping[str, ValueKey] = {
    "kafka-producer.keyFormat": ValueKey(((*_PRODUCER, "keyFormat"),), _parse_any),
    "kafka-producer.valueFormat": ValueKey(((*_PRODUCER, "valueFormat"),), _parse_any),
    "kafka-producer.bootstrap.servers": ValueKey((("kafka", "servers"),), _parse_list),
    "kafka-producer.auditEnabled": ValueKey(((*_AUDIT, "to"),), _parse_audit_target),
    "kafka-producer.auditTopic": ValueKey(((*_AUDIT, "topic"),), _parse_any),
    "kafka-consumer.keyFormat": ValueKey(_list_consumer_locs("keyFormat"), _parse_any),
    "kafka-consumer.valueFormat": ValueKey(_list_consumer_locs("valueFormat"), _parse_any),
    "kafka-consumer.topic": ValueKey(((*_GROUPS, "topics"),), _parse_list),
    "kafka-consumer.groupId": ValueKey(((*_GROUPS, "group"),), _parse_any),
    "kafka-consumer.group.instance.id": ValueKey(((*_GROUPS, "instanceId"),), _parse_any),
    "kafka-consumer.bootstrap.servers": ValueKey((("kafka", "servers"),), _parse_list),
    "kafka-consumer.backendApiHost": ValueKey(((*_GROUPS, "backend", "host"),), _parse_any),
    "kafka-consumer.backendApiPath": ValueKey(((*_GROUPS, "backend", "path"),), _parse_any),
    "kafka-consumer.requestMaxBytes": ValueKey(
        _list_consumer_locs("requestMaxBytes"), _parse_bytes
    ),
    "kafka-consumer.fetch.max.bytes": ValueKey(_list_consumer_locs("fetchMaxBytes"), _parse_bytes),
    "kafka-consumer.max.partition.fetch.bytes": ValueKey(
        _list_consumer_locs("maxPartitionFetchBytes"), _parse_bytes
    ),
    "kafka-consumer.max.poll.records": ValueKey(
        _list_consumer_locs("maxPollRecords"), _parse_number
    ),
    "kafka-consumer.max.poll.interval.ms": ValueKey(
        ((*_GROUPS, "maxPollInterval"),), _parse_millis
    ),
    "kafka-consumer.session.timeout.ms": ValueKey(
        _list_consumer_locs("sessionTimeout"), _parse_millis
    ),
    "kafka-consumer.heartbeat.interval.ms": ValueKey(
        _list_consumer_locs("heartbeatInterval"), _parse_millis
    ),
    "kafka-consumer.auto.offset.reset": ValueKey(
        _list_consumer_locs("autoOffsetReset"), _parse_any
    ),
    "kafka-consumer.isolation.level": ValueKey(_list_consumer_locs("isolation"), _parse_any),
    "kafka-consumer.instanceTimeoutMs": ValueKey(((*_CONSUMER, "instanceTimeout"),), _parse_millis),
    "kafka-consumer.maxRetries": ValueKey(((*_GROUPS, "maxRetries"),), _parse_number),
    "kafka-consumer.retryDelayMs": ValueKey(((*_GROUPS, "retryDelay"),), _parse_millis),
    "kafka-consumer.batchRollbackThreshold": ValueKey(
        ((*_GROUPS, "batchRollbackThreshold"),), _parse_percent
    ),
    "kafka-consumer.deadLetterEnabled": ValueKey(((*_GROUPS, "deadLetterEnabled"),), _parse_flag),
    "kafka-consumer.deadLetterTopicExt": ValueKey(
        ((*_GROUPS, "deadLetterTopicExt"), ("sidecar", "deadLetter", "topicExt")), _parse_any
    ),
    "kafka-consumer.auditEnabled": ValueKey(((*_AUDIT, "to"),), _parse_audit_target),
    "kafka-consumer.auditTopic": ValueKey(((*_AUDIT, "topic"),), _parse_any),
    "health.enabled": ValueKey(((*_HEALTH, "enabled"),), _parse_flag),
    "health.useJson": ValueKey(((*_HEALTH, "useJson"),), _parse_flag),
    "health.timeout": ValueKey(((*_HEALTH, "timeout"),), _parse_millis),
    "health.downstreamEnabled": ValueKey(((*_HEALTH, "downstreamEnabled"),), _parse_flag),
    "health.downstreamHost": ValueKey(((*_HEALTH, "downstreamHost"),), _parse_any),
    "health.downstreamPath": ValueKey(((*_HEALTH, "downstreamPath"),), _parse_any),
    "server.ip": ValueKey((("listen", "host"),), _parse_any),
    "server.httpPort": ValueKey((("listen", "port"),), _parse_number),
    "server.httpsPort": ValueKey((("listen", "port"),), _parse_number),
    "server.maxTransferFileSize": ValueKey(((*_PRODUCER, "maxBytes"),), _parse_bytes),
    "server.serviceId": ValueKey((("name",),), _parse_any),
}
"""The keys that are read; others are refused."""


class ValuesFile(dict[str, Any]):
    @property
    def texts(self) -> dict[str, str]:
        return {key: _format_text(value) for key, value in self.items()}

    def apply_to(self, raw: Any) -> Any:
        if not self or not isinstance(raw, dict):
            return raw
        result: dict[str, Any] = _copy_tree(raw)
        for key, value in self.items():
            for loc in VALUE_KEYS[key].locs:
                _set_option(result, loc, VALUE_KEYS[key].parse(value))
        return result


def read_values(path: str | PathLike[str]) -> ValuesFile:
    name = str(path)
    try:
        text = source.decode_utf8(Path(path).read_bytes(), name=name)
    except OSError as error:
        raise ConfigError([f"{name}:1:1: cannot be read ({error.strerror}); check it"]) from None
    document = source.parse_document(text, name=name, environ={})
    values = document.values if isinstance(document.values, dict) else {}
    problems = list(document.problems)
    for key, value in values.items():
        marks = document.marks[key,]
        if key not in VALUE_KEYS:
            problems.append((marks.key, f"unknown key '{key}'; {suggest(key, VALUE_KEYS)}"))
            continue
        try:
            VALUE_KEYS[key].parse(value)
        except ValueError as error:
            problems.append((marks.value, f"{key}: {value!r} {error}"))
    if problems:
        raise ConfigError([document.format_line(*problem) for problem in sorted(problems)])
    return ValuesFile(values)


def _copy_tree(value: Any) -> Any:
    """Copy mappings and lists. Texts are shared, since they know how they were written."""
    if isinstance(value, dict):
        return {key: _copy_tree(item) for key, item in value.items()}
    return [_copy_tree(item) for item in value] if isinstance(value, list) else value


def _format_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _set_option(raw: dict[str, Any], loc: Loc, value: Any) -> None:
    *sections, option = loc
    for section in _iter_sections(raw, tuple(sections)):
        section[option] = value


def _iter_sections(raw: dict[str, Any], loc: Loc) -> Iterator[dict[str, Any]]:
    """Yield the sections at a path that are written; create those with defaults."""
    sections: list[Any] = [raw]
    for depth, step in enumerate(loc, 1):
        below: list[Any] = []
        for section in sections:
            if step == "*":
                below += section if isinstance(section, list) else [section]
            elif isinstance(section, dict):
                if section.get(step) is None and (
                    loc[:depth] in _IMPLICIT_SECTIONS or step == "backend"
                ):
                    section[step] = {}
                below.append(section.get(step))
        sections = below
    yield from (section for section in sections if isinstance(section, dict))
