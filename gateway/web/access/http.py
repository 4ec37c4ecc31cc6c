"""Guards that ask the application: it sees the cookie or token that came, and says whose it is.

    GET {url}                       forwarded headers and parameters, X-Forwarded-Method: what the
                                    client wants to do, X-Forwarded-Uri: with which path
    200 {"identity": "ada", "roles": ["orders:read"], "attributes": {"tenant": "acme"},
         "expires": 1790000000}     granted; all but `identity` may be left out
    401, 403                        denied
    anything else, or nothing       nobody is let in, and told to come back (503)

The method is that of the request. A stream over WebSocket is a GET; a record written there has the
method of the route that takes it (POST where that is a stream's), or DELETE if it has no value. A
token that renews a stream is asked about with the stream's own GET.

What it says holds for `cache`, by the method, the path and all that was forwarded, and is asked
once however many come with the same at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from gateway.config import Http

from .claims import roles_of, text_of
from .credentials import offered
from .elsewhere import Away, Elsewhere, Headers
from .grant import Grant
from .guard import Asked
from .refusal import Refusals

REMEMBERED = 10_000  # answers

_TOKEN = re.compile(r"[\x21-\x7e]+")  # what can stand in a header without being another

log = logging.getLogger(__name__)

Denied: TypeAlias = Literal[401, 403]


class Shown(NamedTuple):
    """What the application is asked with."""

    url: str
    headers: Headers

    @property
    def digest(self) -> bytes:
        return sha256(repr(self).encode()).digest()


class HttpGuard:
    """See the module."""

    def __init__(self, name: str, settings: Http, realm: str, elsewhere: Elsewhere) -> None:
        self._name = name
        self._settings = settings
        self._elsewhere = elsewhere
        self._known: OrderedDict[bytes, tuple[float, Grant | Denied]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Grant | Denied]] = {}
        self._answers = True  # the last time
        self.renewable = "authorization" in settings.forward.headers
        shown = [*settings.forward.headers, *(f"?{each}=" for each in settings.forward.query)]
        self.refusals = Refusals(name, realm, f"log in to the application ({' or '.join(shown)})")

    async def grant(self, asked: Asked) -> Grant:
        shown = self._shown(asked)
        if shown is None:
            raise self.refusals.unknown()
        try:
            said = await self._say(shown)
        except Away as exc:
            raise self.refusals.uncertain("the application does not say who you are") from exc
        if said == 401:
            raise self.refusals.invalid("the application does not know you")
        if said == 403:
            raise self.refusals.denied()
        return said

    def _shown(self, asked: Asked) -> Shown | None:
        """None if there is nothing to show."""
        if asked.token is not None and not _TOKEN.fullmatch(asked.token):
            raise self.refusals.invalid("the token is none")
        headers = [pair for name in self._settings.forward.headers for pair in _of(name, asked)]
        query = [
            (name, value)
            for name in self._settings.forward.query
            for value in asked.connection.query_params.getlist(name)
        ]
        if not headers and not query:
            return None
        url = self._settings.url
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        wanted = [
            (b"x-forwarded-method", asked.method.encode("latin-1")),
            (b"x-forwarded-uri", asked.path.encode()),
        ]
        return Shown(url, (*headers, *wanted))

    async def _say(self, shown: Shown) -> Grant | Denied:
        """Raises Away."""
        digest = shown.digest
        until, known = self._known.get(digest, (0.0, 401))
        if until > time.time():
            self._known.move_to_end(digest)
            return known
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.create_task(self._ask(shown, digest))
            self._asking[digest] = asking
            asking.add_done_callback(lambda task: self._asked(task, digest))
        return await asyncio.shield(asking)

    def _asked(self, task: asyncio.Task[Any], digest: bytes) -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # is told to those who wait, if any still does

    async def _ask(self, shown: Shown, digest: bytes) -> Grant | Denied:
        try:
            within = self._settings.timeout
            reply = await self._elsewhere.get(shown.url, shown.headers, within=within)
            said = self._read(reply.status, reply.body)
        except Away as exc:
            if self._answers:
                log.warning("guard %s: the application cannot be asked: %s", self._name, exc)
            self._answers = False
            raise
        self._answers = True
        self._remember(digest, said)
        return said

    def _remember(self, digest: bytes, said: Grant | Denied) -> None:
        until = time.time() + self._settings.cache
        if isinstance(said, Grant) and said.expires is not None:
            until = min(until, said.expires)
        self._known[digest] = until, said
        self._known.move_to_end(digest)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _read(self, status: int, body: bytes) -> Grant | Denied:
        if status == 401 or status == 403:
            return 401 if status == 401 else 403
        if not 200 <= status < 300:
            raise Away(f"it answers {status}; 200, 401 and 403 are understood")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise Away("its answer is no JSON") from None
        identity = text_of(said.get("identity")) if isinstance(said, Mapping) else None
        if identity is None:
            raise Away("its answer names no identity")
        expires = _expires(said.get("expires"))
        if expires is not None and expires <= time.time():
            return 401
        return Grant(
            self._name,
            identity,
            roles_of(said.get("roles")),
            self._attributes(said.get("attributes")),
            expires,
        )

    def _attributes(self, said: object) -> dict[str, str]:
        found = said if isinstance(said, Mapping) else {}
        texts = [(name, text_of(found.get(name))) for name in self._settings.attributes]
        return {name: text for name, text in texts if text is not None}


def _of(name: str, asked: Asked) -> Headers:
    """A header as it came; a token that came otherwise stands in authorization."""
    connection = asked.connection
    if name == "authorization":
        bare = "authorization" not in connection.headers
        token = asked.token or (offered(connection) if bare else None)
        if token is not None:
            return [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    wanted = name.encode()
    return [(key, value) for key, value in connection.scope["headers"] if key == wanted]


def _expires(said: object) -> float | None:
    """Seconds since 1970, or ISO 8601; without an offset it is UTC. Raises Away."""
    if said is None:
        return None
    try:
        if isinstance(said, str):
            at = datetime.fromisoformat(said)
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if isinstance(said, (int, float)) and not isinstance(said, bool) and math.isfinite(said):
            return float(said)
    except (ValueError, OverflowError):
        pass
    raise Away("its answer expires at no time that is understood")
