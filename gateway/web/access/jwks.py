"""Load the keys of an issuer from the configuration, or fetch them from a URL.

Keys of a URL are fetched again when they are older than `refresh`, without delaying the requests
that use them, and when a token names a key that is not among them. Two fetches are at least
`cooldown` apart, so that clients cannot cause a request each with tokens that name invented keys. A
key counts as unknown only if a fetch that began after it was asked for did not find it: the issuer
may have begun to use it since the last one. Until then nobody can decide. While the issuer is
unavailable, the last keys are used until `maxAge`.

OpenID Connect Discovery 1.0 finds that URL: the metadata at
`<issuer>/.well-known/openid-configuration` names the issuer, which must be the configured one to
the letter, and the URL of the keys. A URL that was found is used for as long as keys are
(`jwks.refresh`), and forgotten when the keys cannot be fetched from it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.config import Jwk, Jwks
from gateway.core.backoff import BackoffPolicy

from .external_http import ExternalHttp, ExternalHttpError, parse_json

MAX_JWKS_BYTES = 256 * 1024  # bytes of a JWKS; those of large issuers have 10 KB
MAX_KEYS = 100  # keys of a JWKS that are looked at
MAX_WANTED_KEYS = 10_000  # keys that were asked for since the last fetch, of a guard
FIRST_RETRY_DELAY_S = 2.0  # at most, until the first retry; doubled up to `cooldown`

log = logging.getLogger(__name__)


class KeysUnavailable(Exception):
    """There are no keys to verify a token with. The message says why."""


class KeySet:
    """Keys by id and algorithm; it never changes."""

    def __init__(self, keys: Iterable[Jwk]) -> None:
        self._jwks = tuple(keys)
        self._keys = [(jwk.kid, jwk.algorithms, jwk.load_key()) for jwk in self._jwks]

    def __len__(self) -> int:
        return len(self._jwks)

    @property
    def algorithms(self) -> frozenset[str]:
        return frozenset(algorithm for _, algorithms, _ in self._keys for algorithm in algorithms)

    def has_same_keys(self, other: KeySet | None) -> bool:
        """Return whether another set has the same keys in the same order."""
        return other is not None and self._jwks == other._jwks

    def find(self, kid: str | None, algorithm: str) -> list[Any]:
        """Return the keys that may have signed a token.

        Their id is `kid`, or they have none. Without `kid`, these are all keys with this algorithm.
        """
        return [
            key
            for key_id, algorithms, key in self._keys
            if algorithm in algorithms and (kid is None or key_id is None or key_id == kid)
        ]

    @classmethod
    def parse(cls, body: bytes) -> KeySet:
        """Parse a JWKS (RFC 7517 5); a `ValueError` if it is none or none of its keys can be used.

        Keys of unknown kinds are skipped, and so are shared secrets, which anybody could read at
        the URL.
        """
        document = parse_json(body)
        raw_keys = document.get("keys") if isinstance(document, Mapping) else None
        if not isinstance(raw_keys, list):
            raise ValueError("it has no list of keys")
        keys = [
            key
            for raw_key in raw_keys[:MAX_KEYS]
            if (key := _parse_public_key(raw_key)) is not None
        ]
        if raw_keys and not keys:
            raise ValueError("none of its keys can be used")
        return cls(keys)


def _parse_public_key(raw: object) -> Jwk | None:
    try:
        key = Jwk.model_validate(raw)
    except ValidationError:
        return None
    return key if key.kty != "oct" and key.algorithms else None


async def request_keys(url: str, settings: Jwks, external_http: ExternalHttp) -> KeySet:
    """Fetch the keys of an issuer. The message of an `ExternalHttpError` has the URL."""
    try:
        response = await external_http.get(
            url, timeout_s=settings.timeout, max_body_bytes=MAX_JWKS_BYTES
        )
    except ExternalHttpError as exc:
        raise ExternalHttpError(f"its keys cannot be fetched from {url}: {exc}") from None
    if response.status != 200:
        what = f"{url} answers {response.describe_status()} without keys"
        raise ExternalHttpError(f"{what}; correct keys, or ask the issuer")
    try:
        return KeySet.parse(response.body)
    except ValueError as exc:
        raise ExternalHttpError(f"{url} has no keys: {exc}; correct keys") from None


@dataclass(eq=False)
class KeySource:
    """The source of a guard's keys, here those of the configuration. Owned by a `JwtGuard`."""

    _keys: KeySet | None

    async def get_current(self) -> KeySet:
        """Return the keys; raise `KeysUnavailable` if there are none or they are too old."""
        assert self._keys is not None
        return self._keys

    def find_problem(self) -> str | None:
        """Return why there are no keys that may be used; None if there are or if nobody knows yet.

        It does not wait. If it is time to fetch the keys again, that begins.
        """
        return None

    async def get_newer(self, known: KeySet, kid: str | None, algorithm: str) -> KeySet:
        """Return newer keys, which may have that one, or those known if the issuer has no such key.

        Raise `KeysUnavailable` if the issuer could not be asked.
        """
        return known


