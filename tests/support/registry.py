"""A schema registry of the tests' own: Confluent's API, in memory.

    registry = Registry()
    async with served(registry.app) as url: ...

Written from the public description of the API: numbers of errors, ids for equal texts, versions
per subject, references, basic and bearer authentication. `requests` are those it has had.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SchemaKey = tuple[str, str, str]  # type, text, references as JSON


@dataclass
class FakeRegistry:
    """username, password, token: without any, everybody may ask. status: what it answers to all,
    such as 503. wait: awaited before each answer."""

    username: str | None = None
    password: str | None = None
    token: str | None = None
    error_status: int | None = None
    wait_before_response: Callable[[], Any] | None = None
    is_compatible: bool = True
    requests: Counter[str] = field(default_factory=Counter)
    schemas: dict[int, SchemaKey] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    deleted_subjects: set[str] = field(default_factory=set)

    def register_schema(
        self,
        subject: str,
        text: str | dict[str, Any] | list[Any],
        schema_type: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """The id."""
        text = text if isinstance(text, str) else json.dumps(text)
        schema = (schema_type, text, json.dumps(references or []))
        id = next((each for each, known in self.schemas.items() if known == schema), None)
        if id is None:
            id = len(self.schemas) + 1
            self.schemas[id] = schema
        versions = self.subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    def register_large_enums(self, count: int) -> tuple[str, list[bytes]]:
        """Schemas of 1.8 MB, two of which fill the cache; their first symbol, framed by each."""
        symbols = [f"S{n}{'x' * 2000}" for n in range(900)]
        ids = [
            self.register_schema(f"s{n}", {"type": "enum", "name": f"E{n}", "symbols": symbols})
            for n in range(count)
        ]
        return symbols[0], [b"\0" + id.to_bytes(4, "big") + b"\0" for id in ids]

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/subjects", self._wrap_endpoint(self._list_subjects)),
                Route("/schemas/ids/{id:int}", self._wrap_endpoint(self._get_schema)),
                Route("/schemas/guids/{id:uuid}", self._wrap_endpoint(self._get_schema)),
                Route(
                    "/subjects/{subject:path}/versions/{version}",
                    self._wrap_endpoint(self._get_version),
                ),
                Route(
                    "/subjects/{subject:path}/versions",
                    self._wrap_endpoint(self._post_schema),
                    methods=["POST"],
                ),
                Route(
                    "/subjects/{subject:path}",
                    self._wrap_endpoint(self._look_up_schema),
                    methods=["POST"],
                ),
            ]
        )

    def _wrap_endpoint(self, handler: Any) -> Any:
        async def handle_request(request: Request) -> Response:
            self.requests[f"{request.method} {request.url.path}"] += 1
            if self.wait_before_response is not None:
                await self.wait_before_response()
            if not self._is_authorized(request.headers.get("authorization", "")):
                return _build_error_response(401, 401, "Unauthorized")
            if self.error_status is not None:
                return _build_error_response(self.error_status, self.error_status, "out of order")
            found: Response = await handler(request)
            return found

        return handle_request

    def _is_authorized(self, authorization: str) -> bool:
        if self.token is not None:
            return authorization == f"Bearer {self.token}"
        if self.username is None:
            return True
        pair = f"{self.username}:{self.password}".encode()
        return authorization == f"Basic {base64.b64encode(pair).decode()}"

    async def _list_subjects(self, request: Request) -> Response:
        return JSONResponse(sorted(self.subjects))

    async def _get_schema(self, request: Request) -> Response:
        known = self.schemas.get(int(request.path_params["id"]))  # a GUID is the id as UUID
        return (
            _build_error_response(404, 40403, "Schema not found")
            if known is None
            else _build_schema_response(known)
        )

    async def _get_version(self, request: Request) -> Response:
        subject, version = request.path_params["subject"], request.path_params["version"]
        ids = self.subjects.get(subject)
        is_hidden = (
            subject in self.deleted_subjects and request.query_params.get("deleted") != "true"
        )
        if ids is None or is_hidden:
            return _build_error_response(404, 40401, f"Subject '{subject}' not found.")
        number = len(ids) if version == "latest" else int(version)
        if not 1 <= number <= len(ids):
            return _build_error_response(404, 40402, f"Version {version} not found.")
        id = ids[number - 1]
        return _build_schema_response(self.schemas[id], id=id, subject=subject, version=number)

    async def _post_schema(self, request: Request) -> Response:
        subject, said = request.path_params["subject"], await request.json()
        if not self.is_compatible:
            return _build_error_response(
                409, 409, "Schema being registered is incompatible with an earlier one"
            )
        kind = said.get("schemaType", "AVRO")
        if kind in ("AVRO", "JSON") and not _is_json(said["schema"]):
            return _build_error_response(422, 42201, "Invalid schema")
        return JSONResponse(
            {"id": self.register_schema(subject, said["schema"], kind, said.get("references"))}
        )

    async def _look_up_schema(self, request: Request) -> Response:
        subject, said = request.path_params["subject"], await request.json()
        if subject not in self.subjects:
            return _build_error_response(404, 40401, f"Subject '{subject}' not found.")
        references = json.dumps(said.get("references") or [])
        schema = (said.get("schemaType", "AVRO"), said["schema"], references)
        for number, id in enumerate(self.subjects[subject], 1):
            if self.schemas[id] == schema:
                return _build_schema_response(schema, id=id, subject=subject, version=number)
        return _build_error_response(404, 40403, "Schema not found")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _build_schema_response(schema: SchemaKey, **more: Any) -> Response:
    kind, text, references = schema
    said: dict[str, Any] = {**more, "schema": text}
    if kind != "AVRO":
        said["schemaType"] = kind
    if json.loads(references):
        said["references"] = json.loads(references)
    return JSONResponse(said)


def _build_error_response(status: int, code: int, message: str) -> Response:
    return JSONResponse({"error_code": code, "message": message}, status)
