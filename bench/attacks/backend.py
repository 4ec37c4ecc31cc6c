"""Serve what a gateway under attack calls: a schema registry, and a slow service for identities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.app_server import running_app

SLOW_SECONDS = 60.0  # longer than any attack
NULLS_SCHEMA = {"type": "array", "items": "null"}  # an item takes no byte


async def _answer_slowly(request: Request) -> JSONResponse:
    await asyncio.sleep(SLOW_SECONDS)
    return JSONResponse({"identity": "nobody"})


async def _get_schema(request: Request) -> JSONResponse:
    return JSONResponse({"id": 1, "version": 1, "schema": json.dumps(NULLS_SCHEMA)})


@asynccontextmanager
async def running_backend() -> AsyncIterator[str]:
    """Serve it until the block ends; its URL."""
    routes: list[Any] = [Route("/slow", _answer_slowly), Route("/{path:path}", _get_schema)]
    async with running_app(Starlette(routes=routes)) as url:
        yield url
