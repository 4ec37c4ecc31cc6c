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

from gateway.config.source.expression import closest

from .status import Refusal
from .whole import resolved, whole

DIRECTORY = Path(__file__).parent / "spec"
METHODS = ("get", "put", "post", "delete", "patch")
UNLIMITED = "/health/"  # what begins so is asked for as often as one likes
LIMITED = {"$ref": "#/components/responses/Limited"}
LONGEST = 200  # characters of what a validator says: it quotes the value
NEAR = 0.8  # of difflib's likeness: `partiton`, not any other word
MAX_UNKNOWN = 20  # unknown names of one object that are looked at: each is compared with all

_JSON = re.compile(r"application/([\w.+-]*\+)?json", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Spec:
    """names: of the files that are merged."""

    def __init__(self, names: Iterable[str]) -> None:
        self.document: dict[str, Any] = _read("base")
        self.document["info"]["version"] = version("gateway")
        for name in names:
            part = _read(name)
            _merge(self.document["paths"], part.get("paths", {}))
            for kind, members in part.get("components", {}).items():
                _merge(self.document["components"].setdefault(kind, {}), members)
            self.document["tags"] += part.get("tags", [])
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item and not path.startswith(UNLIMITED):
                    item[method]["responses"].setdefault("429", LIMITED)
        self._operations: dict[str, Operation] = {}

    @cached_property
    def json(self) -> bytes:
        return orjson.dumps(self.document)

    def __getitem__(self, operation_id: str) -> Operation:
        """Compiled once. Raises KeyError."""
        found = self._operations.get(operation_id)
        if found is None:
            found = self._operations[operation_id] = self._compiled(operation_id)
        return found

    def _compiled(self, operation_id: str) -> Operation:
        for item in self.document["paths"].values():
            for method in METHODS:
                if item.get(method, {}).get("operationId") == operation_id:
                    return Operation(self.document, item, item[method])
        raise KeyError(f"no operation {operation_id} in {DIRECTORY}")

    def validator(self, name: str) -> Validator:
        """Of a schema of `components`."""
        return Validator(self.document, {"$ref": f"#/components/schemas/{name}"})


class Validator:
    """One schema, compiled."""

    def __init__(self, document: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self._document = document
        self._compiled = jsonschema_rs.Draft202012Validator(
            {**schema, "components": document["components"]}
        )
        self._known = _properties(document, schema)
        self._whole = whole(document, schema)

    def check(self, value: Any, place: str = "") -> None:
        """Raises Refusal 400 that names the place, such as `records[3].partition`. Afterwards an
        integer is one, also where 1.0 was written."""
        for error in self._compiled.iter_errors(value):
            where = _place(place, error.instance_path)
            raise wrong(where, error.message)
        self.mind(value, place)
        if self._whole is not None:
            self._whole(value)

    def mind(self, value: Any, place: str = "") -> None:
        """Raises Refusal 400 for a name that is nearly another."""
        if isinstance(value, dict) and self._known and not value.keys() <= self._known:
            for name in _unknown(value, self._known):
                near = closest(name, self._known, NEAR)
                if near and near not in value:
                    raise wrong(_place(place, [name]), f"did you mean '{near}'?")


class Operation:
    """One of the spec: its parameters and its body."""

    def __init__(
        self, document: Mapping[str, Any], item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> None:
        given = [*item.get("parameters", ()), *operation.get("parameters", ())]
        parameters = [resolved(document, each) for each in given]
        self._parameters = [(each, Validator(document, each["schema"])) for each in parameters]
        self._queries = frozenset(each["name"] for each in parameters if each["in"] == "query")
        body = resolved(document, operation.get("requestBody", {}))
        schema = body.get("content", {}).get("application/json", {}).get("schema")
        self.validator = None if schema is None else Validator(document, schema)
        self._required: bool = body.get("required", False)

    def parameters(self, request: Request) -> dict[str, Any]:
        """Of the path, the query and the headers, by name, as their types; defaults for what is not
        given. Raises Refusal 400."""
        found: dict[str, Any] = {}
        for parameter, validator in self._parameters:
            name, place = parameter["name"], parameter["in"]
            text = _given(request, place, name)
            if text is None:
                if parameter.get("required"):
                    raise wrong(f"{place} {name}", "is missing; add it")
                if "default" in parameter["schema"]:
                    found[name] = parameter["schema"]["default"]
                continue
            found[name] = value = _typed(text, parameter["schema"].get("type"))
            validator.check(value, f"{place} {name}")
        for name in _unknown(request.query_params, self._queries):
            if near := closest(name, self._queries, NEAR):
                raise wrong(f"query {name}", f"did you mean '{near}'?")
        return found

    def parsed(self, data: bytes, kind: str | None) -> Any:
        """A body as JSON, not validated; None for an empty one that need not be there. kind: its
        content type. Raises Refusal 400 and 415."""
        if not data and not self._required:
            return None
        if kind is not None and not _JSON.fullmatch(kind.partition(";")[0].strip().lower()):
            raise Refusal(415, f"the body is {kind[:80]}; send application/json")
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            what = "is empty" if not data else f"is not JSON: {exc}"
            raise wrong("the body", f"{what}; send a JSON object in UTF-8") from None

    def body(self, data: bytes, kind: str | None = None) -> Any:
        """As `parsed`, validated. Raises Refusal 400 and 415."""
        value = self.parsed(data, kind)
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """A body that was parsed; null is none. Raises Refusal 400."""
        if self.validator is not None and (value is not None or self._required):
            self.validator.check(value)


def wrong(place: str, what: str) -> Refusal:
    """place: as people write it, empty for all of it."""
    what = what if len(what) <= LONGEST else f"{what[: LONGEST - 3]}..."
    return Refusal(400, f"{place or 'the body'}: {what}", code="INVALID_REQUEST")


def _unknown(names: Iterable[str], known: frozenset[str]) -> Iterator[str]:
    """The first `MAX_UNKNOWN` names that are not known."""
    return islice((name for name in names if name not in known), MAX_UNKNOWN)


def _given(request: Request, place: str, name: str) -> str | None:
    if place == "path":
        given: Any = request.path_params.get(name)
        return None if given is None else str(given)
    if place == "query":
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise wrong(f"query {name}", "is given more than once; give it once")
        return values[0] if values else None
    return request.headers.get(name)


def _typed(text: str, kind: object) -> Any:
    """What cannot be one stays text, which the validator refuses."""
    if kind == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def _place(place: str, way: Sequence[str | int]) -> str:
    for step in way:
        if isinstance(step, int):
            place += f"[{step}]"
        else:
            place += f".{step[:80]}" if place else step[:80]
    return place


def _properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(resolved(document, schema).get("properties", ()))


def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = YAML(typ="safe", pure=True).load(DIRECTORY / f"{name}.yaml")
    return read


def _merge(into: dict[str, Any], members: Mapping[str, Any]) -> None:
    for name, member in members.items():
        if isinstance(member, dict) and isinstance(into.get(name), dict):
            _merge(into[name], member)
        else:
            into[name] = member
