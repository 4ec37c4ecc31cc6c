"""Read and write a table in Redis, which has the JSON of each key under a prefix.

If Redis does not answer now (the connection was refused or lost, a request timed out, the server is
loading, fails over or is full), all functions raise `RedisUnavailable`. If another try would not
help (a wrong password, an unknown certificate, a redirection of a cluster), they raise a
PipelineError.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gateway.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from redis import Redis

    from gateway.config.sections import pipelines as config

T = TypeVar("T")

LOADED_KEY = "!loaded"
"""The only key that is not a row of the table; see `RedisConfig.loaded_key`."""

# A server that does not answer for so long counts as unavailable. MGET of 2,000 keys takes 3 ms in
# the same network.
CONNECT_TIMEOUT_S = 2.0
RESPONSE_TIMEOUT_S = 5.0


# Errors without a class in redis-py: too few replicas, a script that runs, a full disk. In a
# pipeline, the command stands before the error.
_TRANSIENT_ERROR_PATTERN = re.compile(r"(?:^|caused error: )(?:NOREPLICAS|BUSY|MISCONF) ")


def is_url(text: str) -> bool:
    try:
        return text.startswith(("redis://", "rediss://", "unix://")) and urlsplit(text).port != 0
    except ValueError:  # a port that is no number of 16 bits, or half an IPv6 address
        return False


class RedisUnavailable(Exception):
    """Redis does not answer now, and may answer later."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """The location of a table, as Spark's workers need it, without pydantic."""

    url: str
    prefix: str
    keys_per_command: int
    password: str | None = field(default=None, repr=False)

    @classmethod
    def from_settings(cls, settings: config.Redis) -> RedisConfig:
        password = settings.password
        secret = None if password is None else password.get_secret_value()
        return cls(settings.url, settings.prefix, settings.batch, secret)

    @property
    def display_url(self) -> str:
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"

    @property
    def loaded_key(self) -> str:
        """Return the key of the hash that says how far the table was loaded.

        Its fields are `topic:partition` with the next offset, `at` with the time in ms since 1970,
        `batch of <job>` with the number of the last batch, and those that `jobs.load` describes.
        """
        return f"{self.prefix}{LOADED_KEY}"


def decode_texts(keys: pa.Array) -> list[str]:
    """Return strings of Spark as Python's.

    A string of Spark may have any bytes. Bytes that are not UTF-8 become surrogates, of which
    `encode_text` makes the same bytes.
    """
    return [key.decode(errors="surrogateescape") for key in keys.cast("binary").to_pylist()]


def encode_text(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


class RedisTable:
    """A table on a Redis server, with a connection that is opened when it is needed.

    A lost connection is opened again by the next request. `LookupTable` and the loader of a table
    each own one.
    """

    def __init__(self, server: RedisConfig) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._server = server
        options: dict[str, Any] = {} if server.password is None else {"password": server.password}
        try:
            self._client = redis.Redis.from_url(
                server.url,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=RESPONSE_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # the callers decide whether to retry
                **options,
            )
        except ValueError as error:
            raise PipelineError(f"{server.display_url} is no address of Redis: {error}") from None

    def fetch_values(self, keys: Sequence[str]) -> Iterator[tuple[Sequence[str], list[Any], float]]:
        """Yield the values of keys in chunks.

        Yields:
            A chunk of the keys, their values (None for keys without a row), and when they were
            requested, in seconds of `time.monotonic`.
        """
        prefix = self._server.prefix
        for chunk in _iter_batches(keys, self._server.keys_per_command):
            requested_at = time.monotonic()
            with _translate_errors(self._server, self._client):
                values: Any = self._client.mget([encode_text(prefix + key) for key in chunk])
            yield chunk, values, requested_at

    def store_rows(self, rows: Iterable[tuple[str, bytes | None]]) -> int:
        """Write rows to the table. If Redis does not answer, some rows may have been written.

        Args:
            rows: Keys and values; None deletes a key. The last row of a key counts.

        Returns:
            How many keys were written or deleted. A key in several commands counts several times.
        """
        prefix, count = self._server.prefix, 0
        for chunk in _iter_batches(rows, self._server.keys_per_command):
            latest = dict(chunk)
            encoded = {encode_text(prefix + key): value for key, value in latest.items()}
            written = {key: value for key, value in encoded.items() if value is not None}
            deleted = [key for key, value in encoded.items() if value is None]
            with _translate_errors(self._server, self._client):
                pipe = self._client.pipeline(transaction=False)
                if written:
                    pipe.mset(written)
                if deleted:
                    pipe.unlink(*deleted)
                pipe.execute()
            count += len(latest)
        return count

    def store_positions(self, positions: Mapping[str, int], at_ms: int) -> None:
        """Store the next offset of each `topic:partition` (see `RedisConfig.loaded_key`)."""
        with _translate_errors(self._server, self._client):
            fields: dict[Any, Any] = {**positions, "at": at_ms}
            self._client.hset(self._server.loaded_key, mapping=fields)

    def fetch_positions(self) -> dict[str, int]:
        """Return what `store_positions` has stored, including `at`; empty if it never has."""
        with _translate_errors(self._server, self._client):
            fields: Any = self._client.hgetall(self._server.loaded_key)
        return {key.decode(): int(value) for key, value in fields.items()}

    def close(self) -> None:
        self._client.close()


@contextmanager
def _translate_errors(server: RedisConfig, client: Redis) -> Iterator[None]:
    from redis import exceptions as e

    try:
        yield
    except e.RedisError as error:
        # Errors of authentication are subclasses of ConnectionError, and an untrusted certificate
        # is reported as a ConnectionError, but another try would not help.
        denied = (e.AuthenticationError, e.AuthorizationError)
        transient = (
            *(e.ConnectionError, e.TimeoutError, e.ClusterDownError, e.ReadOnlyError),
            *(e.TryAgainError, e.OutOfMemoryError),
        )  # fmt: skip
        is_untrusted = isinstance(error.__context__, SSLCertVerificationError)
        is_transient = isinstance(error, transient) or (
            isinstance(error, e.ResponseError) and _TRANSIENT_ERROR_PATTERN.search(str(error))
        )
        if is_transient and not isinstance(error, denied) and not is_untrusted:
            # After a failover, the address may lead to another server.
            client.connection_pool.disconnect(inuse_connections=False)
            raise RedisUnavailable(str(error)) from error
        problem = f"Redis at {server.display_url} refuses: {error}"
        raise PipelineError(f"{problem}; check the table's url and password") from error


def _iter_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
