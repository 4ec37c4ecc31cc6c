"""Read single options from a file beside the configuration, named as in light-4j's `values.yml`.

    kafka-producer.keyFormat: binary
    health.timeout: 500

They override the configuration, and replace `${kafka-producer.keyFormat:string}` in it, which
otherwise is the default behind the colon. In this file times are milliseconds and sizes are bytes.
An option of a section that is not configured has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config.types.substitution import suggest
from gateway.errors import ConfigError

from . import yaml_document as source

_PRODUCER = "sidecar.producer"
_CONSUMER = "sidecar.consumer"
_GROUPS = "sidecar.reactive.groups.*"
_HEALTH = "sidecar.health"
_AUDIT = "sidecar.audit"
_IMPLICIT_SECTIONS = frozenset({"sidecar.health", "listen", "kafka"})  # need not be written


class ValueKey(NamedTuple):
    """The options that a value sets, and its conversion to the YAML's form.

    In the path of an option `*` stands for every item of a list.
    """

    options: tuple[str, ...]
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


def _of_consumers(option: str, parse: Callable[[Any], Any]) -> ValueKey:
    return ValueKey((f"{_CONSUMER}.{option}", f"{_GROUPS}.{option}"), parse)


def _of_groups(option: str, parse: Callable[[Any], Any], *others: str) -> ValueKey:
    return ValueKey((f"{_GROUPS}.{option}", *others), parse)


def _of(option: str, parse: Callable[[Any], Any]) -> ValueKey:
    return ValueKey((option,), parse)


VALUE_KEYS: Mapping[str, ValueKey] = {
    "kafka-producer.keyFormat": _of(f"{_PRODUCER}.keyFormat", _parse_any),
    "kafka-producer.valueFormat": _of(f"{_PRODUCER}.valueFormat", _parse_any),
    "kafka-producer.bootstrap.servers": _of("kafka.servers", _parse_list),
    "kafka-producer.auditEnabled": _of(f"{_AUDIT}.to", _parse_audit_target),
    "kafka-producer.auditTopic": _of(f"{_AUDIT}.topic", _parse_any),
    "kafka-consumer.keyFormat": _of_consumers("keyFormat", _parse_any),
    "kafka-consumer.valueFormat": _of_consumers("valueFormat", _parse_any),
    "kafka-consumer.topic": _of_groups("topics", _parse_list),
    "kafka-consumer.groupId": _of_groups("group", _parse_any),
    "kafka-consumer.group.instance.id": _of_groups("instanceId", _parse_any),
    "kafka-consumer.bootstrap.servers": _of("kafka.servers", _parse_list),
    "kafka-consumer.backendApiHost": _of_groups("backend.host", _parse_any),
    "kafka-consumer.backendApiPath": _of_groups("backend.path", _parse_any),
    "kafka-consumer.requestMaxBytes": _of_consumers("requestMaxBytes", _parse_bytes),
    "kafka-consumer.fetch.max.bytes": _of_consumers("fetchMaxBytes", _parse_bytes),
    "kafka-consumer.max.partition.fetch.bytes": _of_consumers(
        "maxPartitionFetchBytes", _parse_bytes
    ),
    "kafka-consumer.max.poll.records": _of_consumers("maxPollRecords", _parse_number),
    "kafka-consumer.max.poll.interval.ms": _of_groups("maxPollInterval", _parse_millis),
    "kafka-consumer.session.timeout.ms": _of_consumers("sessionTimeout", _parse_millis),
    "kafka-consumer.heartbeat.interval.ms": _of_consumers("heartbeatInterval", _parse_millis),
    "kafka-consumer.auto.offset.reset": _of_consumers("autoOffsetReset", _parse_any),
    "kafka-consumer.isolation.level": _of_consumers("isolation", _parse_any),
    "kafka-consumer.instanceTimeoutMs": _of(f"{_CONSUMER}.instanceTimeout", _parse_millis),
    "kafka-consumer.maxRetries": _of_groups("maxRetries", _parse_number),
    "kafka-consumer.retryDelayMs": _of_groups("retryDelay", _parse_millis),
    "kafka-consumer.batchRollbackThreshold": _of_groups("batchRollbackThreshold", _parse_percent),
    "kafka-consumer.deadLetterEnabled": _of_groups("deadLetterEnabled", _parse_flag),
    "kafka-consumer.deadLetterTopicExt": _of_groups(
        "deadLetterTopicExt", _parse_any, "sidecar.deadLetter.topicExt"
    ),
    "kafka-consumer.auditEnabled": _of(f"{_AUDIT}.to", _parse_audit_target),
    "kafka-consumer.auditTopic": _of(f"{_AUDIT}.topic", _parse_any),
    "health.enabled": _of(f"{_HEALTH}.enabled", _parse_flag),
    "health.useJson": _of(f"{_HEALTH}.useJson", _parse_flag),
    "health.timeout": _of(f"{_HEALTH}.timeout", _parse_millis),
    "health.downstreamEnabled": _of(f"{_HEALTH}.downstreamEnabled", _parse_flag),
    "health.downstreamHost": _of(f"{_HEALTH}.downstreamHost", _parse_any),
    "health.downstreamPath": _of(f"{_HEALTH}.downstreamPath", _parse_any),
    "server.ip": _of("listen.host", _parse_any),
    "server.httpPort": _of("listen.port", _parse_number),
    "server.httpsPort": _of("listen.port", _parse_number),
    "server.maxTransferFileSize": _of(f"{_PRODUCER}.maxBytes", _parse_bytes),
    "server.serviceId": _of("name", _parse_any),
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
            options, parse = VALUE_KEYS[key]
            for path in options:
                *sections, option = path.split(".")
                for section in _iter_sections(result, sections):
                    section[option] = parse(value)
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


def _iter_sections(raw: dict[str, Any], steps: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the sections at a path that are written; create those with defaults."""
    sections: list[Any] = [raw]
    for depth, step in enumerate(steps, 1):
        below: list[Any] = []
        for section in sections:
            if step == "*":
                below += section if isinstance(section, list) else [section]
            elif isinstance(section, dict):
                is_implicit = ".".join(steps[:depth]) in _IMPLICIT_SECTIONS or step == "backend"
                if is_implicit and section.get(step) is None:
                    section[step] = {}
                below.append(section.get(step))
        sections = below
    yield from (section for section in sections if isinstance(section, dict))
