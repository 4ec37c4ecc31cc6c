"""URLs and texts without their secrets, for whoever logs one.

Tokens come in queries where nothing else can carry them (EventSource sets no header): what a log,
a problem or a span says of such a URL must not let anybody in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

REDACTED = "***"
_SECRET_NAMES = {
    *("token", "access_token", "id_token", "refresh_token", "jwt", "bearer", "auth"),
    *("authorization", "api_key", "apikey", "key", "password", "secret", "signature", "sig"),
    *("code", "session", "ticket", "credentials"),
}
# A JWT wherever it stands (RFC 7519: three parts, the first begins with `{"`), and credentials
# behind their scheme.
_TOKEN_CHARS = re.compile(
    r"[A-Za-z0-9_.-]+"
)  # a JWT is in one; looked for by itself, it is in each "eyJ"
_JWT_PREFIX, _MIN_JWT_CHARS = "eyJ", 8
_AUTH_SCHEME = re.compile(r"\b(bearer|basic)(\s+|\.)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_QUERY_PAIR = re.compile(r"([?&;]|^)([^=&;?#\s]+)=([^&;#\s\"']*)")


def add_secret_names(names: Iterable[str]) -> None:
    """Parameters of queries that hold secrets, besides the usual ones."""
    _SECRET_NAMES.update(_normalize_name(name) for name in names)


def redact_url(url: str) -> str:
    """A URL, or a path with its query: the values of parameters that hold secrets are hidden."""
    path, mark, query = url.partition("?")
    path = _USERINFO.sub(f"{REDACTED}@", path)
    return path + mark + _QUERY_PAIR.sub(_redact_pair, query) if mark else path


def redact_text(text: str) -> str:
    """Any text that is about to be logged; what looks like a secret is hidden in it."""
    if "=" in text and ("?" in text or "&" in text):
        text = _QUERY_PAIR.sub(_redact_pair, text)
    if "eyJ" in text:
        text = _TOKEN_CHARS.sub(_redact_jwts, text)
    if "://" in text and "@" in text:
        text = _USERINFO.sub(f"{REDACTED}@", text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered:
        text = _AUTH_SCHEME.sub(rf"\1\2{REDACTED}", text)
    return text


def _redact_jwts(run: re.Match[str]) -> str:
    """Of three parts, the last of which may lack; the first begins somewhere in its own."""
    parts, kept = run[0].split("."), []
    while len(parts) > 1:
        part = parts.pop(0)
        at = part.find(_JWT_PREFIX)
        if 0 <= at <= len(part) - _MIN_JWT_CHARS:
            kept.append(part[:at] + REDACTED)
            del parts[:2]
        else:
            kept.append(part)
    return ".".join([*kept, *parts])


def _redact_pair(pair: re.Match[str]) -> str:
    before, name, value = pair.groups()
    secret = _normalize_name(name) in _SECRET_NAMES
    return f"{before}{name}={REDACTED if secret and value else value}"


def _normalize_name(name: str) -> str:
    """As the query's reader sees it: %-encoding hides nothing from it."""
    return unquote_plus(name).lower().replace("-", "_")
