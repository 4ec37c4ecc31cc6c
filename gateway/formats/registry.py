"""Schemas, as a schema registry has them (Confluent's API), and a memory of them.

What an id or a version names never changes and is kept; which schema is the latest is asked
again after `maxAge`, and believed for longer while the registry is away. That there is none
is kept for a moment only: it may be registered next. Who asks for what is being asked for
waits for the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.config import SchemaRegistry
from gateway.config.source.expression import find_closest
from gateway.errors import FormatError, RegistryUnavailable
from gateway.telemetry.log_context import create_detached_task

from .registry_client import RegistryClient, RegistryNotFound, RegistryRejected
from .serialization import SchemaReference, SerializationFormat

MISSING_TTL_S = 5.0  # seconds for which nobody asks again for what is not there
MAX_CACHED_MISSING = 1_000  # that are kept
MAX_REFERENCE_DEPTH = 32  # references of references
MAX_REFERENCES = 1_000  # of one schema, and theirs

_SCHEMA_TYPES = {
    SerializationFormat.AVRO: "AVRO",
    SerializationFormat.PROTOBUF: "PROTOBUF",
    SerializationFormat.JSONSCHEMA: "JSON",
}
_FORMATS = {kind: format for format, kind in _SCHEMA_TYPES.items()}


class Schema(NamedTuple):
    """A schema, and those it refers to by their names there, the innermost first."""

    id: int
    format: SerializationFormat
    text: str
    references: Mapping[str, str]


class _CacheEntry(NamedTuple):
    result: Schema | FormatError
    expires_at: float


class CachedRegistryClient:
    """One registry; `close` it in the loop that asked."""

    def __init__(self, catalog: SchemaRegistry, now: Callable[[], float] = monotonic) -> None:
        self._client = RegistryClient(catalog)
        self._catalog = catalog
        self._now = now
        self._cache: dict[Hashable, _CacheEntry] = {}
        self._tasks: dict[Hashable, asyncio.Task[Schema]] = {}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def get_cached(self, key: Hashable) -> Schema | None:
        """What is kept under a key: an id, `(subject, version)`, or what `written` was given.
        None where the registry is to be asked. Raises FormatError for what is not there."""
        kept = self._cache.get(key)
        if kept is None or kept.expires_at <= self._now():
            return None
        if isinstance(kept.result, FormatError):
            raise kept.result.with_traceback(None)
        return kept.result

    async def get_by_id(self, id: int) -> Schema:
        """Raises FormatError, RegistryUnavailable; so do the next ones."""
        return await self._get_or_fetch(id, lambda: self._fetch_by_id(id))

    async def get_by_version(self, subject: str, version: int | None) -> Schema:
        """version: None for the latest."""
        age = self._catalog.max_age if version is None else None
        return await self._get_or_fetch(
            (subject, version), lambda: self._fetch_by_version(subject, version), age
        )

    async def get_or_register(
        self,
        subject: str,
        format: SerializationFormat,
        text: str,
        references: tuple[SchemaReference, ...],
    ) -> Schema:
        """The schema of that text under a subject, registered where `autoRegister` says so."""
        key = (subject, format, text, references)
        return await self._get_or_fetch(key, lambda: self._get_or_register(*key))

    async def _get_or_fetch(
        self,
        key: Hashable,
        fetch: Callable[[], Coroutine[Any, Any, Schema]],
        ttl_s: float | None = None,
    ) -> Schema:
        if (found := self.get_cached(key)) is not None:
            return found
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = create_detached_task(self._fetch(key, fetch, ttl_s))
            task.add_done_callback(lambda done: self._on_fetched(key, done))
        return await asyncio.shield(task)

    def _on_fetched(self, key: Hashable, done: asyncio.Task[Schema]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()  # who asked may have gone

    async def _fetch(
        self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, Schema]], ttl_s: float | None
    ) -> Schema:
        try:
            found = await fetch()
        except FormatError as exc:
            self._evict_missing()
            self._cache[key] = _CacheEntry(exc, self._now() + MISSING_TTL_S)
            raise
        except RegistryUnavailable:
            before = self._cache.get(key)
            if before is None or isinstance(before.result, FormatError):
                raise
            self._cache[key] = before._replace(expires_at=self._now() + MISSING_TTL_S)
            return before.result
        self._cache[key] = _CacheEntry(
            found, float("inf") if ttl_s is None else self._now() + ttl_s
        )
        return found

    def _evict_missing(self) -> None:
        missing = [key for key, kept in self._cache.items() if isinstance(kept.result, FormatError)]
        for key in missing[: max(0, len(missing) - MAX_CACHED_MISSING)]:
            del self._cache[key]

    # what is asked

    async def _fetch_by_id(self, id: int) -> Schema:
        try:
            said = await self._client.request("GET", f"/schemas/ids/{id}")
        except RegistryNotFound:
            what = f"the registry has no schema with the id {id}"
            raise FormatError(f"{what}; write with one of its schemas") from None
        except RegistryRejected as exc:
            raise FormatError(f"the registry gives no schema with the id {id}: {exc}") from None
        return await self._build_schema(id, said)

    async def _fetch_by_version(self, subject: str, version: int | None) -> Schema:
        said = await self._fetch_version(subject, version)
        return await self._build_schema(said["id"], said)

    async def _fetch_version(self, subject: str, version: int | None) -> Any:
        at = "latest" if version is None else str(version)
        try:
            said = await self._client.request(
                "GET", f"/subjects/{quote(subject, '')}/versions/{at}"
            )
        except RegistryNotFound as exc:
            if exc.code == 40402 and version is not None:
                what = f"subject '{subject}' has no version {version}"
                raise FormatError(f"{what}; use one that it has, or leave it out") from None
            raise await self._build_unknown_subject(subject) from None
        except RegistryRejected as exc:
            raise FormatError(f"the registry gives no {at} of '{subject}': {exc}") from None
        if not isinstance(said, dict) or not isinstance(said.get("id"), int):
            raise FormatError(f"the registry's {at} of '{subject}' has no id; correct url")
        return said

    async def _get_or_register(
        self,
        subject: str,
        format: SerializationFormat,
        text: str,
        references: tuple[SchemaReference, ...],
    ) -> Schema:
        named = quote(subject, "")
        path = (
            f"/subjects/{named}/versions" if self._catalog.auto_register else f"/subjects/{named}"
        )
        body: dict[str, Any] = {"schema": text}
        if format is not SerializationFormat.AVRO:
            body["schemaType"] = _SCHEMA_TYPES[format]
        if references:
            body["references"] = [each._asdict() for each in references]
        try:
            said = await self._client.request("POST", path, body)
        except RegistryNotFound as exc:
            if exc.code == 40401:
                raise await self._build_unknown_subject(subject) from None
            what = f"subject '{subject}' has no such schema"
            raise FormatError(f"{what}; register it, or use one that it has") from None
        except RegistryRejected as exc:
            why = "incompatible with earlier ones" if exc.status == 409 else "refused"
            raise FormatError(f"the schema for subject '{subject}' is {why}: {exc}") from None
        used = await self._fetch_references([each._asdict() for each in references], {})
        return Schema(said["id"], format, text, used)

    async def _build_schema(self, id: int, response: Any) -> Schema:
        kind = response.get("schemaType", "AVRO") if isinstance(response, dict) else None
        if kind not in _FORMATS or not isinstance(response.get("schema"), str):
            raise FormatError(f"schema {id} is of a kind that is not known here: {kind}")
        used = await self._fetch_references(response.get("references") or [], {})
        return Schema(id, _FORMATS[kind], response["schema"], used)

    async def _fetch_references(
        self, references: Any, seen: dict[tuple[str, int], Any], depth: int = 0
    ) -> dict[str, str]:
        """The texts of references and theirs, the innermost first.

        asked: what the registry said of each, which is asked for once: two references to the same
        two, and so on, are 2**32 at a depth of 32.
        """
        if depth > MAX_REFERENCE_DEPTH:
            raise FormatError(
                f"references of schemas go deeper than {MAX_REFERENCE_DEPTH}; flatten them"
            )
        found: dict[str, str] = {}
        for each in references:
            place = each["subject"], each["version"]
            if (said := seen.get(place)) is not None:
                found.setdefault(each["name"], said["schema"])
                continue
            if len(seen) >= MAX_REFERENCES:
                raise FormatError(f"a schema has over {MAX_REFERENCES} references; merge them")
            said = seen[place] = await self._fetch_version(*place)
            inner = await self._fetch_references(said.get("references") or [], seen, depth + 1)
            found |= {name: text for name, text in inner.items() if name not in found}
            found.setdefault(each["name"], said["schema"])
        return found

    async def _build_unknown_subject(self, subject: str) -> FormatError:
        """That there is no such subject, with the one that is most like it."""
        try:
            said = await self._client.request("GET", "/subjects")
        except (RegistryNotFound, RegistryRejected, RegistryUnavailable):
            said = []
        names = [name for name in said if isinstance(name, str)] if isinstance(said, list) else []
        near = find_closest(subject, names)
        hint = f"did you mean '{near}'?" if near else "register a schema for it"
        return FormatError(f"the registry has no subject '{subject}'; {hint}")
