"""What operators say in the body of a request: JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import Request

from gateway.errors import RequestError

BodyT = TypeVar("BodyT", bound=BaseModel)


def _parse_time(value: Any) -> Any:
    """Seconds since 1970, or RFC 3339."""
    if isinstance(value, str):
        told = datetime.fromisoformat(value)
        if told.tzinfo is None:
            raise ValueError("has no time zone; add Z")
        return told.timestamp()
    return value


class RequestBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RevocationBody(RequestBody):
    """guard: any if there is none. until: for good if there is none."""

    identity: Annotated[str, Field(min_length=1)]
    guard: Annotated[str, Field(min_length=1)] | None = None
    until: Annotated[float, BeforeValidator(_parse_time), Field(gt=0, lt=1e11)] | None = None


class LogLevelsBody(RequestBody):
    level: str = "info"
    levels: dict[str, str] = {}


async def read_body(request: Request, body_type: type[BodyT]) -> BodyT:
    """Raises RequestError 400."""
    try:
        return body_type.model_validate_json(await request.body())
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False, include_context=False)
        about = [".".join(map(str, each["loc"])) or "the body" for each in found]
        told = [f"{way}: {each['msg']}" for way, each in zip(about, found, strict=True)]
        raise RequestError(400, "Bad request", "; ".join(told)) from None
