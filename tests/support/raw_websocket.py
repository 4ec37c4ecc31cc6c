"""WebSocket by hand: a handshake, frames as one wants them, and what came back."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import cycle

from support.raw_http import Answer, Wire, get

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

UPGRADE = (b"Connection: Upgrade", b"Upgrade: websocket")
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
VERSION = b"Sec-WebSocket-Version: 13"
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"


def handshake(path: str | bytes = "/ws", *headers: bytes) -> bytes:
    return get(path, *UPGRADE, KEY, VERSION, *headers)


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int | None = None,
    wide: int = 0,
) -> bytes:
    """A client's frame. rsv: 4 is RSV1. length: announced, if another than the payload's.
    wide: bytes of the length field, 2 or 8, where fewer would do."""
    count = len(payload) if length is None else length
    wide = wide or (0 if count < 126 else 2 if count < 65536 else 8)
    first = (fin << 7) | (rsv << 4) | opcode
    short = {0: count, 2: 126, 8: 127}[wide]
    head = bytes((first, (masked << 7) | short)) + (count.to_bytes(wide, "big") if wide else b"")
    return head + (b"\1\2\3\4" + mask(payload) if masked else payload)


def mask(payload: bytes) -> bytes:
    if len(payload) > 4096:
        key = int.from_bytes(b"\1\2\3\4" * (len(payload) // 4 + 1), "big")
        padded = payload + bytes(-len(payload) % 4 or 4)
        return (int.from_bytes(padded, "big") ^ key).to_bytes(len(padded), "big")[: len(payload)]
    return bytes(byte ^ key for byte, key in zip(payload, cycle(b"\1\2\3\4"), strict=False))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def squeezed(payload: bytes, window: int = 12) -> bytes:
    """A message's payload under permessage-deflate."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -window)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


@dataclass
class Said:
    """A frame of the server."""

    opcode: int
    payload: bytes
    compressed: bool = False

    @property
    def code(self) -> int | None:
        """Of a close frame; None if it gives none."""
        assert self.opcode == CLOSE, self
        return int.from_bytes(self.payload[:2], "big") if self.payload else None

    @property
    def text(self) -> str:
        """Of a message."""
        payload = self.payload
        if self.compressed:
            payload = zlib.decompressobj(-12).decompress(payload + b"\0\0\xff\xff")
        return payload.decode()


class Socket(Wire):
    """A connection whose handshake is done."""

    answered: Answer

    @classmethod
    def open(cls, port: int, path: str | bytes = "/ws", *headers: bytes) -> Socket:
        made = cls(port)
        try:
            made.send(handshake(path, *headers))
            made.answered = made.answer_head()
            assert made.answered.status == 101, made.answered
        except BaseException:
            made.socket.close()
            raise
        return made

    def said(self) -> Said:
        """The next frame; whole, unmasked, and with no reserved bit but RSV1."""
        first, second = self.take(2)
        assert first & 0x80 and not first & 0x30 and not second & 0x80, (first, second)
        wide = {126: 2, 127: 8}.get(second, 0)
        length = int.from_bytes(self.take(wide), "big") if wide else second
        return Said(first & 0x0F, self.take(length), bool(first & 0x40))

    def text(self) -> str:
        """The next message, with what is between skipped."""
        while (said := self.said()).opcode != TEXT:
            assert said.opcode in (PING, PONG), said
        return said.text

    def closed(self) -> int | None:
        """The code of the close frame, and the clean end of the connection behind it."""
        while (said := self.said()).opcode != CLOSE:
            pass
        self.closes()
        return said.code
