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

Schema = tuple[str, str, str]  # type, text, references as JSON


@dataclass
class Registry:
    """username, password, token: without any, everybody may ask. status: what it answers to all,
    such as 503. wait: awaited before each answer."""

    username: str | None = None
    password: str | None = None
    token: str | None = None
    status: int | None = None
    wait: Callable[[], Any] | None = None
    compatible: bool = True
    requests: Counter[str] = field(default_factory=Counter)
    schemas: dict[int, Schema] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)

    def register(
        self,
        subject: str,
        text: str | dict[str, Any] | list[Any],
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """The id."""
        text = text if isinstance(text, str) else json.dumps(text)
        schema = (kind, text, json.dumps(references or []))
        id = next((each for each, known in self.schemas.items() if known == schema), None)
        if id is None:
            id = len(self.schemas) + 1
            self.schemas[id] = schema
        versions = self.subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/subjects", self._answered(self._subjects)),
                Route("/schemas/ids/{id}", self._answered(self._by_id)),
                Route("/subjects/{subject:path}/versions/{version}", self._answered(self._version)),
                Route(
                    "/subjects/{subject:path}/versions",
                    self._answered(self._register),
                    methods=["POST"],
                ),
                Route("/subjects/{subject:path}", self._answered(self._lookup), methods=["POST"]),
            ]
        )

    def _answered(self, answer: Any) -> Any:
        async def endpoint(request: Request) -> Response:
            self.requests[f"{request.method} {request.url.path}"] += 1
            if self.wait is not None:
                await self.wait()
            if not self._allows(request.headers.get("authorization", "")):
                return _error(401, 401, "Unauthorized")
            if self.status is not None:
                return _error(self.status, self.status, "out of order")
            found: Response = await answer(request)
            return found

        return endpoint

    def _allows(self, shown: str) -> bool:
        if self.token is not None:
            return shown == f"Bearer {self.token}"
        if self.username is None:
            return True
        pair = f"{self.username}:{self.password}".encode()
        return shown == f"Basic {base64.b64encode(pair).decode()}"

    async def _subjects(self, request: Request) -> Response:
        return JSONResponse(sorted(self.subjects))

    async def _by_id(self, request: Request) -> Response:
        known = self.schemas.get(int(request.path_params["id"]))
        return _error(404, 40403, "Schema not found") if known is None else _schema(known)

    async def _version(self, request: Request) -> Response:
        subject, version = request.path_params["subject"], request.path_params["version"]
        ids = self.subjects.get(subject)
        if ids is None:
            return _error(404, 40401, f"Subject '{subject}' not found.")
        number = len(ids) if version == "latest" else int(version)
        if not 1 <= number <= len(ids):
            return _error(404, 40402, f"Version {version} not found.")
        id = ids[number - 1]
        return _schema(self.schemas[id], id=id, subject=subject, version=number)

    async def _register(self, request: Request) -> Response:
        subject, said = request.path_params["subject"], await request.json()
        if not self.compatible:
            return _error(409, 409, "Schema being registered is incompatible with an earlier one")
        kind = said.get("schemaType", "AVRO")
        if kind in ("AVRO", "JSON") and not _is_json(said["schema"]):
            return _error(422, 42201, "Invalid schema")
        return JSONResponse(
            {"id": self.register(subject, said["schema"], kind, said.get("references"))}
        )

    async def _lookup(self, request: Request) -> Response:
        subject, said = request.path_params["subject"], await request.json()
        if subject not in self.subjects:
            return _error(404, 40401, f"Subject '{subject}' not found.")
        references = json.dumps(said.get("references") or [])
        schema = (said.get("schemaType", "AVRO"), said["schema"], references)
        for number, id in enumerate(self.subjects[subject], 1):
            if self.schemas[id] == schema:
                return _schema(schema, id=id, subject=subject, version=number)
        return _error(404, 40403, "Schema not found")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _schema(schema: Schema, **more: Any) -> Response:
    kind, text, references = schema
    said: dict[str, Any] = {**more, "schema": text}
    if kind != "AVRO":
        said["schemaType"] = kind
    if json.loads(references):
        said["references"] = json.loads(references)
    return JSONResponse(said)


def _error(status: int, code: int, message: str) -> Response:
    return JSONResponse({"error_code": code, "message": message}, status)
