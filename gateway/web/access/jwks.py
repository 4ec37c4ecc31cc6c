"""The keys of an issuer: those of the file, or of a URL, kept and fetched anew.

Fetched anew when they are older than `refresh`, beside the requests that use them, and when a
token names a key that is not among them, but not sooner than `cooldown` after the last time: who
sends tokens with invented keys does not make us ask for each. While the issuer is away, the keys
that are here serve until `maxAge`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from gateway.config import Jwk, Jwks

from .external_http import ExternalHttp, ExternalHttpError

MAX_JWKS_BYTES = 256 * 1024  # bytes of a JWKS; those of large issuers have 10 KB
MAX_KEYS = 100  # keys of one that are looked at
FIRST_RETRY_DELAY_S = 1.0  # seconds, doubled up to `cooldown`

log = logging.getLogger(__name__)


class KeysUnavailable(Exception):
    """There are no keys to judge a token by. The message says why."""


class KeySet:
    """Keys by id and algorithm."""

    def __init__(self, keys: Iterable[Jwk]) -> None:
        self._jwks = tuple(keys)
        self._keys = [(each.kid, each.algorithms, each.load_key()) for each in self._jwks]

    def __len__(self) -> int:
        return len(self._jwks)

    @property
    def algorithms(self) -> frozenset[str]:
        """What its keys are good for."""
        return frozenset(each for _, algorithms, _ in self._keys for each in algorithms)

    def has_same_keys(self, other: KeySet | None) -> bool:
        return other is not None and self._jwks == other._jwks

    def find(self, kid: str | None, algorithm: str) -> list[Any]:
        """Those that may have signed it; all that are good for the algorithm where the token
        names none."""
        return [
            key
            for own, algorithms, key in self._keys
            if algorithm in algorithms and (kid is None or own is None or own == kid)
        ]

    @classmethod
    def parse(cls, body: bytes) -> KeySet:
        """A JWKS (RFC 7517 5). Keys of other kinds are passed over, and so are shared secrets: a
        URL gives them to everybody. Raises ValueError for what is none."""
        try:
            written = json.loads(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        listed = written.get("keys") if isinstance(written, Mapping) else None
        if not isinstance(listed, list):
            raise ValueError("it has no list of keys")
        keys = [key for each in listed[:MAX_KEYS] if (key := _parse_public_key(each)) is not None]
        if listed and not keys:
            raise ValueError("none of its keys can be used")
        return cls(keys)


def _parse_public_key(raw: object) -> Jwk | None:
    try:
        key = Jwk.model_validate(raw)
    except ValidationError:
        return None
    return key if key.kty != "oct" and key.algorithms else None


class KeySource(Protocol):
    """Where a guard has its keys from."""

    async def get_current(self) -> KeySet:
        """Those to judge by. Raises KeysAway."""

    async def get_newer(self, known: KeySet) -> KeySet:
        """Others than these, where there are any by now. Raises KeysAway if nobody can say."""


class StaticKeySource:
    """Keys of the file."""

    def __init__(self, keys: Sequence[Jwk]) -> None:
        self._keys = KeySet(keys)

    async def get_current(self) -> KeySet:
        return self._keys

    async def get_newer(self, known: KeySet) -> KeySet:
        return self._keys


class RemoteKeySource:
    """Keys of a URL; see the module.

    guard: its name, for the log. clock: in seconds.
    """

    # `_fetched`: when the keys came; `_next`: before it, nobody is asked.

    def __init__(
        self,
        guard_name: str,
        url: str,
        settings: Jwks,
        external_http: ExternalHttp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._guard_name = guard_name
        self._url = url
        self._settings = settings
        self._external_http = external_http
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._next_fetch_at = 0.0
        self._failures = 0
        self._fetch_task: asyncio.Task[None] | None = None

    async def get_current(self) -> KeySet:
        now = self._clock()
        age = now - self._fetched_at
        if self._keys is None or age > self._settings.max_age:
            await self._refresh()
            if self._keys is None or self._failures:
                raise KeysUnavailable("the keys of the issuer cannot be fetched")
        elif age > self._settings.refresh and now >= self._next_fetch_at:
            self._start_fetch()
        return self._keys

    async def get_newer(self, known: KeySet) -> KeySet:
        if self._keys is known:
            await self._refresh()
        if self._keys is None or (self._keys is known and self._failures):
            raise KeysUnavailable("the issuer cannot be asked whether it has a new key")
        return self._keys

    async def _refresh(self) -> None:
        """Fetch them, if it is not too soon for that; once for all who wait."""
        if self._fetch_task is None:
            if self._clock() < self._next_fetch_at:
                return
            self._start_fetch()
        assert self._fetch_task is not None
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
        try:
            made = await self._request_keys()
        except (ExternalHttpError, ValueError) as exc:
            self._failures += 1
            longest = min(
                self._settings.cooldown, FIRST_RETRY_DELAY_S * 2 ** min(self._failures, 10)
            )
            self._next_fetch_at = self._clock() + random.uniform(longest / 2, longest)
            if self._failures == 1:
                log.warning("guard %s: no keys from its issuer: %s", self._guard_name, exc)
            return
        if self._failures:
            log.info("guard %s: its issuer gives keys again", self._guard_name)
        self._failures = 0
        if not made.has_same_keys(
            self._keys
        ):  # or what is known of tokens would have to be found out anew
            self._keys = made
        self._fetched_at = self._clock()
        self._next_fetch_at = self._fetched_at + self._settings.cooldown

    async def _request_keys(self) -> KeySet:
        within = self._settings.timeout
        reply = await self._external_http.get(
            self._url, timeout_s=within, max_body_bytes=MAX_JWKS_BYTES
        )
        if reply.status != 200:
            raise ExternalHttpError(f"it answers {reply.status}")
        return KeySet.parse(reply.body)
