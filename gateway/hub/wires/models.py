"""Apply the models and transforms of topics.

Models are applied where records come in and where clients' records go out. Behind them, transforms
extract keys and headers from records' values.

Everything behind the models (logs, filters, transforms, formats) sees JSON. A record whose schema
is not known yet is not handed on: its partition waits, and is read from there again once the
registry has answered (`Fetcher.start_work`), so nothing is lost and nothing overtakes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from gateway.config import Settings, Topic, Transform
from gateway.config.sections.kafka import Model as Named
from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Entry, Record, Skip
from gateway.errors import FormatError
from gateway.formats.codec import MAX_PARALLEL_LOADS, Codecs, SchemaNotLoaded
from gateway.formats.exact_values import InvalidValue, RawValue
from gateway.formats.model import Model
from gateway.kafka.fetch.fetcher import ModelResult, TopicModel

log = logging.getLogger(__name__)

NOT_JSON = "not-json"


def header_names(transforms: Sequence[Transform]) -> frozenset[str]:
    """Return the names of all headers that transforms set, in lower case."""
    return frozenset(name.lower() for transform in transforms for name in transform.extract_headers)


class Transformer:
    """Apply the `transforms` of a topic to its entries.

    A value that has no such field changes nothing, nor does one that is not JSON, of which
    `on_unreadable` is told.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        on_unreadable: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self._transforms = transforms
        self._on_unreadable = on_unreadable

    def __call__(self, entry: Entry) -> Entry:
        if type(entry) is not Record or entry.value is None:
            return entry
        try:
            value: Any = parse_json(entry.value)
        except orjson.JSONDecodeError:
            self._on_unreadable(entry)
            return entry
        return self._extract_fields(entry, value)

    def _extract_fields(self, record: Record, value: Any) -> Record:
        key, headers = record.key, list(record.headers)
        for transform in self._transforms:
            if transform.extract_key is not None:
                content = transform.extract_key.extract(record.key, value)
                key = key if content is None else content.encode()
            for name, template in transform.extract_headers.items():
                content = template.extract(record.key, value)
                if content is not None:
                    headers.append((name, content.encode()))
        return record._replace(key=key, headers=tuple(headers))


