"""Build the base URI by which a client reaches this very process again.

A new instance exists in one process only, so the client gets a URI that leads there:
`sidecar.consumer.baseUri` if it is set; else the one in the headers of proxies (RFC 7239, or
X-Forwarded-Host, -Proto and -Path), where the first of several values is what the client requested;
else the request's Host. These headers are not authenticated, but only the client that sent them
gets the result.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import Request

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:@-]*){1,64}")


def build_base_uri(request: Request, configured: str | None, group: str, name: str) -> str:
    """Return the base URI of an instance, without a slash at its end."""
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    if configured is not None:
        return configured.rstrip("/") + path
    scheme, host = _parse_forwarded(request)
    return f"{scheme}://{host}{_parse_prefix(request, group)}{path}"


def _parse_forwarded(request: Request) -> tuple[str, str]:
    headers = request.headers
    first = headers.get("forwarded", "").partition(",")[0]
    pairs = (parameter.partition("=") for parameter in first.split(";"))
    parameters = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
    host = parameters.get("host") or headers.get("x-forwarded-host", "").partition(",")[0].strip()
    scheme = (
        parameters.get("proto") or headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    )
    if scheme.lower() not in ("http", "https"):
        scheme = request.url.scheme
    if not _HOST.fullmatch(host):
        host = headers.get("host", "")
    if not _HOST.fullmatch(host):
        host = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    return scheme.lower(), host


def _parse_prefix(request: Request, group: str) -> str:
    """Return the prefix of the path that a proxy removes before it forwards a request."""
    path = request.headers.get("x-forwarded-path", "").partition("?")[0].rstrip("/")
    prefix = path.removesuffix(f"/consumers/{quote(group, safe='')}")
    if prefix == path:
        prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    return prefix if _PATH.fullmatch(prefix) else ""
