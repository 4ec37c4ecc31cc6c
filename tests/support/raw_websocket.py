"""WebSocket by hand: a handshake, frames as one wants them, and what came back."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import cycle

from support.raw_http import RawConnection, RawResponse, build_request

OPCODE_CONTINUATION, OPCODE_TEXT, OPCODE_BINARY, OPCODE_CLOSE, OPCODE_PING, OPCODE_PONG = (
    0,
    1,
    2,
    8,
    9,
    10,
)

UPGRADE_HEADERS = (b"Connection: Upgrade", b"Upgrade: websocket")
KEY_HEADER = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
VERSION_HEADER = b"Sec-WebSocket-Version: 13"
DEFLATE_HEADER = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"


def build_handshake(path: str | bytes = "/ws", *headers: bytes) -> bytes:
    return build_request(path, *UPGRADE_HEADERS, KEY_HEADER, VERSION_HEADER, *headers)


def build_frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    is_masked: bool = True,
    announced_length: int | None = None,
    length_bytes: int = 0,
) -> bytes:
    """A client's frame. rsv: 4 is RSV1. length: announced, if another than the payload's.
    wide: bytes of the length field, 2 or 8, where fewer would do."""
    count = len(payload) if announced_length is None else announced_length
    length_bytes = length_bytes or (0 if count < 126 else 2 if count < 65536 else 8)
    first = (fin << 7) | (rsv << 4) | opcode
    short = {0: count, 2: 126, 8: 127}[length_bytes]
    head = bytes((first, (is_masked << 7) | short)) + (
        count.to_bytes(length_bytes, "big") if length_bytes else b""
    )
    return head + (b"\1\2\3\4" + mask_payload(payload) if is_masked else payload)


def mask_payload(payload: bytes) -> bytes:
    if len(payload) > 4096:
        key = int.from_bytes(b"\1\2\3\4" * (len(payload) // 4 + 1), "big")
        padded = payload + bytes(-len(payload) % 4 or 4)
        return (int.from_bytes(padded, "big") ^ key).to_bytes(len(padded), "big")[: len(payload)]
    return bytes(byte ^ key for byte, key in zip(payload, cycle(b"\1\2\3\4"), strict=False))


def build_close(code: int, reason: bytes = b"") -> bytes:
    return build_frame(OPCODE_CLOSE, struct.pack("!H", code) + reason)


def deflate_payload(payload: bytes, window_bits: int = 12) -> bytes:
    """A message's payload under permessage-deflate."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -window_bits)
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


@dataclass
class ServerFrame:
    """A frame of the server."""

    opcode: int
    payload: bytes
    is_compressed: bool = False

    @property
    def close_code(self) -> int | None:
        """Of a close frame; None if it gives none."""
        assert self.opcode == OPCODE_CLOSE, self
        return int.from_bytes(self.payload[:2], "big") if self.payload else None

    @property
    def message_text(self) -> str:
        """Of a message."""
        payload = self.payload
        if self.is_compressed:
            payload = zlib.decompressobj(-12).decompress(payload + b"\0\0\xff\xff")
        return payload.decode()


class RawWebSocket(RawConnection):
    """A connection whose handshake is done."""

    response: RawResponse

    @classmethod
    def open_socket(cls, port: int, path: str | bytes = "/ws", *headers: bytes) -> RawWebSocket:
        made = cls(port)
        try:
            made.send_bytes(build_handshake(path, *headers))
            made.response = made.read_head()
            assert made.response.status == 101, made.response
        except BaseException:
            made.socket.close()
            raise
        return made

    def read_frame(self) -> ServerFrame:
        """The next frame; whole, unmasked, and with no reserved bit but RSV1."""
        first, second = self.read_exactly(2)
        assert first & 0x80 and not first & 0x30 and not second & 0x80, (first, second)
        wide = {126: 2, 127: 8}.get(second, 0)
        length = int.from_bytes(self.read_exactly(wide), "big") if wide else second
        return ServerFrame(first & 0x0F, self.read_exactly(length), bool(first & 0x40))

    def read_text(self) -> str:
        """The next message, with what is between skipped."""
        while (said := self.read_frame()).opcode != OPCODE_TEXT:
            assert said.opcode in (OPCODE_PING, OPCODE_PONG), said
        return said.message_text

    def read_close_code(self) -> int | None:
        """The code of the close frame, and the clean end of the connection behind it."""
        while (said := self.read_frame()).opcode != OPCODE_CLOSE:
            pass
        self.read_close()
        return said.close_code
