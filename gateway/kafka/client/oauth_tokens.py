"""Provide tokens for OAUTHBEARER (KIP-255): fixed, from a file, or for client credentials.

aiokafka calls `token` at every connect.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError

from .shared_tasks import start_shared_task, wait_for_shared

_DEFAULT_LIFETIME_S = 300.0  # where the issuer sends no expires_in
_MAX_RESPONSE_BYTES = 1 << 20
# Statuses below 500 that refuse the moment and not the credentials (RFC 9110 15.5.9, RFC 6585 4).
_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_RENEWAL_FRACTION = 0.8  # the part of its lifetime after which a token is replaced
_RETRY_FRACTION = 0.05  # the part of its lifetime between two attempts to replace it

log = logging.getLogger(__name__)


@dataclass
class FixedTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # untyped there
    """The token that is written in the configuration."""

    value: str

    async def token(self) -> str:
        """Return the token."""
        return self.value


@dataclass
class FileTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # untyped there
    """The token in a file, read at every connect.

    Whatever mounts the file, such as a Kubernetes service account, replaces it before it expires.
    """

    path: Path

    async def token(self) -> str:
        """Read the token.

        Raises:
            AuthenticationFailed: The file cannot be read.
        """
        try:
            return (await asyncio.to_thread(self.path.read_text)).strip()
        except (OSError, ValueError) as exc:
            raise AuthenticationFailed(
                f"the token file {self.path} cannot be read: {exc}; "
                "correct kafka.security.sasl.tokenFile"
            ) from exc


@dataclass
class ClientCredentialsTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # untyped there
    """Tokens that an issuer gives for client credentials (RFC 6749 4.4).

    A token is renewed after `_RENEWAL_FRACTION` of its lifetime, in the background: connects use
    the old one until it expires, so that an issuer that is away, silent or refuses does not delay
    or fail them before. Failures are logged, and the issuer is asked again at most every
    `_RETRY_FRACTION` of the lifetime. Only without a valid token do connects wait for the issuer,
    all for the same request.

    Attributes:
        url: The token endpoint.
        client_id: The client id.
        client_secret: The client secret.
        scope: The scope to ask for; None for the issuer's default.
        clock: The current time in seconds of any monotonic clock.
        timeout: Seconds to wait for the issuer.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    clock: Callable[[], float] = time.monotonic
    timeout: float = 5.0
    _token: str = field(default="", repr=False)
    _renew_at: float = field(default=float("-inf"), repr=False)  # of `clock`
    _expires_at: float = field(default=float("-inf"), repr=False)  # of `clock`
    _lifetime: float = field(default=0.0, repr=False)  # seconds
    _renewal: asyncio.Task[None] | None = field(default=None, repr=False)

    async def token(self) -> str:
        """Return a token that has not expired, asking the issuer for a new one if it is time to.

        Raises:
            AuthenticationFailed: The issuer refuses the credentials, or its answer has no token;
                and no token is left.
            BrokerUnavailable: The issuer cannot be reached, is in trouble or does not answer in
                time; and no token is left.
        """
        now = self.clock()
        if now >= self._expires_at:
            await wait_for_shared(self._start_renewal(), f"{self.url} is not asked any more")
        elif now >= self._renew_at:
            self._start_renewal()
        return self._token

    def close(self) -> None:
        """Cancel the request under way, as nobody connects any more."""
        if self._renewal is not None:
            self._renewal.cancel()

    def _start_renewal(self) -> asyncio.Task[None]:
        """Return the renewal that is under way, or start one."""
        renewal = self._renewal
        # One of an event loop that has ended since then never ends.
        is_lost = renewal is not None and renewal.get_loop() is not asyncio.get_running_loop()
        if renewal is None or renewal.done() or is_lost:
            renewal = self._renewal = start_shared_task(self._renew())
        return renewal

    async def _renew(self) -> None:
        # The lifetime counts from before the request: from after it, it could end too late.
        began = self.clock()
        try:
            self._token, self._lifetime = await self._fetch_token()
        except KafkaError as exc:
            now = self.clock()
            if now >= self._expires_at:
                raise
            log.warning("%s; the token before is used for %.0f s more", exc, self._expires_at - now)
            self._renew_at = min(now + _RETRY_FRACTION * self._lifetime, self._expires_at)
        else:
            self._renew_at = began + _RENEWAL_FRACTION * self._lifetime
            self._expires_at = began + self._lifetime

    async def _fetch_token(self) -> tuple[str, float]:
        try:
            # The timeout of a socket is that of each read, and a slow answer takes many.
            async with asyncio.timeout(self.timeout):
                return await asyncio.to_thread(self._request_token)
        except TimeoutError as exc:
            raise BrokerUnavailable(f"{self.url} gives no token within {self.timeout:g} s") from exc

    def _request_token(self) -> tuple[str, float]:
        """Ask the issuer for a token; blocks, so it runs in a thread.

        Returns:
            The token and its lifetime in seconds.
        """
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        request = urllib.request.Request(
            self.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": self._build_authorization(), "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                body = response.read(_MAX_RESPONSE_BYTES)
                if response.length:  # bytes that are left of its Content-Length
                    raise http.client.IncompleteRead(body, response.length)
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code >= 500 or exc.code in _TRANSIENT_STATUSES:
                raise BrokerUnavailable(f"{self.url} answers {exc.code}; no token") from exc
            raise AuthenticationFailed(
                f"{self.url} refuses the client credentials with {exc.code}; "
                "check clientId and clientSecret"
            ) from exc
        except OSError as exc:
            raise BrokerUnavailable(f"{self.url} cannot be reached for a token: {exc}") from exc
        except http.client.HTTPException as exc:
            raise BrokerUnavailable(
                f"{self.url} answers a token request by no complete HTTP response: "
                f"{type(exc).__name__}; see whether its server or a proxy before it is in trouble"
            ) from exc
        try:
            return _parse_response(body)
        # JSON may also have numbers and depths that Python has no room for.
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise AuthenticationFailed(f"{self.url} answers no token: {exc!r}") from exc

    def _build_authorization(self) -> str:
        """Return the Authorization header of the client credentials.

        Unlike other Basic credentials they are form-encoded first (RFC 6749 2.3.1).
        """
        pair = ":".join(
            urllib.parse.quote_plus(part) for part in (self.client_id, self.client_secret)
        )
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _parse_response(body: bytes) -> tuple[str, float]:
    """Return the token of a response (RFC 6749 5.1) and its lifetime in seconds."""
    issued = json.loads(body)
    token, lifetime = issued["access_token"], float(issued.get("expires_in") or _DEFAULT_LIFETIME_S)
    if not isinstance(token, str) or not token:
        raise TypeError("access_token is no string")
    if not 0 < lifetime < inf:
        raise ValueError(f"expires_in is {lifetime}")
    return token, lifetime
