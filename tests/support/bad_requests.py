"""Requests that no server may answer as if they were right, and the status each deserves.

One table for the protocol alone and for the whole gateway.
"""

from __future__ import annotations

from support.raw_http import build_request

KIB = 1024
LONG_VALUE = b"a" * 70 * KIB
CHUNKED_HEADER = b"Transfer-Encoding: chunked"


def build_post(*headers: bytes, body: bytes = b"", path: str = "/echo") -> bytes:
    return build_request(path, *headers, method="POST") + body


BAD_HEADS: dict[str, tuple[int, bytes]] = {
    "header too large": (431, build_request("/", b"X: " + LONG_VALUE)),
    "many small headers": (431, build_request("/", *[b"X: y"] * 20_000)),
    "257 headers": (431, build_request("/", *[b"X: y"] * 256)),
    "1 MB header": (431, build_request("/", b"X: " + b"a" * 1024 * KIB)),
    "8 MB header": (431, build_request("/", b"X: " + b"a" * 8192 * KIB)),
    "endless head": (431, b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100_000),
    "long request line": (414, build_request(b"/" + LONG_VALUE)),
    "endless request line": (414, b"GET /" + b"a" * 1024 * KIB),
    "announced body too large": (413, build_post(b"Content-Length: 65537")),
    "body too large, asks first": (
        413,
        build_post(b"Content-Length: 65537", b"Expect: 100-continue"),
    ),
    "GET with a large body": (413, build_request("/", b"Content-Length: 99999")),
    "an unknown expectation": (417, build_request("/", b"Expect: 200-ok")),
    "two expectations": (417, build_request("/", b"Expect: 100-continue, other")),
    "length and chunked": (
        400,
        build_post(b"Content-Length: 5", CHUNKED_HEADER, body=b"0\r\n\r\n"),
    ),
    "chunked and length": (
        400,
        build_post(CHUNKED_HEADER, b"Content-Length: 5", body=b"0\r\n\r\n"),
    ),
    "two lengths": (400, build_post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello")),
    "two equal lengths": (
        400,
        build_post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"),
    ),
    "list of lengths": (400, build_post(b"Content-Length: 5, 5", body=b"hello")),
    "length +5": (400, build_post(b"Content-Length: +5", body=b"hello")),
    "length -5": (400, build_post(b"Content-Length: -5", body=b"hello")),
    "length 0x5": (400, build_post(b"Content-Length: 0x5", body=b"hello")),
    "length 1_0": (400, build_post(b"Content-Length: 1_0", body=b"hello")),
    "length empty": (400, build_post(b"Content-Length: ", body=b"hello")),
    "length of 2^70": (400, build_post(b"Content-Length: 1180591620717411303424")),
    "gzip": (501, build_post(b"Transfer-Encoding: gzip", body=b"hello")),
    "gzip, chunked": (501, build_post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    "chunked, gzip": (400, build_post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n")),
    "chunked twice": (400, build_post(CHUNKED_HEADER, CHUNKED_HEADER, body=b"0\r\n\r\n")),
    "vertical tab chunked": (400, build_post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n")),
    "chunked in 1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "folded header": (400, build_request("/", b"X: a", b" b")),
    "space before colon": (400, build_request("/", b"X : a")),
    "space before name": (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    "no name": (400, build_request("/", b": a")),
    "no colon": (400, build_request("/", b"abc")),
    "CR in a value": (400, build_request("/", b"X: a\rb")),
    "LF in a value": (400, build_request("/", b"X: a\nY: b")),
    "NUL in a value": (400, build_request("/", b"X: a\0b")),
    "control byte in a value": (400, build_request("/", b"X: a\x01b")),
    "lines ended by LF": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "byte 255 in a name": (400, build_request("/", b"X\xff: a")),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, build_request("/", b"Host: b")),
    "Host with a path": (400, b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    "Host with a user": (400, b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    "Host with a space": (400, b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
    "Host list": (400, b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    "Host byte 255": (400, b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "HTTP/1.2": (400, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "NUL bytes": (400, b"\0" * 100),
    "unknown method": (400, build_request("/", method="BREW")),
    "method in lower case": (400, build_request("/", method="get")),
    "CONNECT": (501, build_request("a:80", method="CONNECT")),
    "GET *": (400, build_request("*")),
    "no slash": (400, build_request("foo")),
    "ftp": (400, build_request("ftp://a/")),
    "user in the target": (400, build_request("http://u:p@a/")),
    "port of letters": (400, build_request("http://a:b/")),
    "fragment": (400, build_request("/a#b")),
    "space in the target": (400, build_request("/a b")),
    "NUL in the target": (400, build_request(b"/a\0")),
    "byte 255 in the target": (400, build_request(b"/\xff")),
    "upgrade with a body": (
        400,
        build_post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5", body=b"hello"),
    ),
}
"""Refused by their head: no application sees them."""

BAD_BODIES: dict[str, tuple[int, bytes]] = {
    "body too large": (413, build_post(b"Content-Length: 1000000", body=b"x" * 1_000_000)),
    "chunked body too large": (
        413,
        build_post(CHUNKED_HEADER, body=b"10000\r\n%s\r\n" % (b"x" * 65536) * 4),
    ),
    "chunk extensions": (413, build_post(CHUNKED_HEADER, body=b"1;" + b"e" * 1024 * KIB)),
    "chunks of one byte": (413, build_post(CHUNKED_HEADER, body=b"1\r\nx\r\n" * 20_000)),
    "trailers": (413, build_post(CHUNKED_HEADER, body=b"0\r\n" + b"X: y\r\n" * 200_000)),
    "length in a trailer": (
        400,
        build_post(CHUNKED_HEADER, body=b"0\r\nContent-Length: 5\r\n\r\n"),
    ),
    "chunk of -5": (400, build_post(CHUNKED_HEADER, body=b"-5\r\nhello\r\n")),
    "chunk of 0x5": (400, build_post(CHUNKED_HEADER, body=b"0x5\r\nhello\r\n")),
    "chunk of 2^70": (400, build_post(CHUNKED_HEADER, body=b"400000000000000000\r\n")),
    "chunk line ended by LF": (400, build_post(CHUNKED_HEADER, body=b"5\nhello\r\n0\r\n\r\n")),
    "chunk longer than said": (400, build_post(CHUNKED_HEADER, body=b"2\r\nhello\r\n0\r\n\r\n")),
}
"""Refused by their body, if the application did not answer before it was read."""

BAD_REQUESTS = BAD_HEADS | BAD_BODIES
