"""Validate JSON by a JSON Schema, when it is written and when it is read.

A schema that names no draft is of draft 7, as in Confluent's serializers. `$ref` finds only schemas
that the registry lists as references: a schema must not make the gateway fetch URLs.

A pattern that only the engine of another language compiles, such as Java's `++`, is ignored in
reading, because the writer of the record has checked it. Writing by such a schema is refused.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs
import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.errors import FormatError

from .budget import COMPILED_FACTOR
from .exact_values import ExactJson
from .json_schema_work import SchemaWork
from .serialization import build_pointer

_BASE_URI = "json-schema:///"
# Of all patterns of a schema when compiled; `\p{L}{100}` takes 5 MB, and 20 ms to compile.
MAX_PATTERN_BYTES = 128 << 20
# Classes such as `\d` times characters, of all patterns: jsonschema_rs translates a class at a
# time, and reads the whole pattern for each. So many take 0.1 to 0.5 s.
MAX_CLASS_STEPS = 500_000
# Ways of a string through a pattern with lookaround or a reference to a group: 0.15 ms, not 13.
BACKTRACK_LIMIT = 10_000
MAX_DFA_BYTES = 1 << 20  # of one pattern, in addition, while values are matched with it


class JsonSchemaCodec:
    """The codec of one JSON Schema; `Codecs` creates and keeps one per schema id.

    Attributes:
        pattern_bytes: How many bytes its compiled patterns take at most.
    """

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """Compile a schema with its references by name; raises FormatError if it cannot be used."""
        self._unusable_patterns: list[str] = []
        text_bytes = len(text) + sum(map(len, references.values()))
        self.pattern_bytes = min(COMPILED_FACTOR * text_bytes, MAX_PATTERN_BYTES)
        try:
            schema, base, retriever = load_schema(text, references)
            has_no_draft = not isinstance(schema, dict) or "$schema" not in schema
            draft = jsonschema_rs.Draft7 if has_no_draft else None
            unreadable: ValueError | None = None
            try:
                self._work = SchemaWork(schema, base, draft, retriever)
            except ValueError as exc:  # such as a missing reference: compiling says it better
                unreadable = exc
            create_validator = (
                jsonschema_rs.Draft7Validator if has_no_draft else jsonschema_rs.validator_for
            )
            schemas = (schema, *map(orjson.loads, references.values()))
            patterns = _find_patterns(schemas)
            if sum(map(_count_class_steps, patterns)) > MAX_CLASS_STEPS:
                raise ValueError("its patterns have too many classes such as \\d; write [0-9]")
            pattern_count = max(1, len(patterns))
            while True:
                options = jsonschema_rs.FancyRegexOptions(
                    backtrack_limit=BACKTRACK_LIMIT,
                    size_limit=self.pattern_bytes // pattern_count,
                    dfa_size_limit=min(MAX_PATTERN_BYTES // pattern_count, MAX_DFA_BYTES),
                )
                try:
                    self._validator = create_validator(
                        schema, retriever=retriever, pattern_options=options
                    )
                    break
                except jsonschema_rs.ValidationError:
                    if self._unusable_patterns:
                        raise
                    if self.pattern_bytes == MAX_PATTERN_BYTES:
                        self._unusable_patterns = _remove_unusable_patterns(schema, options)
                        if not self._unusable_patterns:
                            raise
                    self.pattern_bytes = min(8 * self.pattern_bytes, MAX_PATTERN_BYTES)
            if unreadable is not None:
                raise unreadable
        except FormatError:
            raise
        except jsonschema_rs.ValidationError as exc:
            problem, remedy = exc.message, "correct it"
            # The registry is its own here, not that of schemas.
            resource, is_unknown, _ = problem.partition(" is not present in a registry")
            if is_unknown:
                problem = f"$ref {resource.removeprefix('Resource ')} is none of its references"
                remedy = "name it in `references` of the schema registry"
            raise FormatError(f"the JSON Schema cannot be used: {problem}; {remedy}") from None
        except Exception as exc:  # orjson and jsonschema_rs raise many kinds
            raise FormatError(f"the JSON Schema cannot be used: {exc}; correct it") from None

    def encode(self, value: Any) -> bytes:
        for pattern in self._unusable_patterns:
            raise FormatError(
                f"the pattern {pattern} of the JSON Schema cannot be checked here; write it as "
                "ECMA 262 does, with fewer repetitions"
            )
        if type(value) is ExactJson:
            self._validate(value.value, value.text)
            return value.text
        try:
            text = orjson.dumps(value)
        except orjson.JSONEncodeError as exc:
            raise FormatError(f"the value cannot be written as JSON: {exc}") from None
        self._validate(value, text)
        return text

    def decode(self, data: bytes) -> Any:
        try:
            value = parse_json(data)
        except orjson.JSONDecodeError as exc:
            raise FormatError(f"the bytes are not JSON: {exc}") from None
        self._validate(value, data)
        return value

    def decode_text(self, data: bytes) -> bytes:
        self.decode(data)
        return data.removeprefix(BOM_UTF8)

    def _validate(self, value: Any, text: bytes) -> None:
        self._work.check_size(value, text)
        try:
            # Errors take a multiple of the time, so they are computed only if there are any.
            if self._validator.is_valid(value):
                return
            if self._work.has_cheap_error(value, len(text)):
                self._validator.validate(value)
            problem = "the value does not fit its JSON Schema, which has too many branches"
            raise FormatError(f"{problem} to find the place; correct it")
        except jsonschema_rs.ValidationError as exc:
            pointer = build_pointer(exc.instance_path)
            problem = f"{pointer or 'the value'} does not fit its JSON Schema: {exc.message[:300]}"
            raise FormatError(f"{problem}; correct it", pointer=pointer) from None
        except (ValueError, RecursionError) as exc:  # not a value of JSON, or nested too deep
            raise FormatError(f"the value cannot be checked by its JSON Schema: {exc}") from None


def load_schema(text: str, references: Mapping[str, str]) -> tuple[Any, str, Callable[[str], Any]]:
    """Return a schema, its identifier, and the function that finds the schema of a URI."""
    schema = orjson.loads(text)
    base = _BASE_URI
    if isinstance(schema, dict):  # relative references resolve only if it has an id
        keyword = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        base = schema.setdefault(keyword, f"{_BASE_URI}schema.json")
    parsed = {name: orjson.loads(schema_text) for name, schema_text in references.items()}
    return schema, base, _create_retriever(parsed, base)


def _find_patterns(schemas: Iterable[Any]) -> list[str]:
    patterns: list[str] = []
    pending = list(schemas)
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(pattern := part.get("pattern"), str):
                patterns.append(pattern)
            names = part.get("patternProperties")
            patterns += names if isinstance(names, dict) else ()
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return patterns


def _count_class_steps(pattern: str) -> int:
    return len(pattern) * sum(pattern.count(f"\\{name}") for name in "dDsSwWc")


def _remove_unusable_patterns(schema: Any, options: jsonschema_rs.FancyRegexOptions) -> list[str]:
    removed = []
    if isinstance(schema, dict):
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not _is_usable(pattern, options):
            removed.append(schema.pop("pattern"))
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict):
            for name in [name for name in patterns if not _is_usable(name, options)]:
                removed.append(name)
                del patterns[name]
                for keyword in ("additionalProperties", "unevaluatedProperties"):
                    schema.pop(keyword, None)
        schema = [schema[keyword] for keyword in schema if keyword not in ("const", "enum")]
    for part in schema if isinstance(schema, list) else ():
        removed += _remove_unusable_patterns(part, options)
    return removed


def _is_usable(pattern: str, options: jsonschema_rs.FancyRegexOptions) -> bool:
    try:
        jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=options)
    except jsonschema_rs.ValidationError:
        return False
    return True


def _create_retriever(references: Mapping[str, Any], base: str) -> Callable[[str], Any]:
    """Create the function that finds a reference by its name, resolved or not, or by its own id.

    A reference is returned with the requested URI as its identifier: jsonschema_rs (0.60) would not
    ask for the references of a schema with another one.
    """
    by_uri = {
        uri: schema for name, schema in references.items() for uri in (name, urljoin(base, name))
    }
    by_own_id = {
        schema[keyword]: schema
        for schema in references.values()
        for keyword in _identifier_keywords(schema)
    }

    def retrieve(uri: str) -> Any:
        for name, schema in (*by_uri.items(), *references.items(), *by_own_id.items()):
            if uri == name or uri.endswith(f"/{name}"):
                keywords = _identifier_keywords(schema)
                return {**schema, **dict.fromkeys(keywords, uri)} if keywords else schema
        raise ValueError("it is none of the references")

    return retrieve


def _identifier_keywords(schema: Any) -> list[str]:
    if not isinstance(schema, dict):
        return []
    keyword = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
    return [keyword] if isinstance(schema.get(keyword), str) else []
