"""The OpenAPI that is served, and requests held against it.

One YAML a part (`spec/producer.yaml`), merged: `paths` and `components` of each. OpenAPI 3.1, whose
schemas are JSON Schema 2020-12: what is served is what is compiled. Fields and parameters that the
contract does not know are let through, as its clients may send them; but not one that is nearly the
name of another: that is a slip of the finger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
from ruamel.yaml import YAML
from starlette.requests import Request

from gateway.config.source.expression import find_closest

from .integers import build_normalizer, resolve_reference
from .status import StatusError

SPEC_DIRECTORY = Path(__file__).parent / "spec"
METHODS = ("get", "put", "post", "delete", "patch")
UNLIMITED_PREFIX = "/health/"  # what begins so is asked for as often as one likes
LIMITED = {"$ref": "#/components/responses/Limited"}
MAX_DETAIL_CHARS = 200  # characters of what a validator says: it quotes the value
MIN_SIMILARITY = 0.8  # of difflib's likeness: `partiton`, not any other word
MAX_UNKNOWN_NAMES = 20  # unknown names of one object that are looked at: each is compared with all

_JSON = re.compile(r"application/([\w.+-]*\+)?json", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Spec:
    """names: of the files that are merged."""

    def __init__(self, names: Iterable[str]) -> None:
        self.document: dict[str, Any] = _load_yaml("base")
        self.document["info"]["version"] = version("gateway")
        for name in names:
            part = _load_yaml(name)
            _merge(self.document["paths"], part.get("paths", {}))
            for kind, members in part.get("components", {}).items():
                _merge(self.document["components"].setdefault(kind, {}), members)
            self.document["tags"] += part.get("tags", [])
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item and not path.startswith(UNLIMITED_PREFIX):
                    item[method]["responses"].setdefault("429", LIMITED)
        self._operations: dict[str, ApiOperation] = {}

    @cached_property
    def json(self) -> bytes:
        return orjson.dumps(self.document)

    def __getitem__(self, operation_id: str) -> ApiOperation:
        """Compiled once. Raises KeyError."""
        found = self._operations.get(operation_id)
        if found is None:
            found = self._operations[operation_id] = self._compile_operation(operation_id)
        return found

    def _compile_operation(self, operation_id: str) -> ApiOperation:
        for item in self.document["paths"].values():
            for method in METHODS:
                if item.get(method, {}).get("operationId") == operation_id:
                    return ApiOperation(self.document, item, item[method])
        raise KeyError(f"no operation {operation_id} in {SPEC_DIRECTORY}")

    def create_validator(self, name: str) -> Validator:
        """Of a schema of `components`."""
        return Validator(self.document, {"$ref": f"#/components/schemas/{name}"})


class Validator:
    """One schema, compiled."""

    def __init__(self, document: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self._document = document
        self._validator = jsonschema_rs.Draft202012Validator(
            {**schema, "components": document["components"]}
        )
        self._known_names = _get_property_names(document, schema)
        self._normalize = build_normalizer(document, schema)

    def validate(self, value: Any, location: str = "") -> None:
        """Raises Refusal 400 that names the place, such as `records[3].partition`. Afterwards an
        integer is one, also where 1.0 was written."""
        for error in self._validator.iter_errors(value):
            where = _format_location(location, error.instance_path)
            raise create_invalid_request(where, error.message)
        self.check_names(value, location)
        if self._normalize is not None:
            self._normalize(value)

    def check_names(self, value: Any, location: str = "") -> None:
        """Raises Refusal 400 for a name that is nearly another."""
        if isinstance(value, dict) and self._known_names and not value.keys() <= self._known_names:
            for name in _iter_unknown_names(value, self._known_names):
                near = find_closest(name, self._known_names, MIN_SIMILARITY)
                if near and near not in value:
                    raise create_invalid_request(
                        _format_location(location, [name]), f"did you mean '{near}'?"
                    )


class ApiOperation:
    """One of the spec: its parameters and its body."""

    def __init__(
        self, document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> None:
        given = [*item.get("parameters", ()), *operation.get("parameters", ())]
        parameters = [resolve_reference(document, each) for each in given]
        self._parameters = [(each, Validator(document, each["schema"])) for each in parameters]
        self._query_names = frozenset(each["name"] for each in parameters if each["in"] == "query")
        body = resolve_reference(document, operation.get("requestBody", {}))
        schema = body.get("content", {}).get("application/json", {}).get("schema")
        self.validator = None if schema is None else Validator(document, schema)
        self._required: bool = body.get("required", False)

    def parse_parameters(self, request: Request) -> dict[str, Any]:
        """Of the path, the query and the headers, by name, as their types; defaults for what is not
        given. Raises Refusal 400."""
        found: dict[str, Any] = {}
        for parameter, validator in self._parameters:
            name, place = parameter["name"], parameter["in"]
            text = _get_parameter(request, place, name)
            if text is None:
                if parameter.get("required"):
                    raise create_invalid_request(f"{place} {name}", "is missing; add it")
                if "default" in parameter["schema"]:
                    found[name] = parameter["schema"]["default"]
                continue
            found[name] = value = _convert_parameter(text, parameter["schema"].get("type"))
            validator.validate(value, f"{place} {name}")
        for name in _iter_unknown_names(request.query_params, self._query_names):
            if near := find_closest(name, self._query_names, MIN_SIMILARITY):
                raise create_invalid_request(f"query {name}", f"did you mean '{near}'?")
        return found

    def parse_json(self, data: bytes, content_type: str | None) -> Any:
        """A body as JSON, not validated; None for an empty one that need not be there. kind: its
        content type. Raises Refusal 400 and 415."""
        if not data and not self._required:
            return None
        if content_type is not None and not _JSON.fullmatch(
            content_type.partition(";")[0].strip().lower()
        ):
            raise StatusError(415, f"the body is {content_type[:80]}; send application/json")
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            what = "is empty" if not data else f"is not JSON: {exc}"
            raise create_invalid_request(
                "the body", f"{what}; send a JSON object in UTF-8"
            ) from None

    def parse_body(self, data: bytes, content_type: str | None = None) -> Any:
        """As `parsed`, validated. Raises Refusal 400 and 415."""
        value = self.parse_json(data, content_type)
        self.validate_body(value)
        return value

    def validate_body(self, value: Any) -> None:
        """A body that was parsed; null is none. Raises Refusal 400."""
        if self.validator is not None and (value is not None or self._required):
            self.validator.validate(value)


def create_invalid_request(location: str, detail: str) -> StatusError:
    """place: as people write it, empty for all of it."""
    detail = detail if len(detail) <= MAX_DETAIL_CHARS else f"{detail[: MAX_DETAIL_CHARS - 3]}..."
    return StatusError(400, f"{location or 'the body'}: {detail}", code="INVALID_REQUEST")


def _iter_unknown_names(names: Iterable[str], known: frozenset[str]) -> Iterator[str]:
    """The first `MAX_UNKNOWN` names that are not known."""
    return islice((name for name in names if name not in known), MAX_UNKNOWN_NAMES)


def _get_parameter(request: Request, location: str, name: str) -> str | None:
    if location == "path":
        given: Any = request.path_params.get(name)
        return None if given is None else str(given)
    if location == "query":
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise create_invalid_request(f"query {name}", "is given more than once; give it once")
        return values[0] if values else None
    return request.headers.get(name)


def _convert_parameter(text: str, type_name: object) -> Any:
    """What cannot be one stays text, which the validator refuses."""
    if type_name == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if type_name == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _format_location(location: str, path: Sequence[str | int]) -> str:
    for step in path:
        if isinstance(step, int):
            location += f"[{step}]"
        else:
            location += f".{step[:80]}" if location else step[:80]
    return location


def _get_property_names(document: Mapping[str, Any], schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(resolve_reference(document, schema).get("properties", ()))


def _load_yaml(name: str) -> dict[str, Any]:
    read: dict[str, Any] = YAML(typ="safe", pure=True).load(SPEC_DIRECTORY / f"{name}.yaml")
    return read


def _merge(target: dict[str, Any], members: Mapping[str, Any]) -> None:
    for name, member in members.items():
        if isinstance(member, dict) and isinstance(target.get(name), dict):
            _merge(target[name], member)
        else:
            target[name] = member
