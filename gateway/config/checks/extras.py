"""Check that the extras that a configuration needs are installed.

The checks work on the values as written, as in `crosscheck`. The needs of jobs in the section
`pipelines` are checked when they run: `gateway pipeline check` and `list` need no extra. So are
those of an embedded Kafka, which a librdkafka of the system can run, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.source.substitution import UnresolvedText
from gateway.config.types.formats import SerializationFormat
from gateway.config.types.section import Problem, as_list, as_mapping
from gateway.extras import describe_missing_extra

from .clusters import iter_clusters

Loc = tuple[str | int, ...]

FORMAT_EXTRAS: Mapping[SerializationFormat, str] = {
    SerializationFormat.AVRO: "avro",
    SerializationFormat.PROTOBUF: "protobuf",
}
"""The extra with the codec of a format; other formats need none."""
_FORMAT_KEYS = ("keyFormat", "valueFormat")


def check_extras(raw: Mapping[str, Any]) -> Iterator[Problem]:
    for loc, extra in _iter_needed(raw):
        if problem := describe_missing_extra(extra):
            yield Problem(loc, problem)


def _iter_needed(raw: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    for loc, _, kafka in iter_clusters(raw):
        for index, topic in enumerate(as_list(kafka.get("topics"))):
            for part in ("key", "value"):
                written = as_mapping(as_mapping(topic).get(part)).get("model")
                if extra := _find_format_extra(written):
                    yield (*loc, "topics", index, part, "model"), extra
    telemetry = as_mapping(raw.get("telemetry"))
    for signal in ("metrics", "traces"):
        if as_mapping(telemetry.get(signal)).get("otlp") is not None:
            yield ("telemetry", signal, "otlp"), "otel"
    yield from _iter_sidecar_formats(as_mapping(raw.get("sidecar")))


def _iter_sidecar_formats(sidecar: Mapping[Any, Any]) -> Iterator[tuple[Loc, str]]:
    if as_mapping(sidecar.get("ksqldb")):
        yield ("sidecar", "ksqldb"), "ksqldb"
    sections: list[tuple[Loc, Mapping[Any, Any]]] = [
        (("sidecar", str(name)), as_mapping(section)) for name, section in sidecar.items()
    ]
    topics = as_mapping(sidecar.get("topics"))
    sections += [
        (("sidecar", "topics", str(name)), as_mapping(formats)) for name, formats in topics.items()
    ]
    for loc, section in sections:
        for key in _FORMAT_KEYS:
            if extra := _find_format_extra(section.get(key)):
                yield (*loc, key), extra


def _find_format_extra(written: object) -> str | None:
    if not isinstance(written, str) or isinstance(written, UnresolvedText):
        return None
    format = SerializationFormat.find(written)
    return None if format is None else FORMAT_EXTRAS.get(format)
