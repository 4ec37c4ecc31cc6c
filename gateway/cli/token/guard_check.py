"""Ask a guard of a configuration about a token, for `gateway token check`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.core.times import format_time
from gateway.errors import GatewayError, GuardUnavailable, RequestError

from .json_web_token import DecodedJwt, is_jwt

if TYPE_CHECKING:
    from gateway.config import GuardSection, Jwt, Settings
    from gateway.web.access.grant import Grant


@dataclass(frozen=True)
class Verdict:
    """The decision of a guard on a token.

    Attributes:
        grant: The guard's knowledge of the client; None if it refuses the token.
        is_decided: Whether the guard could decide at all.
    """

    guard: str
    grant: Grant | None = None
    reason: str = ""
    details: tuple[str, ...] = ()
    is_decided: bool = True

    @property
    def is_accepted(self) -> bool:
        return self.grant is not None

    def to_json(self) -> dict[str, Any]:
        if self.grant is None:
            refusal = {"guard": self.guard, "accepted": False, "reason": self.reason}
            return {**refusal, "details": list(self.details)}
        return {
            "guard": self.guard,
            "accepted": True,
            "identity": self.grant.identity,
            "roles": sorted(self.grant.roles),
            "attributes": dict(self.grant.attributes),
            "expires": _format_expiry(self.grant),
            "problems": list(self.grant.problems.values()),
        }

    def to_text(self) -> str:
        from gateway.cli.tail.terminal import escape_controls

        return "\n".join(escape_controls(line) for line in self._iter_lines())

    def _iter_lines(self) -> Iterator[str]:
        if self.grant is None:
            verdict = "refuses the token" if self.is_decided else "cannot decide"
            yield f"guard {self.guard} {verdict}: {self.reason}"
            yield from (f"  {line}" for line in self.details)
            return
        yield f"guard {self.guard} accepts the token"
        yield f"  identity  {self.grant.identity}"
        yield f"  roles     {', '.join(sorted(self.grant.roles)) or 'none'}"
        for name, value in self.grant.attributes.items():
            yield f"  {name}  {value}"
        for problem in self.grant.problems.values():
            yield f"  {problem}"
        yield f"  expires   {_format_expiry(self.grant) or 'never'}"


def _format_expiry(grant: Grant) -> str | None:
    if grant.expires is None:
        return None
    return format_time(grant.expires * 1000, "seconds")


def find_guard(file: Path, name: str | None) -> tuple[Settings, str, GuardSection]:
    """Return the settings of a configuration, and its guard with this name, or its only one."""
    from gateway.config import load
    from gateway.config.source.substitution import suggest

    settings = load(file)
    if name is None:
        if len(settings.guards) != 1:
            names = ", ".join(settings.guards) or "none"
            raise GatewayError(f"{file} has not one guard but: {names}; give --guard NAME")
        name = next(iter(settings.guards))
    if name not in settings.guards:
        hint = suggest(name, settings.guards, "add one to guards")
        raise GatewayError(f"{file} has no guard '{name}'; {hint}")
    return settings, name, settings.guards[name]


def find_jwt_guard(file: Path, name: str) -> Jwt:
    from gateway.config import Inline, Jwt

    _, _, section = find_guard(file, name)
    if isinstance(section, Jwt):
        return section
    hint = "send the `token` of one of its users" if isinstance(section, Inline) else "use another"
    raise GatewayError(f"guard '{name}' takes no JWT; {hint}")


def check_token(text: str, file: Path, name: str | None) -> Verdict:
    settings, name, section = find_guard(file, name)
    logging.getLogger("gateway.web.access").addHandler(logging.NullHandler())
    return asyncio.run(_ask_guard(text, settings, name, section))


async def _ask_guard(text: str, settings: Settings, name: str, section: GuardSection) -> Verdict:
    from starlette.requests import HTTPConnection

    from gateway.config import Route
    from gateway.web.access.external_http import ExternalHttp
    from gateway.web.access.guard import AccessRequest, GuardContext
    from gateway.web.access.guards import get_guard_class

    route = Route.model_validate({"path": "/", "topic": "none", "guarded": [name]})
    headers = [(b"authorization", b"Bearer " + text.encode("utf-8", "surrogateescape"))]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b""}
    external_http = ExternalHttp()
    guard = get_guard_class(section).create(
        section, GuardContext(name, settings.name, external_http)
    )
    try:
        grant = await guard.grant(AccessRequest(route, {}, HTTPConnection(scope), text))
    except GuardUnavailable as exc:
        # A client is told to come back later, and not what only an operator can mend.
        return Verdict(name, reason=guard.find_problem() or str(exc), is_decided=False)
    except RequestError as exc:
        return Verdict(name, reason=str(exc), details=tuple(_compare(text, section)))
    finally:
        await external_http.close()
    return Verdict(name, grant)


def _compare(text: str, section: GuardSection) -> Iterator[str]:
    """Yield the claims of a JWT that differ from its guard's expectations."""
    from gateway.config import Jwt

    if not isinstance(section, Jwt):
        return
    decoded = None
    with contextlib.suppress(GatewayError):
        decoded = DecodedJwt.decode(text) if is_jwt(text) else None
    if decoded is None:
        yield "it is no JWT: three parts in base64url, separated by dots"
        return
    claims, header = decoded.claims, decoded.header
    if section.issuer and claims.get("iss") not in section.issuer:
        yield f"iss is {claims.get('iss')!r}, the guard expects {_list(section.issuer)}"
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if section.audience and not any(each in audiences for each in section.audience):
        yield f"aud is {audience!r}, the guard expects {_list(section.audience)}"
    yield f"alg is {header.get('alg')!r}, kid is {header.get('kid')!r}"
    if "exp" in claims:
        yield f"exp is {decoded.format_claim('exp')}"


def _list(texts: Iterable[str]) -> str:
    return " or ".join(map(repr, texts))
