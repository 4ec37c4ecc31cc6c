"""What no WebSocket server may take as if it were right, and the end that each deserves.

One table for the protocol alone and for the whole gateway.
"""

from __future__ import annotations

from random import Random

from support.raw_http import build_request
from support.raw_websocket import (
    KEY_HEADER,
    OPCODE_BINARY,
    OPCODE_CLOSE,
    OPCODE_CONTINUATION,
    OPCODE_PING,
    OPCODE_PONG,
    OPCODE_TEXT,
    UPGRADE_HEADERS,
    VERSION_HEADER,
    build_close,
    build_frame,
    build_handshake,
    deflate_payload,
)

MIB = 1024 * 1024
FLOOD_FRAME_COUNT = 1100  # more pings at once than are taken


def build_bomb(mib: int) -> bytes:
    """Zeros as DEFLATE. A mebibyte is compressed: its blocks refer to nothing before them."""
    piece = deflate_payload(bytes(MIB))
    return (piece + b"\0\0\xff\xff") * (mib - 1) + piece


BOMB = build_bomb(64)
_OPCODE_NAMES = {
    OPCODE_CONTINUATION: "continuation",
    OPCODE_TEXT: "text",
    OPCODE_BINARY: "binary",
    OPCODE_CLOSE: "close",
    OPCODE_PING: "ping",
}


def build_first_fragment(payload: bytes = b"", opcode: int = OPCODE_TEXT, rsv: int = 0) -> bytes:
    return build_frame(opcode, payload, fin=False, rsv=rsv)


def build_continuation(payload: bytes = b"", *, fin: bool = False, rsv: int = 0) -> bytes:
    return build_frame(OPCODE_CONTINUATION, payload, fin=fin, rsv=rsv)


def build_last_fragment(payload: bytes = b"") -> bytes:
    return build_continuation(payload, fin=True)


