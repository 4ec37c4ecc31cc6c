"""URLs and texts without their secrets, for whoever logs one.

Tokens come in queries where nothing else can carry them (EventSource sets no header): what a log,
a problem or a span says of such a URL must not let anybody in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

HIDDEN = "***"
_SECRET = {
    *("token", "access_token", "id_token", "refresh_token", "jwt", "bearer", "auth"),
    *("authorization", "api_key", "apikey", "key", "password", "secret", "signature", "sig"),
    *("code", "session", "ticket", "credentials"),
}
# A JWT wherever it stands (RFC 7519: three parts, the first begins with `{"`), and credentials
# behind their scheme.
_RUN = re.compile(r"[A-Za-z0-9_.-]+")  # a JWT is in one; looked for by itself, it is in each "eyJ"
_JWT_BEGINS, _JWT_LEAST = "eyJ", 8
_SCHEME = re.compile(r"\b(bearer|basic)(\s+|\.)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_PAIR = re.compile(r"([?&;]|^)([^=&;?#\s]+)=([^&;#\s\"']*)")


def hide(names: Iterable[str]) -> None:
    """Parameters of queries that hold secrets, besides the usual ones."""
    _SECRET.update(_plain(name) for name in names)


def redacted(url: str) -> str:
    """A URL, or a path with its query: the values of parameters that hold secrets are hidden."""
    path, mark, query = url.partition("?")
    path = _USERINFO.sub(f"{HIDDEN}@", path)
    return path + mark + _PAIR.sub(_hidden, query) if mark else path


def cleaned(text: str) -> str:
    """Any text that is about to be logged; what looks like a secret is hidden in it."""
    if "=" in text and ("?" in text or "&" in text):
        text = _PAIR.sub(_hidden, text)
    if "eyJ" in text:
        text = _RUN.sub(_without_jwts, text)
    if "://" in text and "@" in text:
        text = _USERINFO.sub(f"{HIDDEN}@", text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered:
        text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    return text


def _without_jwts(run: re.Match[str]) -> str:
    """Of three parts, the last of which may lack; the first begins somewhere in its own."""
    parts, kept = run[0].split("."), []
    while len(parts) > 1:
        part = parts.pop(0)
        at = part.find(_JWT_BEGINS)
        if 0 <= at <= len(part) - _JWT_LEAST:
            kept.append(part[:at] + HIDDEN)
            del parts[:2]
        else:
            kept.append(part)
    return ".".join([*kept, *parts])


def _hidden(pair: re.Match[str]) -> str:
    before, name, value = pair.groups()
    secret = _plain(name) in _SECRET
    return f"{before}{name}={HIDDEN if secret and value else value}"


def _plain(name: str) -> str:
    """As the query's reader sees it: %-encoding hides nothing from it."""
    return unquote_plus(name).lower().replace("-", "_")
