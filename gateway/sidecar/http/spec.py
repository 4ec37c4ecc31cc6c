"""Merge the OpenAPI document that is served, and validate requests against it.

There is one YAML per module (`spec/producer.yaml`), of which `paths`, `components` and `tags` are
merged. The schemas of OpenAPI 3.1 are JSON Schema 2020-12, so they are compiled as they are served.
Unknown fields of a body are refused (see `body_fields.FieldNames`). Unknown parameters are
accepted, because proxies and tools add some, unless the name is nearly a known one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
from ruamel.yaml import YAML
from starlette.requests import Request

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.config.types.substitution import find_closest
from gateway.core.times import parse_time
from gateway.version import __version__

from .body_fields import (
    MIN_SIMILARITY,
    FieldNames,
    build_normalizer,
    iter_unknown_names,
    resolve_reference,
)
from .requests import read_body
from .status import StatusError

SPEC_DIRECTORY = Path(__file__).parent / "spec"
METHODS = ("get", "put", "post", "delete", "patch")
TAG_ORDER = (
    "producer", "consumer", "reactive", "deadLetter", "replay", "ksqldb", "v2", "audit", "admin",
    "health",
)  # fmt: skip
"""The groups of operations in the order of documents: what most people look for comes first."""
UNLIMITED_PREFIX = "/health/"  # paths without a limit of requests
LIMITED = {"$ref": "#/components/responses/Limited"}
FORMAT_SCHEMAS = {"Format", "FormatName", "FormatOrNone", "DeadLetterFormat"}
"""The schemas whose values are the names and numbers of serialization formats."""
MAX_DETAIL_CHARS = 200  # of a validator's message, which quotes the value
MAX_NAMED_FIELDS = 8  # that an error lists

# What to do about a violation of a schema, by the keyword of JSON Schema.
_ADVICE = {
    "required": "add it",
    "oneOf": "give it exactly one of the fields of which it needs one",
    "type": "send a value of that type",
    "enum": "use one of the values that it has",
    "minimum": "send a number in the allowed range",
    "maximum": "send a number in the allowed range",
    "minLength": "send a text of an allowed length",
    "maxLength": "send a text of an allowed length",
    "minItems": "add what is missing",
    "maxItems": "send at most {} of them in one request",
    "pattern": "write it in the form of the pattern",
}
_SEE_DOCS = "GET /docs has the fields of each request"

_JSON = re.compile(r"application/([\w.+-]*\+)?json", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Spec:
    """Hold the merged OpenAPI document, and the validators of its operations.

    Created once by the application, and shared by all components through the context. `names` are
    the files to merge, without `.yaml`; `base` is always the first.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.document: dict[str, Any] = _load_yaml("base")
        self.document["info"]["version"] = __version__
        for name in names:
            partial = _load_yaml(name)
            _merge(self.document["paths"], partial.get("paths", {}))
            # Later files extend what earlier ones have, such as several methods of one path.
            for kind, members in partial.get("components", {}).items():
                _merge(self.document["components"].setdefault(kind, {}), members)
            known = [tag["name"] for tag in self.document["tags"]]
            self.document["tags"] += [
                tag for tag in partial.get("tags", []) if tag["name"] not in known
            ]
        self.document["tags"].sort(key=lambda tag: TAG_ORDER.index(tag["name"]))
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item and not path.startswith(UNLIMITED_PREFIX):
                    responses = {"429": LIMITED, **item[method]["responses"]}
                    item[method]["responses"] = dict(sorted(responses.items()))
        _add_formats(self.document["components"]["schemas"])
        self._operations: dict[str, ApiOperation] = {}

    @cached_property
    def json(self) -> bytes:
        return orjson.dumps(self.document)

    def __getitem__(self, operation_id: str) -> ApiOperation:
        operation = self._operations.get(operation_id)
        if operation is None:
            operation = self._operations[operation_id] = self._compile_operation(operation_id)
        return operation

    def _compile_operation(self, operation_id: str) -> ApiOperation:
        for item in self.document["paths"].values():
            for method in METHODS:
                if item.get(method, {}).get("operationId") == operation_id:
                    return ApiOperation(self.document, item, item[method])
        raise KeyError(f"no operation {operation_id} in {SPEC_DIRECTORY}")

    def create_validator(self, name: str) -> Validator:
        return Validator(self.document, {"$ref": f"#/components/schemas/{name}"})


