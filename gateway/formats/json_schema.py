"""JSON that a JSON Schema allows; checked when it is written and when it is read.

A schema that names no draft is of draft 7, as Confluent's serializers take it. `$ref` finds what
the registry has under that name, and never goes elsewhere: a schema must not make the gateway
fetch URLs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs
import orjson

from gateway.errors import FormatError

from .exact_numbers import ExactJson
from .schema_mismatch import build_pointer

_BASE_URI = "json-schema:///"


class JsonSchemaCodec:
    """One schema. used: those it refers to, by the names it calls them. Raises FormatError."""

    def __init__(self, text: str, used: Mapping[str, str]) -> None:
        try:
            schema = orjson.loads(text)
            base = _BASE_URI
            if isinstance(schema, dict):  # without an id of its own, no reference finds anything
                named = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
                base = schema.setdefault(named, f"{_BASE_URI}schema.json")
            plain = not isinstance(schema, dict) or "$schema" not in schema
            retriever = _create_retriever(
                {name: orjson.loads(each) for name, each in used.items()}, base
            )
            made = jsonschema_rs.Draft7Validator if plain else jsonschema_rs.validator_for
            self._validator = made(schema, retriever=retriever)
        except Exception as exc:  # of orjson and jsonschema_rs: whatever is wrong with it
            raise FormatError(f"the JSON Schema cannot be used: {exc}; correct it") from None

    def encode(self, value: Any) -> bytes:
        """Raises FormatError."""
        if type(value) is ExactJson:
            self._validate(value.value)
            return value.text
        self._validate(value)
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as exc:
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None

    def decode(self, data: bytes) -> Any:
        """Raises FormatError."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise FormatError(f"the bytes are not JSON: {exc}") from None
        self._validate(value)
        return value

    def decode_text(self, data: bytes) -> bytes:
        """The very text, if it is allowed. Raises FormatError."""
        self.decode(data)
        return data

    def _validate(self, value: Any) -> None:
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as exc:
            at = build_pointer(exc.instance_path)
            what = f"{at or 'the value'} does not fit its JSON Schema: {exc.message[:300]}"
            raise FormatError(f"{what}; correct it", pointer=at) from None
        except (ValueError, RecursionError) as exc:  # what no JSON can hold, or nested too deep
            raise FormatError(f"the value cannot be checked by its JSON Schema: {exc}") from None


def _create_retriever(used: Mapping[str, Any], base: str) -> Callable[[str], Any]:
    """Find a reference by its name as it was resolved, or by its own identifier; nothing else.

    What is found has the URI that it was asked for by as its identifier: with another one of its
    own, jsonschema_rs (0.60) asks for what it refers to by neither.
    """
    found = {place: each for name, each in used.items() for place in (name, urljoin(base, name))}
    own = {each[word]: each for each in used.values() for word in _identifier_keywords(each)}

    def retrieve(uri: str) -> Any:
        for name, each in (*found.items(), *used.items(), *own.items()):
            if uri == name or uri.endswith(f"/{name}"):
                words = _identifier_keywords(each)
                return {**each, **dict.fromkeys(words, uri)} if words else each
        raise ValueError(f"'{uri}' is none of its references; name it in `references`")

    return retrieve


def _identifier_keywords(schema: Any) -> list[str]:
    """Return the keywords by which a schema has an identifier of its own."""
    if not isinstance(schema, dict):
        return []
    word = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
    return [word] if isinstance(schema.get(word), str) else []