INVALID_FRAMES: dict[str, tuple[int | None, bytes]] = {
    **{
        f"reserved bits {rsv:03b} in {name}": (1002, build_frame(opcode, b"{}", rsv=rsv))
        for opcode, name in _OPCODE_NAMES.items()
        for rsv in (1, 2, 3, 4, 7)
    },
    **{f"opcode {n}": (1002, build_frame(n, b"{}")) for n in (*range(3, 8), *range(11, 16))},
    **{
        f"unmasked {name}": (1002, build_frame(opcode, b"{}", is_masked=False))
        for opcode, name in _OPCODE_NAMES.items()
    },
    "unmasked empty text": (1002, build_frame(OPCODE_TEXT, is_masked=False)),
    "unmasked, too large": (
        1002,
        build_frame(OPCODE_TEXT, announced_length=2**40, is_masked=False),
    ),
    "opcode 3, too large": (1002, build_frame(3, announced_length=2**40)),
    "ping of 126 bytes": (1002, build_frame(OPCODE_PING, b"a" * 126)),
    "ping of 64 KiB": (1002, build_frame(OPCODE_PING, b"a" * 65536)),
    "pong of 126 bytes": (1002, build_frame(OPCODE_PONG, b"a" * 126)),
    "close of 126 bytes": (1002, build_close(1000, b"a" * 124)),
    "ping in fragments": (1002, build_frame(OPCODE_PING, fin=False) + build_last_fragment()),
    "pong in fragments": (1002, build_frame(OPCODE_PONG, fin=False) + build_last_fragment()),
    "close in fragments": (1002, build_frame(OPCODE_CLOSE, b"\3\xe8", fin=False)),
    "continuation of nothing": (1002, build_last_fragment(b"{}")),
    "continuation of nothing, to be continued": (1002, build_continuation(b"{}")),
    "continuation behind the last": (
        1002,
        build_first_fragment(b"{") + build_last_fragment(b"}") + build_last_fragment(b"{}"),
    ),
    "text within a text": (1002, build_first_fragment(b"{") + build_frame(OPCODE_TEXT, b"{}")),
    "binary within a text": (1002, build_first_fragment(b"{") + build_frame(OPCODE_BINARY, b"{}")),
    "text within a binary": (
        1002,
        build_first_fragment(b"{", OPCODE_BINARY) + build_frame(OPCODE_TEXT, b"{}"),
    ),
    "start within a text": (1002, build_first_fragment(b"{") + build_first_fragment(b"{")),
    "close within a text": (1002, build_first_fragment(b"{") + build_close(1000)),
    "reserved bits in the second fragment": (
        1002,
        build_first_fragment(b"{") + build_continuation(b"}", rsv=2),
    ),
    "an HTTP request": (1002, build_request("/")),
    "TLS": (1002, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "NUL bytes": (1002, b"\0" * 1000),
    "bytes of 255": (1002, b"\xff" * 1000),
    "text without a frame": (1002, b'{"type": "ping"}'),
    "a broken frame behind a ping": (1002, build_frame(OPCODE_PING, b"a") + build_frame(3)),
    "a broken frame and much behind it": (1002, build_frame(3) + Random(1).randbytes(300_000)),
}
"""Frames that RFC 6455 5 does not have."""

CLOSE_FRAMES: dict[str, tuple[int | None, bytes]] = {
    **{
        f"close code {code}": (1002, build_close(code))
        for code in (0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "half a close code": (1002, build_frame(OPCODE_CLOSE, b"\3")),
    "reason that is not UTF-8": (1007, build_close(1000, b"\xff")),
    "reason cut within a letter": (1007, build_close(1000, b"gr\xc3")),
    **{
        f"right, {code}": (code, build_close(code, b"bye"))
        for code in (1000, 1001, 1011, 3000, 4999)
    },
    "right, without a code": (None, build_frame(OPCODE_CLOSE)),
    "right, with a reason of 123 bytes": (1000, build_close(1000, b"a" * 123)),
    "a message behind it": (1000, build_close(1000) + build_frame(OPCODE_TEXT, b"{}")),
    "another close behind it": (1000, build_close(1000) + build_close(1001)),
    "a broken frame behind it": (1000, build_close(1000) + build_frame(3)),
    "garbage behind it": (1000, build_close(1000) + Random(2).randbytes(300_000)),
}
"""Close frames, and what comes behind them (RFC 6455 5.5.1, 7.4)."""

INVALID_UTF8: dict[str, bytes] = {
    "a lone continuation byte": b"\x80",
    "latin-1": b"caf\xe9!",
    "two bytes, cut": b"\xc3",
    "three bytes, cut": b"\xe2\x82",
    "four bytes, cut": b"\xf0\x9f\x98",
    "overlong NUL": b"\xc0\x80",
    "overlong slash": b"\xe0\x80\xaf",
    "overlong in four": b"\xf0\x80\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "byte 254": b"\xfe",
    "UTF-16": '{"type"}'.encode("utf-16"),
}

INVALID_TEXTS: dict[str, tuple[int | None, bytes]] = {
    **{
        f"{name}, whole": (1007, build_frame(OPCODE_TEXT, bad))
        for name, bad in INVALID_UTF8.items()
    },
    **{
        f"{name}, in the last fragment": (
            1007,
            build_first_fragment(b"{") + build_last_fragment(bad),
        )
        for name, bad in INVALID_UTF8.items()
    },
    **{
        f"{name}, byte by byte": (
            1007,
            build_first_fragment(b'"')
            + b"".join(build_continuation(bad[n : n + 1]) for n in range(len(bad)))
            + build_last_fragment(b'"'),
        )
        for name, bad in INVALID_UTF8.items()
    },
    "not UTF-8 behind 100 KB": (1007, build_frame(OPCODE_TEXT, b"a" * 100_000 + b"\xff")),
    "not UTF-8, with a ping between": (
        1007,
        build_first_fragment(b"\xc3") + build_frame(OPCODE_PING) + build_last_fragment(b"a"),
    ),
    "not UTF-8, and a close behind it": (
        1007,
        build_frame(OPCODE_TEXT, b"\xff") + build_close(1000),
    ),
}
"""Text messages that are none (RFC 6455 8.1)."""

OVERSIZED_MESSAGES: dict[str, tuple[int | None, bytes]] = {
    "1 MiB and a byte": (1009, build_frame(OPCODE_TEXT, b"a" * (MIB + 1))),
    "1 MiB and a byte, announced": (1009, build_frame(OPCODE_TEXT, announced_length=MIB + 1)),
    "2 MiB, binary": (1009, build_frame(OPCODE_BINARY, b"a" * (2 * MIB))),
    "8 MiB, all sent": (
        1009,
        build_frame(OPCODE_TEXT, announced_length=8 * MIB) + b"a" * (8 * MIB),
    ),
    "2^32": (1009, build_frame(OPCODE_TEXT, announced_length=2**32)),
    "2^63 - 1": (1009, build_frame(OPCODE_TEXT, announced_length=2**63 - 1)),
    "2^63": (1009, build_frame(OPCODE_TEXT, announced_length=2**63)),
    "2^64 - 1": (1009, build_frame(OPCODE_BINARY, announced_length=2**64 - 1)),
    "2^63, ping": (1009, build_frame(OPCODE_PING, announced_length=2**63)),
    "fragments of 1 MiB and a byte": (
        1009,
        build_first_fragment(b"a" * MIB) + build_last_fragment(b"a"),
    ),
    "fragments, the second too large": (
        1009,
        build_first_fragment(b"a") + build_continuation(b"a" * MIB),
    ),
    "fragments without an end": (
        1009,
        build_first_fragment() + build_continuation(b"a" * 65536) * 17,
    ),
}
"""Messages over the limit: refused as soon as it is known."""

FRAME_FLOODS: dict[str, tuple[int | None, bytes]] = {
    "pings": (1008, build_frame(OPCODE_PING) * FLOOD_FRAME_COUNT),
    "pings of 125 bytes": (1008, build_frame(OPCODE_PING, b"a" * 125) * FLOOD_FRAME_COUNT),
    "pongs": (1008, build_frame(OPCODE_PONG) * FLOOD_FRAME_COUNT),
    "many more pings": (1008, build_frame(OPCODE_PING) * 200_000),
    "empty fragments": (1008, build_first_fragment() + build_continuation() * FLOOD_FRAME_COUNT),
    "fragments of one byte": (
        1008,
        build_first_fragment() + build_continuation(b"a") * FLOOD_FRAME_COUNT,
    ),
    "pings between fragments": (
        1008,
        build_first_fragment()
        + (build_continuation(b"a") + build_frame(OPCODE_PING)) * (FLOOD_FRAME_COUNT // 2),
    ),
}
"""Frames without end that complete no message."""

TRUNCATED_FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "one byte": build_frame(OPCODE_TEXT, b"{}")[:1],
    "within the length": build_frame(OPCODE_TEXT, b"a" * 300)[:3],
    "within the long length": build_frame(OPCODE_TEXT, b"a" * 70_000)[:7],
    "within the mask": build_frame(OPCODE_TEXT, b"{}")[:4],
    "within the payload": build_frame(OPCODE_TEXT, b'{"type": "ping"}')[:-1],
    "between fragments": build_first_fragment(b"{"),
    "within a close": build_close(1000)[:-1],
}
"""The client ends its side there: a server has nobody to tell."""

INVALID_COMPRESSED: dict[str, tuple[int | None, bytes]] = {
    "not deflate": (1002, build_frame(OPCODE_TEXT, b"\xff" * 20, rsv=4)),
    "a window too large": (
        1002,
        build_frame(
            OPCODE_TEXT,
            deflate_payload(b'"' + Random(3).randbytes(9000).hex().encode() * 2, 15),
            rsv=4,
        ),
    ),
    "RSV1 in a continuation": (
        1002,
        build_first_fragment(deflate_payload(b'"a"'), rsv=4) + build_continuation(b"a", rsv=4),
    ),
    "RSV1 in a ping": (1002, build_frame(OPCODE_PING, deflate_payload(b"a"), rsv=4)),
    "RSV1 in a close": (1002, build_frame(OPCODE_CLOSE, b"\3\xe8", rsv=4)),
    "RSV2": (1002, build_frame(OPCODE_TEXT, deflate_payload(b"{}"), rsv=6)),
    "not UTF-8": (1007, build_frame(OPCODE_TEXT, deflate_payload(b"\xff" * 300), rsv=4)),
    "not UTF-8, in fragments": (
        1007,
        build_first_fragment(deflate_payload(b"\xff" * 300)[:3], rsv=4)
        + build_last_fragment(deflate_payload(b"\xff" * 300)[3:]),
    ),
    "a bomb of 64 MiB": (1009, build_frame(OPCODE_TEXT, BOMB, rsv=4)),
    "a bomb of 1 MiB and a byte": (
        1009,
        build_frame(OPCODE_TEXT, deflate_payload(b" " * (MIB + 1)), rsv=4),
    ),
    "a bomb in two fragments": (
        1009,
        build_first_fragment(BOMB[:8000], rsv=4) + build_last_fragment(BOMB[8000:]),
    ),
    "a bomb, binary": (1009, build_frame(OPCODE_BINARY, BOMB, rsv=4)),
    "uncompressed, too large": (1009, build_frame(OPCODE_TEXT, announced_length=MIB + 1)),
    "empty fragments": (
        1008,
        build_first_fragment(rsv=4) + build_continuation() * FLOOD_FRAME_COUNT,
    ),
}
"""With permessage-deflate agreed on (RFC 7692)."""

CLOSING_CASES = INVALID_FRAMES | CLOSE_FRAMES | INVALID_TEXTS | OVERSIZED_MESSAGES | FRAME_FLOODS
"""All that ends with a close frame of this code, without an extension."""


def _build_upgrade(*headers: bytes) -> bytes:
    return build_request("/ws", *headers)


def _build_with_version(value: bytes) -> bytes:
    return build_request("/ws", *UPGRADE_HEADERS, KEY_HEADER, b"Sec-WebSocket-Version: " + value)


def _build_with_key(value: bytes) -> bytes:
    return build_request("/ws", *UPGRADE_HEADERS, VERSION_HEADER, b"Sec-WebSocket-Key: " + value)


REFUSED_HANDSHAKES: dict[str, tuple[int, bytes]] = {
    "no key": (400, _build_upgrade(*UPGRADE_HEADERS, VERSION_HEADER)),
    "empty key": (400, _build_with_key(b"")),
    "key of 15 bytes": (400, _build_with_key(b"AAAAAAAAAAAAAAAAAAAA")),
    "key of 17 bytes": (400, _build_with_key(b"AAAAAAAAAAAAAAAAAAAAAAA=")),
    "key that is no base64": (400, _build_with_key(b"dGhlIHNhbXBsZSBub25jZ!==")),
    "key without padding": (400, _build_with_key(b"dGhlIHNhbXBsZSBub25jZQ")),
    "key of byte 255": (400, _build_with_key(b"\xff" * 24)),
    "two keys": (400, build_handshake("/ws", KEY_HEADER)),
    "no version": (426, _build_upgrade(*UPGRADE_HEADERS, KEY_HEADER)),
    "empty version": (426, _build_with_version(b"")),
    "version 8": (426, _build_with_version(b"8")),
    "version 14": (426, _build_with_version(b"14")),
    "version 013": (426, _build_with_version(b"013")),
    "versions in a list": (426, _build_with_version(b"13, 8")),
    "two versions": (426, build_handshake("/ws", VERSION_HEADER)),
    "version of letters": (426, _build_with_version(b"latest")),
    "POST": (
        405,
        build_request("/ws", *UPGRADE_HEADERS, KEY_HEADER, VERSION_HEADER, method="POST"),
    ),
    "PUT": (405, build_request("/ws", *UPGRADE_HEADERS, KEY_HEADER, VERSION_HEADER, method="PUT")),
    "OPTIONS": (
        405,
        build_request("/ws", *UPGRADE_HEADERS, KEY_HEADER, VERSION_HEADER, method="OPTIONS"),
    ),
    "with a body": (400, build_handshake("/ws", b"Content-Length: 2") + b"{}"),
    "with a chunked body": (
        400,
        build_handshake("/ws", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    ),
    "two origins": (400, build_handshake("/ws", b"Origin: http://a", b"Origin: http://b")),
    "subprotocol with a space": (400, build_handshake("/ws", b"Sec-WebSocket-Protocol: a b")),
    "empty subprotocol": (400, build_handshake("/ws", b"Sec-WebSocket-Protocol: ")),
    "two upgrades": (426, build_handshake("/ws", b"Upgrade: websocket")),
    "no Host": (400, build_handshake().replace(b"Host: localhost\r\n", b"")),
    "two Hosts": (400, build_handshake("/ws", b"Host: b")),
    "header too large": (431, build_handshake("/ws", b"X: " + b"a" * 70_000)),
    "long request line": (414, build_handshake("/ws?" + "a" * 70_000)),
    "fragment": (400, build_handshake("/ws#a")),
    "space in the target": (400, build_handshake("/w s")),
    "byte 255 in the target": (400, build_handshake(b"/\xff")),
    "folded header": (400, build_handshake("/ws", b"X: a", b" b")),
    "NUL in a header": (400, build_handshake("/ws", b"X: \0")),
    "HTTP/1.0": (505, build_handshake().replace(b"HTTP/1.1", b"HTTP/1.0")),
    "HTTP/2.0": (505, build_handshake().replace(b"HTTP/1.1", b"HTTP/2.0")),
    "frames behind a refused handshake": (
        400,
        _build_with_key(b"a") + build_frame(OPCODE_TEXT, b"{}") * 100,
    ),
}
"""Handshakes, and the status of the problem that answers each (RFC 6455 4.2)."""

DECLINED_EXTENSIONS: dict[str, bytes] = {
    "unknown extension": b"x-webkit-deflate-frame",
    "unknown parameter": b"permessage-deflate; level=9",
    "twice the same parameter": b"permessage-deflate; server_no_context_takeover; "
    b"server_no_context_takeover",
    "value where none may be": b"permessage-deflate; server_no_context_takeover=1",
    "no value where one has to be": b"permessage-deflate; server_max_window_bits",
    "window of 7": b"permessage-deflate; server_max_window_bits=7",
    "window of 8, which zlib has not": b"permessage-deflate; server_max_window_bits=8",
    "window of 16": b"permessage-deflate; server_max_window_bits=16",
    "window of 012": b"permessage-deflate; server_max_window_bits=012",
    "window of letters": b"permessage-deflate; client_max_window_bits=many",
}
"""Offers that are declined (RFC 7692 7.1): the connection goes on without compression."""

INVALID_EXTENSIONS: dict[str, tuple[int, bytes]] = {
    name: (400, build_handshake("/ws", b"Sec-WebSocket-Extensions: " + value))
    for name, value in {
        "only a semicolon": b";",
        "no name": b"; a=b",
        "no parameter": b"permessage-deflate;",
        "no parameter's value": b"permessage-deflate; server_max_window_bits=",
        "an open quote": b'permessage-deflate; server_max_window_bits="12',
        "a space in the name": b"permessage deflate",
    }.items()
}
"""Where extensions are looked at, their syntax has to be right (RFC 6455 9.1)."""
