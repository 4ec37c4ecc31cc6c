"""Serve dictionaries of routes, and choose the streams that are compressed with one (RFC 9842).

A page names the dictionary of its stream, and the browser loads it when it is idle:

    <link rel="compression-dictionary" href="/events/orders?dictionary">

The next stream of that route is asked for with the digest and the id of the dictionary, and is
compressed against it if the browser may see what the dictionary holds. At every step in which
something is missing, the stream is compressed by gzip, or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import re
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.config import Route
from gateway.errors import KafkaError, RequestError
from gateway.hub.fanout.view import View
from gateway.hub.reads.dictionaries import Dictionaries, ViewDictionary
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import DictionaryWire
from gateway.web.http.negotiation import get_accept_encoding, negotiate_wire, prefers_dcz
from gateway.web.http.security_headers import NOSNIFF_HEADERS
from gateway.web.routing.paths import SELECTION_PARAMETERS, Match
from gateway.web.routing.query import get_query_pairs
from gateway.web.routing.routes import Routes

PARAMETER = "dictionary"
"""The parameter of the query with which a route's dictionary is asked for."""
DCZ_HEADERS = {"Content-Encoding": "dcz"}
MAX_AGE_S = 3600  # how long a browser keeps a dictionary

# What may have a meaning in a URLPattern.
_PATTERN_SYNTAX = re.compile(r"[^A-Za-z0-9._~%!$&'@,;=-]")


def is_asked_for(request: Request) -> bool:
    return bool(request.scope["query_string"]) and PARAMETER in request.query_params


async def negotiate_stream(
    routes: Routes, match: Match, request: Request, wire: Wire
) -> tuple[Wire, dict[str, str]]:
    """Return the wire of a stream and the headers that name its coding."""
    field = request.headers.get("available-dictionary")
    if field is None or not has_dictionary(match.route):
        return negotiate_wire(wire, match.route, request)
    digest = _parse_digest(field)
    if digest is None or not prefers_dcz(get_accept_encoding(request)):
        return negotiate_wire(wire, match.route, request)
    id = request.headers.get("dictionary-id", "").strip().strip('"')
    dictionary = None
    with contextlib.suppress(KafkaError):  # it will be raised again when the stream is opened
        dictionaries, view = await _get_dictionaries(routes, match, request)
        dictionary = await dictionaries.find(view, match.route.name, digest, id)
    if dictionary is None:
        return negotiate_wire(wire, match.route, request)
    return DictionaryWire(wire, dictionary), DCZ_HEADERS


async def respond(routes: Routes, match: Match, request: Request) -> Response:
    """Return the dictionary of a route, as this client sees the route."""
    routes.check_parameters(match, get_query_pairs(request))
    if not has_dictionary(match.route):
        detail = "this route has none; it needs `compression: dictionary` and `history: all`"
        raise RequestError(404, "No dictionary", detail)
    release_slot = await routes.limits.acquire_slot(request.scope, match.granted)
    try:
        return await routes.respond_as_configured(
            match, request, partial(_respond_with_newest, routes, request)
        )
    finally:
        release_slot()


async def _respond_with_newest(routes: Routes, request: Request, match: Match) -> Response:
    dictionaries, view = await _get_dictionaries(routes, match, request)
    newest = await dictionaries.get_newest(view, match.route.name)
    return _build_response(routes, match, request, newest)


def has_dictionary(route: Route) -> bool:
    """Return whether a route has dictionaries.

    They hold records of the past, so that one that limits the history has none.
    """
    stream = route.stream
    return stream.compression == "dictionary" and stream.history == "all"


def _build_response(
    routes: Routes, match: Match, request: Request, newest: ViewDictionary
) -> Response:
    use = f'match="{build_match(_get_encoded_path(request.scope))}"'
    own_headers = routes.list_credential_headers(match.route)
    if newest.id:
        use += f', id="{newest.id}"'
    headers = {
        "Use-As-Dictionary": use,
        # A browser uses a dictionary as long as it is fresh. It is for one client: others who use
        # the browser later have other credentials.
        "Cache-Control": f"private, max-age={MAX_AGE_S}",
        "Vary": ", ".join(["Origin", "Cookie", "Authorization", *own_headers]),
        **NOSNIFF_HEADERS,
    }
    content = newest.dictionary.content
    return Response(content, headers=headers, media_type="application/octet-stream")


def build_match(path: str) -> str:
    """Return the URLPattern of the streams of a path, with any query.

    It is relative to the path, so that it is right behind proxies that add to the path. The path is
    percent-encoded as it came.
    """
    segment = path.partition("?")[0].rpartition("/")[2]
    # The backslash of the pattern is written as two in a string of a structured field.
    return _PATTERN_SYNTAX.sub(lambda found: "\\\\" + found[0], segment) + "?*"


async def _get_dictionaries(
    routes: Routes, match: Match, request: Request
) -> tuple[Dictionaries, View]:
    """Return the dictionaries of the route's cluster, and the view that they are looked up by.

    The view is without the client's choice of records or fields.
    """
    pairs = [pair for pair in get_query_pairs(request) if pair[0] not in SELECTION_PARAMETERS]
    view = await routes.get_view(match, pairs)
    return routes.hubs.get_hub(view.cluster).dictionaries, view


def _get_encoded_path(scope: Scope) -> str:
    raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw_path.decode("latin-1")


def _parse_digest(field: str) -> bytes | None:
    """Return the digest of `Available-Dictionary`; None if there is none (RFC 9842 2.2)."""
    text = field.strip()
    if len(text) != 46 or not (text.startswith(":") and text.endswith(":")):
        return None
    try:
        return base64.b64decode(text[1:-1], validate=True)
    except ValueError:
        return None