@dataclass(eq=False)
class RemoteKeySource(KeySource):
    """Keys of a URL, which may have to be discovered from the issuer.

    At most one fetch runs at a time; a failed one keeps the keys. `_keys` is replaced only by other
    keys, so that its identity says whether a cached result is still valid.
    """

    _keys: KeySet | None = field(default=None, init=False)
    _guard_name: str
    _location: str | IssuerDiscovery  # the URL, or what finds it
    _settings: Jwks
    _external_http: ExternalHttp
    _clock: Callable[[], float] = time.monotonic
    _fetched_at: float = 0.0  # when the last successful fetch ended
    _next_fetch_at: float = 0.0  # no fetch may start before
    _failures: int = 0  # fetches that failed in a row
    _last_failure: str = ""  # why the last of them failed
    _fetch_task: asyncio.Task[None] | None = None
    # Hashes of keys that the set does not have: those that were asked for since the last fetch
    # began, and those before it.
    _wanted_keys: set[int] = field(default_factory=set)
    _missing_keys: set[int] = field(default_factory=set)

    async def get_current(self) -> KeySet:
        """Return the keys. It waits only if there are none that may be used."""
        now = self._clock()
        age = now - self._fetched_at
        if self._keys is None or age > self._settings.max_age:
            await self._refresh()
            # Older than `maxAge`, and the fetch has failed or was too soon after one that had.
            if self._keys is None or self._failures:
                raise KeysUnavailable("the keys of the issuer cannot be fetched")
        elif age > self._settings.refresh and now >= self._next_fetch_at:
            # The old keys are still good: fetch new ones without delaying this request.
            self._start_fetch()
        return self._keys

    def find_problem(self) -> str | None:
        now = self._clock()
        if self._keys is not None and now - self._fetched_at <= self._settings.max_age:
            return None
        if now >= self._next_fetch_at:
            self._start_fetch()
        return self._last_failure if self._failures else None

    async def get_newer(self, known: KeySet, kid: str | None, algorithm: str) -> KeySet:
        wanted_key = hash((kid, algorithm))
        if len(self._wanted_keys) < MAX_WANTED_KEYS:
            self._wanted_keys.add(wanted_key)
        if self._keys is known:
            await self._refresh()
        if self._keys is None or (self._keys is known and self._failures):
            raise KeysUnavailable("the issuer cannot be asked whether it has a new key")
        if wanted_key not in self._missing_keys and not self._keys.find(kid, algorithm):
            raise KeysUnavailable("the issuer may have a new key, which is not fetched yet")
        return self._keys

    async def _refresh(self) -> None:
        """Fetch the keys unless it is too soon; all callers wait for the same fetch."""
        if self._fetch_task is None:
            if self._clock() < self._next_fetch_at:
                return
            self._start_fetch()
        assert self._fetch_task is not None
        # Shielded: when one client leaves, the others still wait for the same fetch.
        await asyncio.shield(self._fetch_task)

    def _start_fetch(self) -> None:
        if self._fetch_task is None:
            self._fetch_task = asyncio.create_task(self._fetch())
            self._fetch_task.add_done_callback(self._on_fetch_done)

    def _on_fetch_done(self, task: asyncio.Task[None]) -> None:
        self._fetch_task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("guard %s: fetching keys failed", self._guard_name, exc_info=error)

    async def _fetch(self) -> None:
        """Fetch the keys, and set when the next fetch may start. A failure is not raised."""
        wanted_keys, self._wanted_keys = self._wanted_keys, set()
        try:
            keys = await self._request_keys()
        except ExternalHttpError as exc:
            self._failures += 1
            self._last_failure = str(exc)
            policy = BackoffPolicy(FIRST_RETRY_DELAY_S, self._settings.cooldown)
            delay = policy.compute_delay(self._failures, random.random)
            self._next_fetch_at = self._clock() + delay
            if self._failures == 1:
                log.warning("guard %s: no keys from its issuer: %s", self._guard_name, exc)
            return
        if self._failures:
            log.info("guard %s: its issuer gives keys again", self._guard_name)
        self._failures = 0
        self._missing_keys = wanted_keys
        # Equal keys must stay the same object, or all cached tokens would be verified again.
        if not keys.has_same_keys(self._keys):
            self._keys = keys
        self._fetched_at = self._clock()
        self._next_fetch_at = self._fetched_at + self._settings.cooldown

    async def _request_keys(self) -> KeySet:
        if isinstance(self._location, str):
            return await request_keys(self._location, self._settings, self._external_http)
        url = await self._location.find_jwks_url()
        try:
            return await request_keys(url, self._settings, self._external_http)
        except ExternalHttpError:
            self._location.forget()  # the keys may have moved
            raise


