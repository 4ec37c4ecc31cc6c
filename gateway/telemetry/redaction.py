"""Hide secrets in URLs and texts before they are logged.

EventSource cannot set a header, so its clients put their tokens into the query. A log line, an
error response or a span that shows such a URL must not give the token away.
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
# A JWT has three parts (RFC 7519), and the first begins with "eyJ", which is `{"` in base64. One
# pattern for it would take quadratic time on a text of many "eyJ", so runs of its characters are
# searched for, and `_redact_jwts` splits them.
_TOKEN_CHARS = re.compile(r"[A-Za-z0-9_.-]+")
_JWT_PREFIX, _MIN_JWT_CHARS = "eyJ", 8
_AUTH_SCHEME = re.compile(r"\b(bearer|basic)(\s+|\.)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_QUERY_PAIR = re.compile(r"([?&;]|^)([^=&;?#\s]+)=([^&;#\s\"']*)")


def add_secret_names(names: Iterable[str]) -> None:
    """Add names of query parameters that hold secrets, besides the usual ones."""
    _SECRET_NAMES.update(_normalize_name(name) for name in names)


def redact_url(url: str) -> str:
    """Hide credentials before the host of a URL, and the values of secret parameters."""
    path, mark, query = url.partition("?")
    path = _USERINFO.sub(f"{REDACTED}@", path)
    return path + mark + _QUERY_PAIR.sub(_redact_pair, query) if mark else path


def redact_text(text: str) -> str:
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
    """Return a run of token characters in which JWTs are hidden.

    A JWT may follow other characters in its first part, and may have been cut after its second.
    """
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
    """Return a name as the parser of the query sees it, so that %-encoding cannot hide it."""
    return unquote_plus(name).lower().replace("-", "_")
