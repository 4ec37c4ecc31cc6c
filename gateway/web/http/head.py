"""What a request head must be beyond what the parser sees to (RFC 9112). Sans-I/O.

llhttp, in its strict mode, already refuses: both lengths at once, several or odd
Content-Length, folded lines, space before a colon, bare CR and LF, control bytes. Left to us
are the rules of meaning, where two servers in a row may differ and a request is smuggled.
"""

from __future__ import annotations

import re

from gateway.errors import RequestError

RawHeaders = list[tuple[bytes, bytes]]
"""Names in lower case, values as received."""

MAX_QUERY_PARAMETERS = 256  # of a query; 7,000 fit into a head, and take 3 ms to be read

_HOST_PATTERN = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(:[0-9]*)?")
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_FRAMING_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding"))


def build_bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)


def check_query(target: bytes) -> None:
    """Raise RequestError 400 for a query of more than MAX_PARAMETERS, before it is read."""
    if len(target) > MAX_QUERY_PARAMETERS and target.count(b"&") >= MAX_QUERY_PARAMETERS:
        raise build_bad_request(
            f"the query has more than {MAX_QUERY_PARAMETERS} parameters; ask for less"
        )


def parse_body_length(version: str, headers: RawHeaders) -> int | None:
    """The bytes of body announced, None for a chunked one.

    Raises RequestError for a head that another server could read differently.
    """
    if version not in ("1.1", "1.0"):
        detail = "this port speaks HTTP/1.1; other versions are for a proxy in front of it"
        raise RequestError(505, "HTTP version not supported", detail)
    length: int | None = 0
    hosts = 0
    for name, value in headers:
        if name not in _FRAMING_HEADERS:
            continue
        if name == b"host":
            hosts += 1
            if _HOST_PATTERN.fullmatch(value) is None:
                raise build_bad_request("Host is not a host with perhaps a port (RFC 9112 3.2)")
        elif name == b"content-length":
            length = int(value)
        else:
            _require_chunked(version, value)
            length = None
    if hosts != 1 and (hosts or version == "1.1"):
        raise build_bad_request(f"{hosts} Host headers; send exactly one (RFC 9112 3.2)")
    return length


def _require_chunked(version: str, value: bytes) -> None:
    if version == "1.0":
        raise build_bad_request("Transfer-Encoding in HTTP/1.0 (RFC 9112 6.1); use Content-Length")
    if value.lower() != b"chunked":
        detail = "no transfer coding but chunked is known here (RFC 9112 6.1)"
        raise RequestError(501, "Transfer coding not implemented", detail)


def to_origin_form(method: bytes, target: bytes, headers: RawHeaders) -> bytes:
    """A target that is no plain path, as path and query; a host in it takes the place of Host's
    (RFC 9112 3.2). `*` stays for OPTIONS.

    Raises RequestError for targets of other servers' business.
    """
    if method == b"CONNECT":
        raise RequestError(501, "Method not implemented", "this is no proxy: no CONNECT here")
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
        raise build_bad_request("more than host and port in the request target (RFC 9110 4.2.4)")
    headers[:] = [(n, authority if n == b"host" else v) for n, v in headers]
    return path if path.startswith(b"/") else b"/" + path


def head_size(target: bytes, headers: RawHeaders) -> int:
    """Bytes of the whole head on the wire, white space around values aside."""
    line = len(target) + len(b"GET  HTTP/1.1\r\n\r\n")
    return line + sum([len(name) + len(value) + 4 for name, value in headers])
