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

from .elsewhere import Away, Elsewhere

LARGEST = 256 * 1024  # bytes of a JWKS; those of large issuers have 10 KB
MOST = 100  # keys of one that are looked at
FIRST_RETRY = 1.0  # seconds, doubled up to `cooldown`

log = logging.getLogger(__name__)


class KeysAway(Exception):
    """There are no keys to judge a token by. The message says why."""


class KeySet:
    """Keys by id and algorithm."""

    def __init__(self, keys: Iterable[Jwk]) -> None:
        self._jwks = tuple(keys)
        self._keys = [(each.kid, each.algorithms, each.key()) for each in self._jwks]

    def __len__(self) -> int:
        return len(self._jwks)

    @property
    def algorithms(self) -> frozenset[str]:
        """What its keys are good for."""
        return frozenset(each for _, algorithms, _ in self._keys for each in algorithms)

    def same(self, other: KeySet | None) -> bool:
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
    def read(cls, body: bytes) -> KeySet:
        """A JWKS (RFC 7517 5). Keys of other kinds are passed over, and so are shared secrets: a
        URL gives them to everybody. Raises ValueError for what is none."""
        try:
            written = json.loads(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        listed = written.get("keys") if isinstance(written, Mapping) else None
        if not isinstance(listed, list):
            raise ValueError("it has no list of keys")
        keys = [key for each in listed[:MOST] if (key := _public(each)) is not None]
        if listed and not keys:
            raise ValueError("none of its keys can be used")
        return cls(keys)


def _public(written: object) -> Jwk | None:
    try:
        key = Jwk.model_validate(written)
    except ValidationError:
        return None
    return key if key.kty != "oct" and key.algorithms else None


class Keys(Protocol):
    """Where a guard has its keys from."""

    async def current(self) -> KeySet:
        """Those to judge by. Raises KeysAway."""

    async def after(self, known: KeySet) -> KeySet:
        """Others than these, where there are any by now. Raises KeysAway if nobody can say."""


class Listed:
    """Keys of the file."""

    def __init__(self, keys: Sequence[Jwk]) -> None:
        self._keys = KeySet(keys)

    async def current(self) -> KeySet:
        return self._keys

    async def after(self, known: KeySet) -> KeySet:
        return self._keys


class Fetched:
    """Keys of a URL; see the module.

    guard: its name, for the log. clock: in seconds.
    """

    # `_fetched`: when the keys came; `_next`: before it, nobody is asked.

    def __init__(
        self,
        guard: str,
        url: str,
        settings: Jwks,
        elsewhere: Elsewhere,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._url = url
        self._settings = settings
        self._elsewhere = elsewhere
        self._keys: KeySet | None = None
        self._fetched = 0.0
        self._next = 0.0
        self._failures = 0
        self._fetching: asyncio.Task[None] | None = None

    async def current(self) -> KeySet:
        now = self._clock()
        age = now - self._fetched
        if self._keys is None or age > self._settings.max_age:
            await self._refresh()
            if self._keys is None or self._failures:
                raise KeysAway("the keys of the issuer cannot be fetched")
        elif age > self._settings.refresh and now >= self._next:
            self._begin()
        return self._keys

    async def after(self, known: KeySet) -> KeySet:
        if self._keys is known:
            await self._refresh()
        if self._keys is None or (self._keys is known and self._failures):
            raise KeysAway("the issuer cannot be asked whether it has a new key")
        return self._keys

    async def _refresh(self) -> None:
        """Fetch them, if it is not too soon for that; once for all who wait."""
        if self._fetching is None:
            if self._clock() < self._next:
                return
            self._begin()
        assert self._fetching is not None
        await asyncio.shield(self._fetching)

    def _begin(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("guard %s: fetching keys failed", self._guard, exc_info=error)

    async def _fetch(self) -> None:
        try:
            made = await self._ask()
        except (Away, ValueError) as exc:
            self._failures += 1
            longest = min(self._settings.cooldown, FIRST_RETRY * 2 ** min(self._failures, 10))
            self._next = self._clock() + random.uniform(longest / 2, longest)
            if self._failures == 1:
                log.warning("guard %s: no keys from its issuer: %s", self._guard, exc)
            return
        if self._failures:
            log.info("guard %s: its issuer gives keys again", self._guard)
        self._failures = 0
        if not made.same(self._keys):  # or what is known of tokens would have to be found out anew
            self._keys = made
        self._fetched = self._clock()
        self._next = self._fetched + self._settings.cooldown

    async def _ask(self) -> KeySet:
        within = self._settings.timeout
        reply = await self._elsewhere.get(self._url, within=within, most=LARGEST)
        if reply.status != 200:
            raise Away(f"it answers {reply.status}")
        return KeySet.read(reply.body)
