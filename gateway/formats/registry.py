"""Look up and register schemas in a schema registry (Confluent's API), and cache them.

The schema of an id or of a version never changes and is cached while there is room. The latest
version is looked up again after `maxAge`; while the registry is away the cached one is used longer.
The error for a schema that does not exist, or cannot be used, is cached for MISSING_TTL_S only, as
it may be registered next. Concurrent lookups of the same schema share one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from copy import copy
from sys import getsizeof
from time import monotonic
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from gateway.config import SchemaRegistry
from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.config.types.substitution import find_closest
from gateway.core.caches import SizedCache
from gateway.errors import FormatError, RegistryUnavailable, SchemaNotFound
from gateway.telemetry.logs import create_detached_task

from .registry_client import RegistryClient, RegistryNotFound, RegistryRejected
from .serialization import SchemaReference, SerializationFormat

MISSING_TTL_S = 5.0  # seconds for which it is cached that a schema does not exist
MAX_MISSING_BYTES = 4 << 20  # of all that is cached about these: clients choose the ids and texts
_MISSING_BYTES = 1000  # of an error, beside the key
# Of one schema, with its references. Those of a key and of a value are compiled at the same time.
MAX_SCHEMA_BYTES = 2 << 20
MAX_CACHED_BYTES = 32 << 20
MAX_ID = (1 << 31) - 1  # of a schema: Java's int, as is the number in the frame of a value
MAX_REFERENCE_DEPTH = 32  # references of references
MAX_REFERENCES = 1_000  # of one schema, with the references of its references


SchemaId: TypeAlias = int | str
"""The id of a schema in its registry, or its GUID, which is the same in all registries."""


class Schema(NamedTuple):
    """A schema of the registry. Each reference comes after those that it refers to itself."""

    id: SchemaId
    format: SerializationFormat
    text: str
    references: Mapping[str, str]

    @property
    def size(self) -> int:
        return _measure_texts([self.text, *self.references.values()])


class _CachedSchema(NamedTuple):
    schema: Schema
    expires_at: float


class _CachedError(NamedTuple):
    error: FormatError
    expires_at: float


class CachedRegistryClient:
    """The schemas of one registry.

    `Codecs` creates and owns it, and closes it in the event loop in which it made requests. Keys of
    the cache are an id, `(subject, version)` with None for the latest, or the arguments of
    `get_or_register`. A key has at most one task, which is removed when it ends.

    The methods raise FormatError for a schema that does not exist or cannot be used, and those that
    ask the registry raise RegistryUnavailable.

    Args:
        max_bytes: How many bytes the texts of cached schemas may take.
    """

    def __init__(
        self,
        catalog: SchemaRegistry,
        now: Callable[[], float] = monotonic,
        *,
        max_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._client = RegistryClient(catalog)
        self._catalog = catalog
        self._now = now
        self._schemas: SizedCache[Hashable, _CachedSchema] = SizedCache(max_bytes)
        self._errors: SizedCache[Hashable, _CachedError] = SizedCache(MAX_MISSING_BYTES)
        self._tasks: dict[Hashable, asyncio.Task[Schema]] = {}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def get_cached(self, key: Hashable) -> Schema | None:
        """Return a schema from the cache by its key; None if the registry must be asked."""
        now = self._now()
        if (known := self._errors.get(key)) is not None and known.expires_at > now:
            # A copy, since the traceback of an exception keeps what those had who caught it.
            raise copy(known.error)
        cached = self._schemas.get(key)
        return None if cached is None or cached.expires_at <= now else cached.schema

    async def get_by_id(self, id: SchemaId) -> Schema:
        return await self._get_or_fetch(id, lambda: self._fetch_by_id(id))

    async def get_by_version(self, subject: str, version: int | None) -> Schema:
        """Return the schema of a version; None for the latest."""
        ttl_s = self._catalog.max_age if version is None else None
        return await self._get_or_fetch(
            (subject, version), lambda: self._fetch_by_version(subject, version), ttl_s
        )

    async def get_or_register(
        self,
        subject: str,
        format: SerializationFormat,
        text: str,
        references: tuple[SchemaReference, ...],
    ) -> Schema:
        """Return the schema of a text, registering it if `autoRegister` allows that."""
        key = (subject, format, text, references)
        return await self._get_or_fetch(key, lambda: self._get_or_register(*key))

    async def _get_or_fetch(
        self,
        key: Hashable,
        fetch: Callable[[], Coroutine[Any, Any, Schema]],
        ttl_s: float | None = None,
    ) -> Schema:
        if (cached := self.get_cached(key)) is not None:
            return cached
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = create_detached_task(self._fetch(key, fetch, ttl_s))
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        # Shielded, as others may wait for the same task when this caller is cancelled.
        return await asyncio.shield(task)

    def _on_fetched(self, key: Hashable, task: asyncio.Task[Schema]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            # Marks the exception as retrieved: all callers may have been cancelled.
            task.exception()

    async def _fetch(
        self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, Schema]], ttl_s: float | None
    ) -> Schema:
        """Ask the registry and cache its answer for `ttl_s` seconds; None for good."""
        key_bytes = getsizeof(repr(key))  # it may have the text of a client
        try:
            schema = await fetch()
        except FormatError as exc:
            self._schemas.remove(key)
            known = _CachedError(copy(exc), self._now() + MISSING_TTL_S)
            self._errors.store(key, known, key_bytes + _MISSING_BYTES)
            raise
        except RegistryUnavailable:
            # The registry is away: use the latest version as known before, for a while.
            expired = self._schemas.get(key)
            if expired is None:
                raise
            schema, ttl_s = expired.schema, MISSING_TTL_S
        self._errors.remove(key)
        expires_at = float("inf") if ttl_s is None else self._now() + ttl_s
        self._schemas.store(key, _CachedSchema(schema, expires_at), key_bytes + schema.size)
        return schema

    # Requests.

    async def _fetch_by_id(self, id: SchemaId) -> Schema:
        if isinstance(id, int) and id > MAX_ID:  # to a registry its path is unknown
            raise SchemaNotFound(f"{id} is no id of a schema; write with one of the registry's")
        try:
            response = await self._client.request(
                "GET",
                f"/schemas/{'ids' if isinstance(id, int) else 'guids'}/{id}",
                is_expected=_is_schema,
            )
        except RegistryNotFound as exc:
            problem = f"the registry has no schema with the id {id} ({exc})"
            raise SchemaNotFound(f"{problem}; write with one of its schemas") from None
        except RegistryRejected as exc:
            raise FormatError(f"the registry gives no schema with the id {id}: {exc}") from None
        return await self._build_schema(id, response)

    async def _fetch_by_version(self, subject: str, version: int | None) -> Schema:
        response = await self._fetch_version(subject, version)
        return await self._build_schema(response["id"], response)

    async def _fetch_version(
        self, subject: str, version: int | None, *, include_deleted: bool = False
    ) -> Any:
        label = "latest" if version is None else str(version)
        query = "?deleted=true" if include_deleted else ""
        try:
            response = await self._client.request(
                "GET",
                f"/subjects/{quote(subject, '')}/versions/{label}{query}",
                is_expected=lambda response: _is_schema(response) and _has_id(response),
            )
        except RegistryNotFound as exc:
            if exc.code == 40402 and version is not None:  # version not found
                problem = f"subject '{subject}' has no version {version}"
                raise SchemaNotFound(f"{problem}; use one that it has, or leave it out") from None
            if exc.code == 40401 or version is None:  # subject not found
                raise await self._build_unknown_subject(subject) from None
            raise FormatError(f"the registry gives no {label} of '{subject}': {exc}") from None
        except RegistryRejected as exc:
            raise FormatError(f"the registry gives no {label} of '{subject}': {exc}") from None
        return response

    async def _get_or_register(
        self,
        subject: str,
        format: SerializationFormat,
        text: str,
        references: tuple[SchemaReference, ...],
    ) -> Schema:
        """Ask for the id of a text: one path registers it, the other only looks it up."""
        quoted = quote(subject, "")
        path = (
            f"/subjects/{quoted}/versions" if self._catalog.auto_register else f"/subjects/{quoted}"
        )
        body: dict[str, Any] = {"schema": text}
        if format is not SerializationFormat.AVRO:
            body["schemaType"] = format.schema_type
        if references:
            body["references"] = [reference._asdict() for reference in references]
        try:
            response = await self._client.request("POST", path, body, is_expected=_has_id)
        except RegistryNotFound as exc:
            if exc.code == 40401:  # subject not found
                raise await self._build_unknown_subject(subject) from None
            problem = f"subject '{subject}' has no such schema"
            raise FormatError(f"{problem}; register it, or use one that it has") from None
        except RegistryRejected as exc:
            reason = "incompatible with earlier ones" if exc.status == 409 else "refused"
            raise FormatError(f"the schema for subject '{subject}' is {reason}: {exc}") from None
        texts = await self._fetch_references([reference._asdict() for reference in references], {})
        return Schema(response["id"], format, text, texts)

    async def _build_schema(self, id: SchemaId, response: Any) -> Schema:
        kind = response.get("schemaType") or "AVRO"  # the registry leaves it out for Avro
        formats = (each for each in SERIALIZATION_FORMATS.values() if each.schema_type == kind)
        format = next(formats, None)
        if format is None:
            raise FormatError(f"schema {id} is of a kind that is not known here: {kind}")
        _check_size(f"schema {id}", [response["schema"]])
        try:
            texts = await self._fetch_references(response.get("references") or [], {})
        except FormatError as exc:
            raise type(exc)(f"the references of schema {id} cannot be used: {exc}") from None
        return Schema(id, format, response["schema"], texts)

    async def _fetch_references(
        self, references: Any, seen: dict[tuple[str, int], Any], depth: int = 0
    ) -> dict[str, str]:
        """Return the texts of references and of their references, by name, innermost first.

        Each is asked for once and kept in `seen`: if every schema had two references to the same
        two schemas, there would be 2**32 at a depth of 32.
        """
        if depth > MAX_REFERENCE_DEPTH:
            raise FormatError(
                f"references of schemas go deeper than {MAX_REFERENCE_DEPTH}; flatten them"
            )
        texts: dict[str, str] = {}
        for reference in references:
            version = reference["subject"], reference["version"]
            if (response := seen.get(version)) is not None:
                texts.setdefault(reference["name"], response["schema"])
                continue
            if len(seen) >= MAX_REFERENCES:
                raise FormatError(f"a schema has over {MAX_REFERENCES} references; merge them")
            # A schema can still be read by references that were deleted after its registration.
            response = seen[version] = await self._fetch_version(*version, include_deleted=True)
            _check_size("a schema", [response["schema"] for response in seen.values()])
            inner = await self._fetch_references(response.get("references") or [], seen, depth + 1)
            texts |= {name: text for name, text in inner.items() if name not in texts}
            texts.setdefault(reference["name"], response["schema"])
        return texts

    async def _build_unknown_subject(self, subject: str) -> SchemaNotFound:
        try:
            response = await self._client.request(
                "GET", "/subjects", is_expected=lambda response: isinstance(response, list)
            )
        except (RegistryNotFound, RegistryRejected, RegistryUnavailable):
            response = []
        closest = find_closest(subject, [name for name in response if isinstance(name, str)])
        hint = f"did you mean '{closest}'?" if closest else "register a schema for it"
        return SchemaNotFound(f"the registry has no subject '{subject}'; {hint}")


def _measure_texts(texts: Iterable[str]) -> int:
    return sum(map(getsizeof, texts))


def _check_size(label: str, texts: Iterable[str]) -> None:
    if _measure_texts(texts) > MAX_SCHEMA_BYTES:
        size = f"{MAX_SCHEMA_BYTES >> 20} MiB, with its references"
        raise FormatError(f"{label} has more than {size}; divide it")


def _has_id(response: Any) -> bool:
    id = response.get("id") if isinstance(response, dict) else None
    return type(id) is int and 0 <= id <= MAX_ID


def _is_schema(response: Any) -> bool:
    if not isinstance(response, dict) or not isinstance(response.get("schema"), str):
        return False
    references = response.get("references") or []
    return isinstance(response.get("schemaType") or "AVRO", str) and (
        isinstance(references, list)
        and all(
            isinstance(reference, dict)
            and isinstance(reference.get("name"), str)
            and isinstance(reference.get("subject"), str)
            and type(reference.get("version")) is int
            for reference in references
        )
    )
