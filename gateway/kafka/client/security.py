"""Turn the settings of TLS and SASL into the arguments of aiokafka's connection.

Certificates are loaded again when their files change, so a mount that replaces them before they
expire needs no restart. Tokens for OAUTHBEARER (KIP-255) are fixed, read from a file, or fetched
for client credentials; aiokafka calls `token` at every connect.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokafka.abc import AbstractTokenProvider

from gateway.background_tasks import start_shared_task, wait_for_shared
from gateway.config.sections.security import create_client_context
from gateway.errors import AuthenticationFailed, BrokerUnavailable, KafkaError

from .outages import DEFAULT_OPTION_NAMES, OptionNames, SecurityOptions

if TYPE_CHECKING:
    import httpx
    from pydantic import SecretStr

    from gateway.config.sections.security import Sasl, Security, Tls

log = logging.getLogger(__name__)

_DEFAULT_LIFETIME_S = 300.0  # where the issuer sends no expires_in
_MAX_RESPONSE_BYTES = 1 << 20
# Statuses below 500 that refuse the moment and not the credentials (RFC 9110 15.5.9, RFC 6585 4).
_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_RENEWAL_FRACTION = 0.8  # the part of its lifetime after which a token is replaced
_RETRY_FRACTION = 0.05  # the part of its lifetime between two attempts to replace it


@dataclass(kw_only=True)
class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # untyped there
    """A provider with SASL extensions (KIP-342), which the broker gets with each token."""

    sasl_extensions: Mapping[str, str] = field(default_factory=dict)

    def extensions(self) -> Mapping[str, str]:
        return self.sasl_extensions


@dataclass
class FixedTokenProvider(_TokenProvider):
    value: str

    async def token(self) -> str:
        return self.value


@dataclass
class FileTokenProvider(_TokenProvider):
    """The token in a file, read at every connect: a mount replaces it before it expires."""

    path: Path

    async def token(self) -> str:
        try:
            return (await asyncio.to_thread(self.path.read_text)).strip()
        except (OSError, ValueError) as exc:
            raise AuthenticationFailed(
                f"the token file {self.path} cannot be read: {exc}; "
                "correct kafka.security.sasl.tokenFile"
            ) from exc


@dataclass
class ClientCredentialsTokenProvider(_TokenProvider):
    """Tokens that an issuer gives for client credentials (RFC 6749 4.4).

    A token is renewed in the background after `_RENEWAL_FRACTION` of its lifetime. Connects use the
    old one until it expires, so an issuer that fails or is silent does not delay them before. After
    a failure, which is logged, the issuer is asked again at most every `_RETRY_FRACTION` of the
    lifetime. Only without a valid token do connects wait for the issuer, all for the same request.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    timeout: float = 5.0
    _token: str = field(default="", repr=False)
    _renew_at: float = field(default=float("-inf"), repr=False)  # of `clock`
    _expires_at: float = field(default=float("-inf"), repr=False)  # of `clock`
    _lifetime: float = field(default=0.0, repr=False)  # seconds
    _renewal: asyncio.Task[None] | None = field(default=None, repr=False)

    async def token(self) -> str:
        """Return a token that has not expired, asking the issuer for a new one when it is due.

        Raises:
            AuthenticationFailed: No token is left, and the issuer refuses the credentials, or its
                answer has no token.
            BrokerUnavailable: No token is left, and the issuer fails or does not answer in time.
        """
        now = self.clock()
        if now >= self._expires_at:
            closed = BrokerUnavailable(f"{self.url} is not asked any more")
            await wait_for_shared(self._start_renewal(), closed)
        elif now >= self._renew_at:
            self._start_renewal()
        return self._token

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    def _start_renewal(self) -> asyncio.Task[None]:
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
        status, body = await self._send_request()
        if status >= 500 or status in _TRANSIENT_STATUSES:
            raise BrokerUnavailable(f"{self.url} answers {status}; no token")
        if 300 <= status < 400:
            problem = f"{self.url} answers {status}, a redirect, which is not followed"
            raise AuthenticationFailed(f"{problem}; correct kafka.security.sasl.tokenUrl")
        if status >= 400:
            raise AuthenticationFailed(
                f"{self.url} refuses the client credentials with {status}; "
                "check clientId and clientSecret"
            )
        try:
            return _parse_response(body)
        # JSON may also have numbers and depths that Python has no room for.
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise AuthenticationFailed(f"{self.url} answers no token: {exc!r}") from exc

    async def _send_request(self) -> tuple[int, bytes]:
        form = {"grant_type": "client_credentials", **self.parameters}
        if self.scope:
            form["scope"] = self.scope
        headers = {"Authorization": self._build_authorization(), "Accept": "application/json"}
        try:
            # In all: a timeout of httpx is that of each read, and a slow answer takes many.
            async with asyncio.timeout(self.timeout):
                client = await asyncio.to_thread(_create_client)
                async with (
                    client,
                    client.stream("POST", self.url, data=form, headers=headers) as response,
                ):
                    return response.status_code, await _read_body(response)
        except TimeoutError as exc:
            raise BrokerUnavailable(f"{self.url} gives no token within {self.timeout:g} s") from exc
        # Whatever is wrong with the URL or the response: a connect expects no other error.
        except Exception as exc:
            from gateway.http_client import describe_http_failure

            failure = describe_http_failure(exc, self.url)
            raise BrokerUnavailable(f"no token of {self.url}: {failure}") from exc

    def _build_authorization(self) -> str:
        """Return Basic credentials, which OAuth form-encodes first (RFC 6749 2.3.1)."""
        pair = ":".join(
            urllib.parse.quote_plus(part) for part in (self.client_id, self.client_secret)
        )
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _create_client() -> httpx.AsyncClient:
    """Create a client; importing httpx and reading certificates take 0.1 s, so in a thread."""
    import httpx

    from gateway.http_client import create_closed_jar

    headers = {"Accept-Encoding": "identity"}
    return httpx.AsyncClient(headers=headers, timeout=None, cookies=create_closed_jar())


