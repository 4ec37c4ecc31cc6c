"""Send requests of our own over aiokafka's connections, and check what that needs of aiokafka.

aiokafka's connection brings TCP, TLS, SASL and the correlation of answers. `KafkaConnection`
extends it where it hides the end of a session, the mechanisms that a broker offers, and the refusal
of a bearer token. `_SentRequest` gives a `KafkaRequest` the methods that it needs of a request:
`prepare(versions)`, whose result has `build_request_header`, `encode`, `parse_response_header` and
`RESPONSE_TYPE.decode`.

aiokafka promises none of this, nor its Cython code for record batches (`fetch.decoding`,
`produce`). So the first import of this package raises one error that lists the missing names. Their
behaviour is tested in tests/kafka/protocol/test_requests.py and, with brokers, wherever records
are read.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from typing import Any, Generic, NamedTuple, Self, TypeVar

from gateway.errors import GatewayError
from gateway.internals import Internals, find_missing
from gateway.kafka.protocol.requests import KafkaRequest, read_tags

R = TypeVar("R")

TESTED_VERSIONS = "0.13 to 0.14"

INTERNALS = (
    Internals(
        "aiokafka.conn",
        "AIOKafkaConnection",
        methods={
            "connect": "",
            "connected": "",
            "close": "reason exc",
            "send": "request expect_response",
            "authenticator_oauth": "",
        },
        state={
            "__init__": "_requests _versions _sasl_oauth_token_provider _loop host",
            "connect": "_loop create_connection host port",
            # What it does with a request of ours, and with the response.
            "send": "prepare _versions build_request_header encode",
            "_handle_frame": "parse_response_header RESPONSE_TYPE decode correlation_id",
            # Whose answers have the listener's mechanisms and the session's lifetime.
            "_do_sasl_handshake": "send SaslHandShakeRequest enabled_mechanisms "
            "SaslAuthenticateRequest authenticator_oauth",
        },
    ),
    Internals(
        "aiokafka.conn", "OAuthAuthenticator", {"step": "payload"}, {"__init__": "_token_sent"}
    ),
    Internals("aiokafka.protocol.admin", "SaslAuthenticateRequest"),
    Internals("aiokafka.protocol.admin", "SaslHandShakeRequest"),
    Internals("aiokafka.abc", "AbstractTokenProvider"),
    Internals("aiokafka.partitioner", "murmur2"),
    Internals(
        "aiokafka.record.default_records",
        "DefaultRecordBatch",
        {"validate_crc": None, "is_control_batch": None, "__iter__": None},
    ),
    Internals(
        "aiokafka.record.default_records",
        "DefaultRecord",
        {"offset": None, "timestamp": None, "key": None, "value": None, "headers": None},
    ),
    Internals(
        "aiokafka.record.default_records",
        "DefaultRecordBatchBuilder",
        {"append": None, "build": None},
    ),
)


def check_aiokafka() -> None:
    missing = find_missing(INTERNALS)
    if missing:
        raise GatewayError(
            f"aiokafka {version('aiokafka')} cannot carry the gateway's requests: it has no "
            f"{', '.join(missing)}; install aiokafka {TESTED_VERSIONS}"
        )


check_aiokafka()

from aiokafka import errors as kafka_errors  # noqa: E402  after the check of what is imported
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator  # noqa: E402
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest  # noqa: E402


class MechanismNotOffered(kafka_errors.UnsupportedSaslMechanismError):  # type: ignore[misc]
    def __init__(self, offered: tuple[str, ...]) -> None:
        super().__init__(f"offered are {', '.join(offered)}")
        self.offered = offered


class _EncodedHeader(NamedTuple):
    data: bytes

    def encode(self) -> bytes:
        return self.data


class _ResponseHeader(NamedTuple):
    correlation_id: int


@dataclass(slots=True)
class _SentRequest(Generic[R]):
    """A request in the version for its broker; aiokafka's connection keeps it until the response.

    To aiokafka it is the Request, its RequestStruct and the type of the response.
    """

    request: KafkaRequest[R]
    version: int = -1
    flexible: bool = False

    @property
    def RESPONSE_TYPE(self) -> Self:
        return self

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Self:
        self.version = self.request.choose_version(versions)
        self.flexible = self.version >= self.request.API.first_flexible
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _EncodedHeader:
        name = client_id.encode()
        head = struct.pack(">hhih", self.request.API.key, self.version, correlation_id, len(name))
        # Also in a flexible header the client id is a string with a fixed length (KIP-482). The
        # zero byte says that there are no tagged fields.
        return _EncodedHeader(head + name + (b"\0" if self.flexible else b""))

    def encode(self) -> bytes:
        return self.request.encode(self.version)

    def parse_response_header(self, stream: BytesIO) -> _ResponseHeader:
        data = stream.getvalue()  # no copy: the stream still shares the bytes it was created with
        (correlation_id,) = struct.unpack_from(">i", data)
        stream.seek(read_tags(data, 4)[1] if self.flexible else 4)
        return _ResponseHeader(correlation_id)

    def decode(self, stream: BytesIO) -> R:
        return self.request.decode(self.version, stream.getvalue(), stream.tell())


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
        sent = _SentRequest(request) if isinstance(request, KafkaRequest) else request
        try:
            response: Awaitable[Any] = super().send(sent, expect_response)
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
