"""A table in Redis: the JSON of each key, under a prefix.

Redis that is away (connection refused or lost, a timeout, a server that is loading or fails over)
is an `Away`; what asking again cannot mend (a wrong password, a certificate of nobody known, the
redirection of a cluster) is a PipelineError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gateway.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from gateway.config.sections import pipelines as config

T = TypeVar("T")

LOADED_KEY = "!loaded"
"""The one key that is no row of the table: see `Server.loaded`."""

# A server that says nothing for so long is away: MGET of 2,000 keys takes 3 ms on a near one.
CONNECT_TIMEOUT_S = 2.0
RESPONSE_TIMEOUT_S = 5.0


class RedisUnavailable(Exception):
    """Redis does not answer now; later it may."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where a table is: what a worker needs to know, without pydantic.

    chunk: keys of one command.
    """

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
        """Its address without what is secret in the URL."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"

    @property
    def loaded_key(self) -> str:
        """The key of a hash that the loader keeps: `topic:partition` to the next offset, and
        `at`, in ms since 1970."""
        return f"{self.prefix}{LOADED_KEY}"


def decode_texts(keys: pa.Array) -> list[str]:
    """Return keys as Spark's strings, which are any bytes: those that are no UTF-8 as surrogates,
    which `encode_text` makes the same bytes of."""
    return [each.decode(errors="surrogateescape") for each in keys.cast("binary").to_pylist()]


def encode_text(text: str) -> bytes:
    """Return the bytes of a text of `texts`."""
    return text.encode(errors="surrogateescape")


def is_utf8(text: str) -> bool:
    """Return whether a key of `texts` was UTF-8."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


class RedisTable:
    """A connection, made when it is needed and again when it was lost."""

    def __init__(self, server: RedisConfig) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._server = server
        given: dict[str, Any] = {} if server.password is None else {"password": server.password}
        try:
            self._client = redis.Redis.from_url(
                server.url,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=RESPONSE_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # whether to ask again is not decided here
                **given,
            )
        except ValueError as error:
            raise PipelineError(f"{server.display_url} is no address of Redis: {error}") from None

    def fetch_values(self, keys: Sequence[str]) -> Iterator[tuple[Sequence[str], list[Any], float]]:
        """Chunks of the keys, their values (None: it has none), and when they were asked for, by
        `time.monotonic`. Raises Away, PipelineError."""
        prefix = self._server.prefix
        for chunk in _iter_batches(keys, self._server.keys_per_command):
            asked = time.monotonic()
            with _ErrorTranslator(self._server):
                values: Any = self._client.mget([encode_text(prefix + key) for key in chunk])
            yield chunk, values, asked

    def store_rows(self, rows: Iterable[tuple[str, bytes | None]]) -> int:
        """Write rows, None deletes; the last of a key wins. How many. Raises as `values`."""
        prefix, count = self._server.prefix, 0
        for chunk in _iter_batches(rows, self._server.keys_per_command):
            latest = dict(chunk)
            coded = {encode_text(prefix + key): value for key, value in latest.items()}
            kept = {key: value for key, value in coded.items() if value is not None}
            gone = [key for key, value in coded.items() if value is None]
            with _ErrorTranslator(self._server):
                pipe = self._client.pipeline(transaction=False)
                if kept:
                    pipe.mset(kept)
                if gone:
                    pipe.unlink(*gone)
                pipe.execute()
            count += len(latest)
        return count

    def store_positions(self, positions: Mapping[str, int], at_ms: int) -> None:
        """How far the table is loaded: see `Server.loaded`. Raises as `values`."""
        with _ErrorTranslator(self._server):
            noted: dict[Any, Any] = {**positions, "at": at_ms}
            self._client.hset(self._server.loaded_key, mapping=noted)

    def fetch_positions(self) -> dict[str, int]:
        """What `note` noted, empty before. Raises as `values`."""
        with _ErrorTranslator(self._server):
            found: Any = self._client.hgetall(self._server.loaded_key)
        return {key.decode(): int(value) for key, value in found.items()}

    def close(self) -> None:
        self._client.close()


class _ErrorTranslator:
    """Tells apart what is mended by asking again."""

    def __init__(self, server: RedisConfig) -> None:
        self._server = server

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from redis import exceptions as e

        denied = (e.AuthenticationError, e.AuthorizationError)
        passing = (
            e.ConnectionError, e.TimeoutError, e.MasterDownError, e.ReadOnlyError, e.TryAgainError,
        )  # fmt: skip
        untrusted = error is not None and isinstance(error.__context__, SSLCertVerificationError)
        if isinstance(error, passing) and not isinstance(error, denied) and not untrusted:
            raise RedisUnavailable(str(error)) from error
        if isinstance(error, e.RedisError):
            what = f"Redis at {self._server.display_url} refuses: {error}"
            raise PipelineError(f"{what}; check the table's url and password") from error


def _iter_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