class Models:
    """The models of the topics of one hub, which creates it at each start and closes it.

    `invalid` counts the records that do not match their model, by topic and by what was done; those
    of `count_unreadable` by `NOT_JSON`.
    """

    def __init__(self, settings: Settings, get_topic_settings: Callable[[str], Topic]) -> None:
        self._get_topic_settings = get_topic_settings
        self._catalogs = settings.catalogs
        self._codecs: dict[str, Codecs] = {}
        self._retired_codecs: list[Codecs] = []  # of changed catalogs: reads may still use them
        # With the settings that each was built by: other settings are another object.
        self._topic_models: dict[str, tuple[Topic, TopicModel | None]] = {}
        self.invalid: Counter[tuple[str, str]] = Counter()

    async def close(self) -> None:
        for codecs in (*self._codecs.values(), *self._retired_codecs):
            await codecs.close()

    def apply_settings(self, settings: Settings) -> None:
        for name, codecs in list(self._codecs.items()):
            if settings.catalogs.get(name) != self._catalogs.get(name):
                self._retired_codecs.append(codecs)
                del self._codecs[name]
        self._catalogs = settings.catalogs
        self._topic_models.clear()

    def get_topic_model(self, topic: str) -> TopicModel | None:
        """Return what decodes the entries of a topic; None if nothing has to be done."""
        settings = self._get_topic_settings(topic)
        cached = self._topic_models.get(topic)
        if cached is None or cached[0] is not settings:
            cached = self._topic_models[topic] = (settings, self._create_topic_model(settings))
        return cached[1]

    def has_model(self, topic: str) -> bool:
        """Return whether keys or values of a topic are decoded, and so may be invalid."""
        settings = self._get_topic_settings(topic)
        return settings.key.is_decoded or settings.value.is_decoded

    def select_decoded(self, topics: Iterable[str]) -> frozenset[str]:
        """Return those of topics whose values are decoded into JSON."""
        return frozenset(
            topic for topic in topics if self._get_topic_settings(topic).value.is_decoded
        )

    async def encode_record(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Return a key and a value as Kafka is to have them.

        Raises:
            FormatError: The key or the value does not match its model.
            RegistryUnavailable: A schema is needed, and the registry cannot be reached.
        """
        settings = self._get_topic_settings(topic)
        if key is not None and settings.key.is_decoded:
            key = await self._create_model(settings.key, is_key=True).encode(topic, key)
        if value is not None and settings.value.is_decoded:
            value = await self._create_model(settings.value, is_key=False).encode(topic, value)
        return key, value

    async def preview(self, record: Record) -> Record | None:
        """Return a record to be written as streams will show it; None if they will skip it.

        It is decoded and transformed, before any filter.
        """
        topic_model, shown = self.get_topic_model(record.tp.topic), [record]
        while topic_model is not None:
            result = topic_model([record])
            if result.load_schemas is None:
                shown = [entry for entry in result.entries if type(entry) is Record]
                break
            await result.load_schemas()
        transforms = self._get_topic_settings(record.tp.topic).transforms
        if shown and transforms:
            transformed = Transformer(transforms)(shown[0])
            assert type(transformed) is Record
            return transformed
        return shown[0] if shown else None

    def count_unreadable(self, record: Record) -> None:
        """Count a value that is no JSON where filters or transforms look into it; log the first."""
        topic = record.tp.topic
        if not self.invalid[topic, NOT_JSON]:
            what = "filters and transforms find nothing in it; correct who writes it"
            log.warning("the value at %s offset %d is no JSON: %s", record.tp, record.offset, what)
        self.invalid[topic, NOT_JSON] += 1

    def _create_topic_model(self, settings: Topic) -> TopicModel | None:
        key = self._create_field_model(settings, settings.key, is_key=True)
        value = self._create_field_model(settings, settings.value, is_key=False)
        parts = [part for part in (key, value) if part is not None]
        return _RecordModel(parts) if parts else None

    def _create_field_model(
        self, topic: Topic, named: Named, *, is_key: bool
    ) -> _FieldModel | None:
        if not named.is_decoded:
            return None
        return _FieldModel(
            topic.name,
            self._create_model(named, is_key=is_key),
            named.on_invalid,
            is_key,
            self.invalid,
        )

    def _create_model(self, named: Named, *, is_key: bool) -> Model:
        """Create the model of keys or values; models of one catalog share its codecs."""
        if named.catalog is None:
            return Model(named.model, is_key=is_key)
        codecs = self._codecs.get(named.catalog)
        if codecs is None:
            codecs = self._codecs[named.catalog] = Codecs(self._catalogs[named.catalog])
        return Model(named.model, codecs, is_key=is_key)


@dataclass(eq=False, slots=True)
class _FieldModel:
    _topic: str
    model: Model
    _on_invalid: str
    _is_key: bool
    _invalid_counts: Counter[tuple[str, str]]

    def get_data(self, record: Record) -> bytes | None:
        """Return the key or the value of a record, with the frame that a header may have for it."""
        if record.headers:
            record = self.model.frame_record(record)
        return record.key if self._is_key else record.value

    def decode_field(self, record: Record, data: bytes) -> Record | Skip:
        """Return the record with the field decoded, or as it is shown if that is invalid."""
        try:
            decoded = self.model.decode(data)
        except FormatError as exc:
            return self._handle_invalid(record, exc)
        return record._replace(key=decoded) if self._is_key else record._replace(value=decoded)

    def _handle_invalid(self, record: Record, exc: FormatError) -> Record | Skip:
        self._invalid_counts[self._topic, self._on_invalid] += 1
        if self._on_invalid == "skip":
            return Skip(record.tp, record.offset, record.next_offset, record.epoch)
        if self._on_invalid == "raw":
            return record if self._is_key else record._replace(value=RawValue(record.value or b""))
        description = f"its key: {exc}" if self._is_key else str(exc)
        return record._replace(value=InvalidValue.create(record.value, description))


class _RecordModel:
    """Decode the keys and values of one topic; a `TopicModel`."""

    def __init__(self, parts: Sequence[_FieldModel]) -> None:
        self._fields = parts

    def __call__(self, entries: Sequence[Entry]) -> ModelResult:
        decoded: list[Entry] = []
        for n, entry in enumerate(entries):
            try:
                decoded.append(self._decode_record(entry) if type(entry) is Record else entry)
            except SchemaNotLoaded:
                # Asks for schemas of those that follow as well, to wait once.
                return ModelResult(decoded, partial(self._load_schemas, entries[n:]))
        return ModelResult(decoded)

    def _decode_record(self, record: Record) -> Record | Skip:
        """Decode a record, the key first; one with an invalid key is shown as invalid."""
        for part in self._fields:
            if type(record.value) is InvalidValue:  # an error of the key, which stays
                break
            data = part.get_data(record)
            if not data:
                continue
            result = part.decode_field(record, data)
            if isinstance(result, Skip):
                return result
            record = result
        return record

    async def _load_schemas(self, entries: Sequence[Entry]) -> None:
        """Fetch the first schemas that these entries need, in parallel."""
        loads = []
        for part in self._fields:
            contents = [part.get_data(entry) for entry in entries if type(entry) is Record]
            missing = (part.model.find_missing_id(data) for data in contents if data)
            ids = list(dict.fromkeys(id for id in missing if id is not None))
            loads.append(part.model.load_schema_ids(ids[:MAX_PARALLEL_LOADS]))
        await asyncio.gather(*loads)
