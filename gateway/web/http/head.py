"""Check a request head beyond what the parser checks (RFC 9112), and build what answers it.

llhttp, in its strict mode, already refuses Content-Length together with Transfer-Encoding, several
or malformed Content-Length headers, folded lines, space before a colon, bare CR and LF, and control
bytes. What remains are rules of meaning. Where two servers in a row read these differently, a
request can be smuggled past the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from gateway.errors import RequestError

if TYPE_CHECKING:
    import httptools
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

RawHeaders = list[tuple[bytes, bytes]]
"""Names in lower case, values as received."""

MAX_HEADERS = 256  # a head has space for 12,000, which take 6 ms and 1.8 MB
HEADER_BYTES = 150  # that a header takes besides its text: a tuple, two bytes objects and a place
CHUNK_BYTES = 32  # that a chunk of a body counts, besides its bytes: to parse it takes 0.8 us
MAX_QUERY_PARAMETERS = 256  # a head has space for 7,000, which take 3 ms to parse

# An IPv6 address in brackets or a registered name, and perhaps a port (RFC 9110 7.2).
_HOST_PATTERN = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(:[0-9]*)?")
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_CHECKED_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))


def build_bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)


def check_query(target: bytes) -> None:
    """Refuse a query with too many parameters, before it is parsed. The target may be the query."""
    # The first comparison is cheap, and enough for almost every target: n separators take at least
    # n bytes.
    if len(target) > MAX_QUERY_PARAMETERS and target.count(b"&") >= MAX_QUERY_PARAMETERS:
        raise build_bad_request(
            f"the query has more than {MAX_QUERY_PARAMETERS} parameters; ask for less"
        )


def parse_body_length(version: str, headers: RawHeaders) -> int | None:
    """Return the bytes of the body that a head announces: 0 without one, None for a chunked one.

    A head that another server could read differently is a 400, 501 or 505.
    """
    if version not in ("1.1", "1.0"):
        detail = "this port speaks HTTP/1.1; other versions are for a proxy in front of it"
        raise RequestError(505, "HTTP version not supported", detail)
    length: int | None = 0
    hosts = 0
    for name, value in headers:
        if name not in _CHECKED_HEADERS:
            continue
        if name == b"host":
            hosts += 1
            if _HOST_PATTERN.fullmatch(value) is None:
                raise build_bad_request("Host is not a host with perhaps a port (RFC 9112 3.2)")
        elif name == b"content-length":
            length = int(value)  # the parser has refused anything but digits
        elif name == b"expect":
            if version != "1.0" and value.lower() != b"100-continue":  # RFC 9110 10.1.1
                detail = "no expectation but 100-continue is known; leave Expect out"
                raise RequestError(417, "Expectation failed", detail)
        else:
            _require_chunked(version, value)
            length = None
    if hosts != 1 and (hosts or version == "1.1"):  # HTTP/1.0 may leave Host out
        raise build_bad_request(f"{hosts} Host headers; send exactly one (RFC 9112 3.2)")
    return length


def _require_chunked(version: str, value: bytes) -> None:
    if version == "1.0":
        raise build_bad_request("Transfer-Encoding in HTTP/1.0 (RFC 9112 6.1); use Content-Length")
    if value.lower() != b"chunked":
        detail = "no transfer coding but chunked is supported (RFC 9112 6.1)"
        raise RequestError(501, "Transfer coding not implemented", detail)


def to_origin_form(method: bytes, target: bytes, headers: RawHeaders) -> bytes:
    """Return a request target that is not in origin form as a path and query (RFC 9112 3.2).

    The authority of an absolute target replaces the value of Host in `headers` (RFC 9112 3.2.2).
    `*` is returned as it is for OPTIONS.
    """
    if method == b"CONNECT":
        raise RequestError(501, "Method not implemented", "this server is not a proxy: no CONNECT")
    if b"#" in target:
        raise build_bad_request("a fragment (#) in the request target (RFC 9112 3.2)")
    if target == b"*" and method == b"OPTIONS":
        return target
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None:
        raise build_bad_request(
            "the request target is neither a path nor an http URL (RFC 9112 3.2)"
        )
    authority, path = absolute.groups()
    if _HOST_PATTERN.fullmatch(authority) is None:
        # User information (RFC 9110 4.2.4), which hides the host from whoever reads the URL.
        raise build_bad_request("more than host and port in the request target (RFC 9110 4.2.4)")
    headers[:] = [(name, authority if name == b"host" else value) for name, value in headers]
    return path if path.startswith(b"/") else b"/" + path


def head_size(target: bytes, headers: RawHeaders) -> int:
    """Return the bytes of a whole head on the wire, without optional white space around values."""
    # A longer method than GET is not counted; the limit does not have to be exact.
    request_line = len(target) + len(b"GET  HTTP/1.1\r\n\r\n")
    # 4 bytes a header are its colon, the space behind it and the line break.
    return request_line + sum([len(name) + len(value) + 4 for name, value in headers])


def build_too_large(target: bytes, max_bytes: int) -> RequestError:
    if head_size(target, []) > max_bytes:
        detail = f"the request line is over {max_bytes} bytes; send tokens as headers"
        return RequestError(414, "URI too long", detail)
    detail = f"request line and headers are over {max_bytes} bytes; send fewer cookies"
    return RequestError(431, "Request header fields too large", detail)


def build_too_many_headers() -> RequestError:
    detail = f"the head has more than {MAX_HEADERS} headers; send fewer"
    return RequestError(431, "Request header fields too large", detail)


def convert_parser_error(error: httptools.HttpParserError) -> RequestError:
    """Return the error that a callback raised, or else one that says what the parser refused."""
    if isinstance(error.__context__, RequestError):
        return error.__context__
    reason = str(error)
    if "PRI" in reason:  # the preface of HTTP/2 (RFC 9113 3.4)
        detail = "this port speaks HTTP/1.1; HTTP/2 is for a proxy in front of it"
        return RequestError(505, "HTTP version not supported", detail)
    return build_bad_request(f"not HTTP/1.1: {reason}")


def format_refusal(
    status: int, content_type: str, length: int, default_headers: RawHeaders
) -> bytes:
    """Return the head of the response to a request that is refused, after which no other comes."""
    headers = [
        *default_headers,
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % length),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + lines + b"\r\n"


def wrap_for_http10(
    app: ASGIApp, cycle: RequestResponseCycle, abort_response: Callable[[], None]
) -> ASGIApp:
    """Return an application whose response suits a client of HTTP/1.0.

    Such a response has no chunks. If its length is not known, it ends with the connection (RFC 9112
    6.3). uvicorn would send chunks anyway, and only from 0.54 on it says that it closes. It would
    also close after an error as after a complete response, so `abort_response` is called for one.
    The state of `cycle` is changed.
    """

    async def run_app(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def send_unchunked(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                has_length = b"content-length" in names
                if b"connection" not in names:
                    close = (b"connection", b"close")
                    message = {**message, "headers": [*message.get("headers", ()), close]}
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                # uvicorn checks bodies against a length: let each piece have the right one.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, send_unchunked)
        finally:
            if cycle.response_started and not cycle.response_complete:
                abort_response()

    cycle.waiting_for_100_continue = False  # HTTP/1.0 has no 100 (Continue), RFC 9110 10.1.1
    return run_app