async def _read_body(response: httpx.Response) -> bytes:
    """Read a body as far as the limit, without decompressing it: no token is of that length."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            break
    return bytes(body)


def _parse_response(body: bytes) -> tuple[str, float]:
    issued = json.loads(body)
    token, lifetime = issued["access_token"], float(issued.get("expires_in") or _DEFAULT_LIFETIME_S)
    if not isinstance(token, str) or not token:
        raise TypeError("access_token is no string")
    if not 0 < lifetime < inf:
        raise ValueError(f"expires_in is {lifetime}")
    return token, lifetime


class Credentials:
    def __init__(
        self, security: Security | None = None, names: OptionNames = DEFAULT_OPTION_NAMES
    ) -> None:
        self._names = names
        self.replace(security)

    def replace(self, security: Security | None) -> None:
        """Use other settings for new connections. The login of open ones holds until its end."""
        names = self._names
        self.options = SecurityOptions.from_config(security, names)
        tls = security.tls if security is not None else None
        sasl = security.sasl if security is not None else None
        self._context = _TlsContext(tls, names.name_security("tls")) if tls is not None else None
        protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
        self._fixed: dict[str, Any] = {"security_protocol": protocol} | (
            _build_sasl_options(sasl) if sasl is not None else {}
        )

    def __call__(self) -> Mapping[str, Any]:
        """Return the arguments of one connect; AuthenticationFailed if a file cannot be loaded."""
        context = {} if self._context is None else {"ssl_context": self._context()}
        return self._fixed | context

    async def load_token(self) -> None:
        """Get the token of the next login.

        Await this before a connect, so that a slow issuer of tokens does not use up the time of the
        broker, and is not taken for it.
        """
        if self._token_provider is not None:
            await self._token_provider.token()

    def close(self) -> None:
        if isinstance(self._token_provider, ClientCredentialsTokenProvider):
            self._token_provider.close()

    @property
    def _token_provider(self) -> AbstractTokenProvider | None:
        return self._fixed.get("sasl_oauth_token_provider")


def create_credentials(
    security: Security | None, names: OptionNames = DEFAULT_OPTION_NAMES
) -> Credentials:
    """Create the credentials of a cluster, and warn if they send a password in the clear."""
    sasl = security.sasl if security is not None else None
    if security is not None and security.tls is None and sasl and sasl.mechanism == "plain":
        option = names.name_security("sasl")
        log.warning("the password of %s is sent in the clear; set tls beside it", option)
    return Credentials(security, names)


class _TlsContext:
    def __init__(self, tls: Tls, option: str) -> None:
        self._tls = tls
        self._option = option  # what messages call it
        self._context: ssl.SSLContext | None = None
        self._modified_ns: list[int] = []  # the files' times when the context was created

    def __call__(self) -> ssl.SSLContext:
        files = [file for file in (self._tls.ca, self._tls.certificate, self._tls.key) if file]
        try:
            modified_ns = [Path(file).stat().st_mtime_ns for file in files]
            if self._context is None or modified_ns != self._modified_ns:
                self._context, self._modified_ns = create_client_context(self._tls), modified_ns
            return self._context
        except (OSError, ValueError) as exc:
            reason = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else exc
            raise AuthenticationFailed(
                f"TLS cannot be set up: {reason}; correct {self._option}"
            ) from exc


def _build_sasl_options(sasl: Sasl) -> dict[str, Any]:
    if sasl.mechanism == "oauthbearer":
        return {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": _create_token_provider(sasl),
        }
    return {
        "sasl_mechanism": sasl.mechanism.upper(),
        "sasl_plain_username": sasl.username,
        "sasl_plain_password": _reveal_secret(sasl.password),
    }


def _create_token_provider(sasl: Sasl) -> AbstractTokenProvider:
    if sasl.token_url:
        secret = _reveal_secret(sasl.client_secret) or ""
        return ClientCredentialsTokenProvider(
            sasl.token_url,
            sasl.client_id or "",
            secret,
            sasl.scope,
            sasl.token_parameters,
            sasl_extensions=sasl.extensions,
        )
    if sasl.token_file:
        return FileTokenProvider(Path(sasl.token_file), sasl_extensions=sasl.extensions)
    return FixedTokenProvider(_reveal_secret(sasl.token) or "", sasl_extensions=sasl.extensions)


def _reveal_secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value is not None else None