MAX_METADATA_BYTES = 64 * 1024  # bytes of an issuer's metadata; those of large issuers have 5 KB


def parse_jwks_url(body: bytes, issuer: str) -> str:
    """Return the URL of an issuer's keys, or raise a `ValueError` if it cannot be used."""
    hint = "correct issuer, or add keys"
    try:
        metadata = parse_json(body)
    except ValueError as exc:
        raise ValueError(f"{exc}; {hint}") from None
    if not isinstance(metadata, Mapping):
        raise ValueError(f"it is no JSON object; {hint}")
    named = metadata.get("issuer")
    if named != issuer:  # 4.3: otherwise anyone who is asked could vouch for another issuer
        raise ValueError(
            f"it is of the issuer {str(named)[:200]!r}, not {issuer!r}; correct issuer"
        )
    url = metadata.get("jwks_uri")
    if not isinstance(url, str):
        raise ValueError(f"it has no jwks_uri; {hint}")
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError(f"its jwks_uri {url[:200]!r} is no URL; ask the issuer to correct it")
    if parts.scheme != "https" and not (parts.scheme == "http" and issuer.startswith("http://")):
        raise ValueError("its jwks_uri is no https URL; ask the issuer to correct it")
    return url


def build_metadata_url(issuer: str) -> str:
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"


async def request_jwks_url(issuer: str, settings: Jwks, external_http: ExternalHttp) -> str:
    """Ask an issuer for the URL of its keys. An `ExternalHttpError` says what to do."""
    metadata_url = build_metadata_url(issuer)
    try:
        response = await external_http.get(
            metadata_url, timeout_s=settings.timeout, max_body_bytes=MAX_METADATA_BYTES
        )
    except ExternalHttpError as exc:
        what = "the issuer's metadata cannot be fetched"
        raise ExternalHttpError(f"{what} from {metadata_url}: {exc}") from None
    if response.status != 200:
        what = f"{metadata_url} answers {response.describe_status()} without metadata"
        raise ExternalHttpError(f"{what}; correct issuer, or add keys")
    try:
        return parse_jwks_url(response.body, issuer)
    except ValueError as exc:
        raise ExternalHttpError(f"{metadata_url} cannot be used: {exc}") from None


@dataclass(eq=False)
class IssuerDiscovery:
    """Finds the URL of an issuer's keys, for one request at a time."""

    _issuer: str
    _settings: Jwks
    _external_http: ExternalHttp
    _clock: Callable[[], float] = time.monotonic
    _url: str | None = None
    _found_at: float = 0.0

    async def find_jwks_url(self) -> str:
        if self._url is None or self._clock() - self._found_at >= self._settings.refresh:
            self._url = await request_jwks_url(self._issuer, self._settings, self._external_http)
            self._found_at = self._clock()
        return self._url

    def forget(self) -> None:
        self._url = None
