"""Refuse an aiokafka that lacks a name that the gateway builds on.

Requests of our own go over aiokafka's connections (`protocol/requests.py`), which are extended for
logins (`security`), and its Cython code encodes and decodes record batches (`fetch/decoding.py`,
`produce/`). aiokafka promises none of these, so the first import of this package raises one error
that lists the missing names. Their behaviour is tested in tests/kafka/protocol/test_requests.py
and, with brokers, wherever records are read.
"""

from __future__ import annotations

from importlib.metadata import version

from gateway.errors import GatewayError
from gateway.internals import Internals, find_missing

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
