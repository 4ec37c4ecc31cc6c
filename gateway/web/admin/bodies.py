"""Parse the JSON bodies of operators' requests."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import Request

from gateway.core.times import parse_time
from gateway.errors import RequestError

BodyT = TypeVar("BodyT", bound=BaseModel)


def _parse_time(value: Any) -> Any:
    return parse_time(value) / 1000 if isinstance(value, str) else value


class RequestBody(BaseModel):
    """The base of all bodies: unknown members and other types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RevocationBody(RequestBody):
    """The body that revokes access until a time in seconds since 1970, or for ever."""

    identity: Annotated[str, Field(min_length=1)]
    guard: Annotated[str, Field(min_length=1)] | None = None
    until: Annotated[float, BeforeValidator(_parse_time), Field(gt=0, lt=1e11)] | None = None


class LogLevelsBody(RequestBody):
    """The body that changes log levels; `level` is for loggers that `levels` does not name."""

    level: str = "info"
    levels: dict[str, str] = {}


async def read_body(request: Request, body_type: type[BodyT]) -> BodyT:
    """Parse the body of a request; a 400 names every problem of it."""
    try:
        return body_type.model_validate_json(await request.body())
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        locations = [".".join(map(str, error["loc"])) or "the body" for error in errors]
        problems = [
            f"{location}: {error['msg']}" for location, error in zip(locations, errors, strict=True)
        ]
        raise RequestError(400, "Bad request", "; ".join(problems)) from None
