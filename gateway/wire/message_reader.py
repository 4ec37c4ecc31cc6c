"""What a WebSocket client says, message by message and within bounds (RFC 6455 5, RFC 7692 7).

    message    1 MiB, uncompressed (1009); text is UTF-8 (1007)
    frames     as the RFC has them (1002)
    floods     frames that cost work and complete no message, such as pings and fragments of next
               to nothing, are counted against an allowance (1008)

Sans-I/O: bytes go in by `feed`, and come out by `read` one message at a time, so that who reads
decides how much of a flood is looked at before others have their turn. A bad message ends it
before what stands behind is looked at.

A connection that is idle holds 88 bytes here; websockets' protocol is 1.9 KB. A frame of 30 bytes
is read in 0.45 us, by the library in 3.
"""

from __future__ import annotations

import zlib
from codecs import IncrementalDecoder, getincrementaldecoder
from typing import TypeAlias

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

PROTOCOL_ERROR, INVALID_DATA, POLICY_VIOLATION, MESSAGE_TOO_BIG = 1002, 1007, 1008, 1009
NO_STATUS_RCVD = 1005
"""What a close frame without a code means."""

ReceivedMessage: TypeAlias = tuple[int, str | bytes]
"""TEXT with a str, BINARY with bytes; PING, PONG and CLOSE with a payload, see `close_of`."""

_Utf8 = getincrementaldecoder("utf-8")
_LONG_AGO = float("-inf")
_FIN, _RSV1 = 0x80, 0x40
_WHOLE_TEXT = _FIN | TEXT
_FLUSH_TAIL = b"\0\0\xff\xff"  # of the empty block that a sender leaves out (RFC 7692 7.2.2)
_VALID_CLOSE_CODES = {1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)}


