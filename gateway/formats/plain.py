"""Encode and decode the formats that need no schema: base64, JSON, text."""

from __future__ import annotations

from base64 import b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from typing import Any

import orjson

from gateway.errors import FormatError

from .exact_numbers import ExactJson
from .serialization import SerializationFormat


def encode_plain(format: SerializationFormat, value: Any) -> bytes:
    """Encode a JSON value that is not null.

    Args:
        format: BINARY, JSON or STRING.
        value: The value; base64 text for BINARY.

    Raises:
        FormatError: The value does not fit the format.
    """
    if format is SerializationFormat.JSON:
        if type(value) is ExactJson:
            return value.text
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as exc:
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None
    if not isinstance(value, str):
        kind = "base64 text" if format is SerializationFormat.BINARY else "text"
        raise FormatError(
            f"format {format.name.lower()} takes {kind}, not {describe_json_type(value)}; "
            "write a JSON string, or use format json"
        )
    return _decode_base64(value) if format is SerializationFormat.BINARY else _encode_utf8(value)


def decode_plain(format: SerializationFormat, data: bytes) -> Any:
    """Decode bytes into a JSON value.

    Args:
        format: BINARY, JSON or STRING.
        data: The bytes.

    Raises:
        FormatError: The bytes do not fit the format.
    """
    if format is SerializationFormat.BINARY:
        return b64encode(data).decode()
    try:
        return orjson.loads(data) if format is SerializationFormat.JSON else data.decode()
    except orjson.JSONDecodeError as exc:
        raise FormatError(f"the bytes are not JSON: {exc}; read them as binary") from None
    except UnicodeDecodeError as exc:
        raise FormatError(f"the bytes are not UTF-8 text: {exc}; read them as binary") from None


def describe_json_type(value: object) -> str:
    """Return what JSON calls the type of a value, with an article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "a string", int: "a number", float: "a number", list: "an array"}
    return kinds.get(type(value), "an object")


def _decode_base64(text: str) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True) if text else b""
    except (NotBase64, ValueError) as exc:
        problem = f"the value is not base64: {str(exc).lower()}"
        raise FormatError(
            f"{problem}; encode the bytes by RFC 4648 4, or use format string"
        ) from None


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        problem = "the text holds half of a surrogate pair, which UTF-8 cannot carry"
        raise FormatError(f"{problem}; correct it") from None
