"""Know whether the installed uvicorn has what our protocols and servers build on.

`GatewayProtocol` (`transport`) derives from uvicorn's HTTP protocol, and takes connections over
from it. uvicorn does not promise the methods and attributes that this needs. A version that lacks
one of them serves by its own protocols instead, as any other ASGI server would: streams send by
ASGI's `send`, and the limits of `transport` do not apply.

Every version must have the steps of `uvicorn.Server`, from which `edge.EdgeServer` derives.
tests/web/test_uvicorn_contract.py tests the meaning of the names here.
"""

from __future__ import annotations

from functools import cache

import uvicorn

from gateway.errors import GatewayError
from gateway.internals import Internals, find_missing

TESTED_VERSIONS = "0.45 to 0.54"

_PROTOCOLS = "uvicorn.protocols.http"

SERVER_INTERNALS = (
    Internals(
        "uvicorn",
        "Server",
        methods={
            "handle_exit": None,  # sse-starlette replaces it by a function of other parameters
            "main_loop": "",
            "serve": "sockets",
            "shutdown": "sockets",
            "startup": "sockets",
        },
        state={
            "__init__": "config server_state should_exit force_exit",
            "startup": "servers lifespan",
        },
    ),
    Internals(
        "uvicorn",
        "Config",
        methods={"load": "", "get_loop_factory": ""},
        state={"load": "http_protocol_class lifespan_class loaded_app"},
    ),
)

PROTOCOL_INTERNALS = (
    Internals(
        f"{_PROTOCOLS}.httptools_impl",
        "HttpToolsProtocol",
        methods={
            "__init__": "config server_state app_state _loop",
            "connection_made": "transport",
            "connection_lost": "exc",
            "data_received": "data",
            "on_message_begin": "",
            "on_header": "name value",
            "on_headers_complete": "",
            "on_body": "body",
            "on_message_complete": "",
            "on_response_complete": "",
            "shutdown": "",
            "timeout_keep_alive_handler": "",
            "_should_upgrade": "",
            "_start_asgi_task": "cycle app",
            "_unset_keepalive_if_required": "",
        },
        state={
            "__init__": "config server_state app_state connections loop logger parser transport "
            "flow server client scheme pipeline scope headers cycle ws_protocol_class "
            "timeout_keep_alive timeout_keep_alive_task",
            "on_message_begin": "url",
        },
    ),
    Internals(
        f"{_PROTOCOLS}.httptools_impl",
        "RequestResponseCycle",
        state={
            "__init__": "scope transport message_event on_response disconnected keep_alive "
            "waiting_for_100_continue response_started response_complete chunked_encoding "
            "expected_content_length",
        },
    ),
    Internals(
        f"{_PROTOCOLS}.flow_control",
        "FlowControl",
        methods={
            "__init__": "transport",
            "pause_reading": "",
            "resume_reading": "",
            "pause_writing": "",
        },
        state={"__init__": "read_paused write_paused"},
    ),
    Internals(
        "uvicorn.server",
        "ServerState",
        state={"__init__": "connections tasks total_requests default_headers"},
    ),
    Internals(
        "uvicorn",
        "Config",
        state={"__init__": "asgi_version ws_per_message_deflate", "load": "ws_protocol_class"},
    ),
)


@cache
def find_missing_internals() -> tuple[str, ...]:
    """Return the members that `GatewayProtocol` needs and the installed uvicorn lacks."""
    return tuple(find_missing(PROTOCOL_INTERNALS))


def describe_fallback() -> str | None:
    """Return the log line on the cost of an unknown uvicorn; raise if it cannot serve at all."""
    missing_steps = find_missing(SERVER_INTERNALS)
    if missing_steps:
        raise GatewayError(
            f"uvicorn {uvicorn.__version__} cannot serve the gateway: it has no "
            f"{', '.join(missing_steps)}; install uvicorn {TESTED_VERSIONS}, or serve `create_app` "
            "by another ASGI server"
        )
    missing = find_missing_internals()
    if not missing:
        return None
    return (
        f"uvicorn {uvicorn.__version__} is not one that this version of the gateway knows (it has "
        f"no {', '.join(missing)}), so uvicorn's own protocols serve: each client costs a task and "
        "more memory and CPU, and requests have no deadline, which a proxy in front should set; "
        f"install uvicorn {TESTED_VERSIONS}"
    )
