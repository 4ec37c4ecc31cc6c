"""Turn the settings of TLS and SASL into the arguments of aiokafka's connection.

Certificates are loaded again when their files change, so a mount that replaces them before they
expire needs no restart. The module also extends aiokafka's connection where it hides the end of a
session, the mechanisms that a broker offers, and the refusal of a bearer token.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka_errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

from gateway.config.types.tls_context import create_client_context
from gateway.errors import AuthenticationFailed

from .failures import DEFAULT_OPTION_NAMES, MechanismNotOffered, OptionNames, SecurityOptions
from .oauth_tokens import ClientCredentialsTokenProvider, FileTokenProvider, FixedTokenProvider

if TYPE_CHECKING:
    from pydantic import SecretStr

    from gateway.config.sections.security import Sasl, Security, Tls

log = logging.getLogger(__name__)


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


def _should_log(record: logging.LogRecord) -> bool:
    # aiokafka warns at every connection; `create_credentials` warns once.
    return "in the clear" not in str(record.msg)


logging.getLogger("aiokafka.conn").addFilter(_should_log)


class KafkaConnection(AIOKafkaConnection):  # type: ignore[misc]  # untyped there
    """aiokafka's connection, which also reports what aiokafka hides of a login.

    Attributes:
        session_seconds: Seconds after the login from which the broker answers the next request by
            closing the connection (KIP-368); 0 for never.
        offered_mechanisms: The SASL mechanisms of the listener; empty before it named them.
    """

    session_seconds: float = 0.0
    offered_mechanisms: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return self._loop.address if isinstance(self._loop, _PinnedLoop) else str(self.host)

    def pin_address(self, address: str) -> None:
        """Connect to this address of the host. A certificate still has to have the host's name."""
        if address != self.host:
            self._loop: Any = _PinnedLoop(asyncio.get_running_loop(), address)

    @property
    def is_idle(self) -> bool:
        return all(future.done() for _, _, future in self._requests)

    async def connect(self) -> Any:
        try:
            return await super().connect()
        except kafka_errors.UnsupportedSaslMechanismError as exc:
            raise MechanismNotOffered(self.offered_mechanisms) from exc

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        try:
            response: Awaitable[Any] = super().send(request, expect_response)
        except RuntimeError as exc:
            # Once a transport of uvloop is closed, it refuses what is written. aiokafka is informed
            # one step of the loop later, and expects an OSError until then.
            self.close()
            raise kafka_errors.KafkaConnectionError(f"the connection is closed: {exc}") from exc
        if isinstance(request, SaslHandShakeRequest):
            return self._record_mechanisms(response)
        if isinstance(request, SaslAuthenticateRequest):
            return self._record_session_lifetime(response)
        return response

    async def _record_mechanisms(self, response: Awaitable[Any]) -> Any:
        handshake = await response
        self.offered_mechanisms = tuple(handshake.enabled_mechanisms)
        return handshake

    async def _record_session_lifetime(self, response: Awaitable[Any]) -> Any:
        authenticated = await response
        # Version 0 of the answer has no lifetime.
        self.session_seconds = getattr(authenticated, "session_lifetime_ms", 0) / 1000
        return authenticated

    def authenticator_oauth(self) -> OAuthAuthenticator:
        return _BearerAuthenticator(sasl_oauth_token_provider=self._sasl_oauth_token_provider)


class _PinnedLoop:
    """An event loop that connects to one address; aiokafka passes it a name with several."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self.address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def create_connection(
        self, create_protocol: Any, host: str, port: int, *, ssl: ssl.SSLContext | None
    ) -> Any:
        name = host if ssl is not None else None
        return self._loop.create_connection(
            create_protocol, self.address, port, ssl=ssl, server_hostname=name
        )


class _BearerAuthenticator(OAuthAuthenticator):  # type: ignore[misc]  # untyped there
    """aiokafka's authenticator, which also ends a refused login properly.

    A broker answers a refused token by a challenge, and sends the error after the client has sent
    one more byte (RFC 7628 3.2.3). aiokafka takes the challenge for success, and the next request
    fails without a reason.
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        if payload and self._token_sent:
            return b"\x01", True
        message: tuple[bytes, bool] | None = await super().step(payload)
        return message


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
