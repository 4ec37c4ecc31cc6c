"""How a client reaches this very process again: what a new instance is told as its base URI.

`sidecar.consumer.baseUri` where it is set; else what proxies say (RFC 7239, or X-Forwarded-Host,
-Proto and -Path), the first of several being what the client asked; else the Host that it asked.
Nobody else hears it, so what is invented misleads the one who invented it.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import Request

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:@-]*){1,64}")


def build_base_uri(request: Request, configured: str | None, group: str, name: str) -> str:
    """Of an instance; without a slash at its end."""
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    if configured is not None:
        return configured.rstrip("/") + path
    scheme, host = _parse_forwarded(request)
    return f"{scheme}://{host}{_parse_prefix(request, group)}{path}"


def _parse_forwarded(request: Request) -> tuple[str, str]:
    headers = request.headers
    first = headers.get("forwarded", "").partition(",")[0]
    pairs = (each.partition("=") for each in first.split(";"))
    said = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
    host = said.get("host") or headers.get("x-forwarded-host", "").partition(",")[0].strip()
    scheme = said.get("proto") or headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    if scheme.lower() not in ("http", "https"):
        scheme = request.url.scheme
    if not _HOST.fullmatch(host):
        host = headers.get("host", "")
    if not _HOST.fullmatch(host):
        host = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    return scheme.lower(), host


def _parse_prefix(request: Request, group: str) -> str:
    """What a proxy takes from the path before it asks."""
    path = request.headers.get("x-forwarded-path", "").partition("?")[0].rstrip("/")
    prefix = path.removesuffix(f"/consumers/{quote(group, safe='')}")
    if prefix == path:
        prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    return prefix if _PATH.fullmatch(prefix) else ""