def _add_formats(schemas: Mapping[str, Any]) -> None:
    """Add the serialization formats that are not in the files, by name and number."""
    for name in FORMAT_SCHEMAS & schemas.keys():
        words = schemas[name]["enum"]
        for format in SERIALIZATION_FORMATS.values():
            number = format.number if 0 in words else str(format.number)
            words += [word for word in (format.name, number) if word not in words]


class Validator:
    def __init__(self, document: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self._validator = jsonschema_rs.Draft202012Validator(
            {**schema, "components": document["components"]}
        )
        self._names = FieldNames(document, schema)
        self._normalize = build_normalizer(document, schema)

    def validate(self, value: Any, location: str = "") -> None:
        """Check a value, and turn its integers written as 1.0 into integers, in place.

        Raises StatusError 400 with the place, such as `records[3].partition`, which begins with
        `location`.
        """
        try:
            self._validator.validate(value)  # `iter_errors` computes all errors before the first
        except jsonschema_rs.ValidationError as error:
            steps = map(str, reversed(error.schema_path))
            keyword = next((step for step in steps if step in _ADVICE), "")
            if keyword in ("required", "oneOf"):  # it is there by another name
                self._check_names(value, location)
            place = _format_location(location, error.instance_path)
            advice = _get_advice(error, keyword)
            raise create_invalid_request(place, error.message, advice) from None
        except ValueError:  # the recursion limit of the validator, of 255 levels
            raise create_invalid_request(location, "is nested too deep", "flatten it") from None
        self._check_names(value, location)
        if self._normalize is not None:
            self._normalize(value)

    def _check_names(self, value: Any, location: str) -> None:
        if (unknown := self._names.find_unknown(value)) is None:
            return
        raise create_invalid_request(
            _format_location(location, unknown.path),
            "there is no such field",
            f"did you mean '{unknown.closest}'?"
            if unknown.closest
            else f"leave it out, or use {_list_names(unknown.known)}",
        )


class ApiOperation:
    """Parse and validate the parameters and the body of one operation; raises StatusError 400."""

    def __init__(
        self, document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> None:
        references = [*item.get("parameters", ()), *operation.get("parameters", ())]
        parameters = [resolve_reference(document, reference) for reference in references]
        self._parameters = [
            (parameter, Validator(document, parameter["schema"])) for parameter in parameters
        ]
        self._query_names = frozenset(
            parameter["name"] for parameter in parameters if parameter["in"] == "query"
        )
        body = resolve_reference(document, operation.get("requestBody", {}))
        schema = body.get("content", {}).get("application/json", {}).get("schema")
        self.validator = None if schema is None else Validator(document, schema)
        self._required: bool = body.get("required", False)

    def parse_parameters(self, request: Request) -> dict[str, Any]:
        """Return the parameters of path, query and headers by name, converted, with defaults.

        A parameter is refused if it is missing, invalid, given twice, or nearly a known one.
        """
        values: dict[str, Any] = {}
        for parameter, validator in self._parameters:
            name, location = parameter["name"], parameter["in"]
            text = _get_parameter(request, location, name)
            if text is None:
                if parameter.get("required"):
                    raise create_invalid_request(f"{location} {name}", "is missing", "add it")
                if "default" in parameter["schema"]:
                    values[name] = parameter["schema"]["default"]
                continue
            values[name] = value = _convert_parameter(text, parameter["schema"].get("type"))
            validator.validate(value, f"{location} {name}")
        for name in iter_unknown_names(request.query_params, self._query_names):
            if closest := find_closest(name, self._query_names, MIN_SIMILARITY):
                raise create_invalid_request(
                    f"query {name}", "there is no such parameter", f"did you mean '{closest}'?"
                )
        return values

    def parse_json(self, data: bytes, content_type: str | None) -> Any:
        """Parse a body as JSON without validating it; None for an empty one that is not required.

        A content type other than JSON raises StatusError 415; a missing one is accepted.
        """
        if not data and not self._required:
            return None
        if content_type is not None and not _JSON.fullmatch(
            content_type.partition(";")[0].strip().lower()
        ):
            raise StatusError(415, f"the body is {content_type[:80]}; send application/json")
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            problem = "is empty" if not data else f"is not JSON: {exc}"
            raise create_invalid_request("the body", problem, "send JSON in UTF-8") from None

    def parse_body(self, data: bytes, content_type: str | None = None) -> Any:
        value = self.parse_json(data, content_type)
        self.validate_body(value)
        return value

    async def read_body(self, request: Request, max_bytes: int) -> Any:
        data = await read_body(request, max_bytes)
        return self.parse_body(data, request.headers.get("content-type"))

    def validate_body(self, value: Any) -> None:
        """Validate a parsed body; null counts as none."""
        if self.validator is not None and (value is not None or self._required):
            self.validator.validate(value)


def create_invalid_request(location: str, problem: str, advice: str = "") -> StatusError:
    """Return the error of an invalid request.

    Args:
        location: Where it is, as people write it; empty for the whole body.
        problem: Cut to `MAX_DETAIL_CHARS`. Without `advice`, it may have some behind its first
            semicolon.
    """
    if not advice:
        problem, _, advice = problem.partition("; ")
    problem = problem.replace("; ", ", ")  # a semicolon ends the message of a Status
    if len(problem) > MAX_DETAIL_CHARS:
        problem = f"{problem[: MAX_DETAIL_CHARS - 3]}..."
    detail = f"{location or 'the body'}: {problem}; {advice or f'correct it; {_SEE_DOCS}'}"
    return StatusError(400, detail, code="INVALID_REQUEST")


def parse_timestamp(value: int | str, location: str) -> int:
    """Return a time in milliseconds since 1970; raises StatusError 400 for an invalid text."""
    if isinstance(value, int):
        return value
    try:
        return parse_time(value)
    except ValueError as exc:
        raise create_invalid_request(location, f"'{value[:80]}' {exc}") from None


def _get_advice(error: jsonschema_rs.ValidationError, keyword: str) -> str:
    options = getattr(error.kind, "options", None)  # of an enum
    if keyword == "enum" and isinstance(options, list):
        return f"use one of {', '.join(orjson.dumps(option).decode() for option in options)}"
    advice = _ADVICE.get(keyword, "correct it").format(getattr(error.kind, "limit", ""))
    return f"{advice}; {_SEE_DOCS}"


def _list_names(names: Iterable[str]) -> str:
    """Return some names as text. Of several spellings, only that in camel case is listed."""
    listed = [name for name in names if not {".", "_"} & {*name}] or list(names)
    more = ["..."] if len(listed) > MAX_NAMED_FIELDS else []
    return ", ".join([*listed[:MAX_NAMED_FIELDS], *more])


def _get_parameter(request: Request, location: str, name: str) -> str | None:
    if location == "path":
        value: Any = request.path_params.get(name)
        return None if value is None else str(value)
    parameters = request.query_params if location == "query" else request.headers
    values = parameters.getlist(name)
    if len(values) > 1:
        raise create_invalid_request(f"{location} {name}", "is given more than once; give it once")
    return values[0] if values else None


def _convert_parameter(text: str, type_name: object) -> Any:
    """Convert a parameter to its type; text that cannot be converted is left for the validator."""
    if type_name == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if type_name == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _format_location(location: str, path: Sequence[str | int]) -> str:
    """Append a path within a value to a location: `records`, 3, `key` is `records[3].key`."""
    for step in path:
        if isinstance(step, int):
            location += f"[{step}]"
        else:
            location += f".{step[:80]}" if location else step[:80]
    return location


def _load_yaml(name: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(_convert_yaml(name))
    return document


@cache
def _convert_yaml(name: str) -> bytes:
    """Return a file as JSON, which is read 100 times as fast as YAML. Callers change their copy.

    All files take 0.25 s of CPU; the tests create hundreds of sidecars in a process.
    """
    return orjson.dumps(YAML(typ="safe", pure=True).load(SPEC_DIRECTORY / f"{name}.yaml"))


def _merge(target: dict[str, Any], members: Mapping[str, Any]) -> None:
    for name, member in members.items():
        if isinstance(member, dict) and isinstance(target.get(name), dict):
            _merge(target[name], member)
        else:
            target[name] = member