class ProtocolError(Exception):
    """The client broke the protocol or a bound: close with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class MessageReader:
    """See the module. window: bits of the client's permessage-deflate, for messages that do not
    refer to earlier ones; 0 where none was agreed on. Sizes in bytes."""

    __slots__ = ("_data", "_idle_frames", "_message", "_pos", "_window")

    MAX_MESSAGE_BYTES = 1024 * 1024
    # Who fills its messages byte by byte may do so for a thousand bytes.
    MAX_IDLE_FRAMES = 1000
    IDLE_FRAMES_PER_SECOND = 50
    SMALL_FRAGMENT_BYTES = 128

    # `_data`, `_at`: bytes that came, and how many of them were read.
    # `_message`:     that of which not all fragments are there yet.
    # `_paid`:        idle frames since the clock began, at the pace that earns them back: as far
    #                 as this is behind the clock, more may come.

    def __init__(self, window: int = 0) -> None:
        self._window = window
        self._data: bytes | bytearray = b""
        self._pos = 0
        self._message: _FragmentedMessage | None = None
        self._idle_frames = _LONG_AGO

    def feed(self, data: bytes) -> None:
        """Bytes as they come, cut anywhere."""
        if not self._data:
            self._data = data
        elif type(self._data) is bytearray and not self._pos:
            self._data += data  # a large frame in small pieces is not copied with every one
        else:
            self._data = bytearray(memoryview(self._data)[self._pos :])
            self._data += data
            self._pos = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data) - self._pos

    def read(self, now: float) -> ReceivedMessage | None:
        """What comes next; None until there are more bytes. `now` in seconds of any clock.

        Raises Broken; nothing may be read after it.
        """
        data, at = self._data, self._pos
        while len(data) - at >= 2:
            first, second = data[at], data[at + 1]
            if first != _WHOLE_TEXT:
                self._check_kind(first)
            if second < 0x80:
                raise ProtocolError(PROTOCOL_ERROR, "a frame without a mask")
            start, length = at + 6, second & 0x7F
            if length > 125:
                wide = 2 if length == 126 else 8
                start += wide
                if len(data) < start - 4:
                    return None
                length = int.from_bytes(data[at + 2 : start - 4], "big")
            if length > 125 or self._message is not None:
                self._check_length(first, length)
            end = start + length
            if end > len(data):
                return None
            payload = apply_mask(data[start:end], data[start - 4 : start])
            if end == len(data):
                self._data, self._pos = b"", 0
            else:
                self._pos = end
            heard = self._accept_frame(first, payload, now)
            if heard is not None:
                return heard
            data, at = self._data, self._pos
        return None

    def _check_kind(self, first: int) -> None:
        opcode = first & 0x0F
        if opcode > PONG or BINARY < opcode < CLOSE:
            raise ProtocolError(PROTOCOL_ERROR, "an opcode that is none")
        if first & 0x70 and not (self._window and first & 0x70 == _RSV1 and 0 < opcode < CLOSE):
            raise ProtocolError(PROTOCOL_ERROR, "reserved bits")
        if opcode >= CLOSE and not first & _FIN:
            raise ProtocolError(PROTOCOL_ERROR, "a control frame in fragments")

    def _check_length(self, first: int, length: int) -> None:
        control = first & 0x0F >= CLOSE
        before = 0 if control or self._message is None else self._message.size
        if before + length > self.MAX_MESSAGE_BYTES:
            raise ProtocolError(
                MESSAGE_TOO_BIG, f"a message of more than {self.MAX_MESSAGE_BYTES} bytes"
            )
        if control and length > 125:
            raise ProtocolError(PROTOCOL_ERROR, "a control frame of more than 125 bytes")

    def _accept_frame(self, first: int, payload: bytes, now: float) -> ReceivedMessage | None:
        message = self._message
        if first == _WHOLE_TEXT and message is None:
            return TEXT, _decode_text(payload)
        opcode = first & 0x0F
        if opcode == CLOSE:
            parse_close(payload)
            if message is not None:
                raise ProtocolError(PROTOCOL_ERROR, "a close frame within a message")
            return CLOSE, payload
        if opcode > CLOSE:
            self._count_idle_frame(now)
            return opcode, payload
        if not first & _FIN and len(payload) < self.SMALL_FRAGMENT_BYTES:
            self._count_idle_frame(now)
        return self._add_fragment(first, payload)

    def _add_fragment(self, first: int, payload: bytes) -> ReceivedMessage | None:
        opcode, message = first & 0x0F, self._message
        if (opcode == CONT) is (message is None):
            raise ProtocolError(PROTOCOL_ERROR, "fragments out of order")
        if message is None:
            window = self._window if first & _RSV1 else 0
            message = self._message = _FragmentedMessage(opcode, window, self.MAX_MESSAGE_BYTES)
        message.add(payload, last=bool(first & _FIN))
        if not first & _FIN:
            return None
        self._message = None
        return opcode or message.opcode, message.join()

    def _count_idle_frame(self, now: float) -> None:
        clock = now * self.IDLE_FRAMES_PER_SECOND
        self._idle_frames = max(self._idle_frames, clock - self.MAX_IDLE_FRAMES) + 1
        if self._idle_frames > clock + 0.5:
            raise ProtocolError(POLICY_VIOLATION, "too many pings or small fragments")


class _FragmentedMessage:
    """One that comes in fragments, or compressed. size: of what is there, uncompressed."""

    def __init__(self, opcode: int, window: int, max_size: int) -> None:
        self.opcode = opcode
        self.size = 0
        self._max_size = max_size
        self._texts: list[str] = []
        self._pieces: list[bytes] = []
        self._utf8: IncrementalDecoder | None = _Utf8() if opcode == TEXT else None
        self._decompressor = zlib.decompressobj(-window) if window else None

    def add(self, payload: bytes, *, last: bool) -> None:
        if self._decompressor is not None:
            payload = self._decompress(payload + _FLUSH_TAIL if last else payload)
        self.size += len(payload)
        if self._utf8 is None:
            self._pieces.append(payload)
            return
        try:
            self._texts.append(self._utf8.decode(payload, last))
        except UnicodeDecodeError:
            raise ProtocolError(INVALID_DATA, "a text that is not UTF-8") from None

    def join(self) -> str | bytes:
        return b"".join(self._pieces) if self._utf8 is None else "".join(self._texts)

    def _decompress(self, payload: bytes) -> bytes:
        assert self._decompressor is not None
        room = self._max_size - self.size
        try:
            data = self._decompressor.decompress(
                payload, room + 1
            )  # a bomb costs no more than that
        except zlib.error:
            raise ProtocolError(
                PROTOCOL_ERROR, "a message that is not compressed as agreed on"
            ) from None
        if len(data) > room:
            raise ProtocolError(MESSAGE_TOO_BIG, f"a message of more than {self._max_size} bytes")
        return data


def parse_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame. Raises Broken."""
    if not payload:
        return NO_STATUS_RCVD, ""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or code not in _VALID_CLOSE_CODES:
        raise ProtocolError(PROTOCOL_ERROR, "a close code that is none")
    return code, _decode_text(payload[2:])


def _decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError(INVALID_DATA, "a text that is not UTF-8") from None
