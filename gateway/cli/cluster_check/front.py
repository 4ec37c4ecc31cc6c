"""Ask through the proxy in front of the gateway, and find how it changes streams.

The gateway's `/health/front` (`gateway.web.admin.health`) responds with two events and a silence
between them, and reports the request that arrived. So each fault of a proxy is seen from both ends:
a late event, a header that did not arrive, a response that the gateway did not compress. A
WebSocket at `/ws` shows whether upgrades pass.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import httpx
from websockets import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, Origin
from websockets.asyncio.client import connect

from gateway.config import Settings
from gateway.config.types.address import create_trusting_context
from gateway.web.http.asgi_middleware import TrustedProxies

from .finding import CheckError, CheckProgress, Finding, FindingState, failure, judge

PROBE_PATH = "/health/front"
WEBSOCKET_PATH = "/ws"
REQUEST_TIMEOUT_S = 15.0
EVENT_INTERVAL_S = 2.0  # between the two events that show whether the first one is held back
MAX_IDLE_S = 100.0
MAX_PROBE_BYTES = 1 << 16  # the two events have 500
PING_INTERVAL_S = 20.0  # how often the gateway writes to an idle WebSocket
IDLE_MARGIN_S = 1.5
LONG_POSITION = "x" * 12_288
"""As long as the position of a topic with 2,000 partitions."""
CLAIMED_ADDRESS = "192.0.2.77"  # of TEST-NET-1 (RFC 5737): nobody has it
SENT_HEADERS = {
    "authorization": "Bearer check-of-the-proxy",
    "cookie": "check=proxy",
    "idempotency-key": "check-of-the-proxy",
    "last-event-id": "check-of-the-proxy",
}


@dataclass(frozen=True)
class ProbeResult:
    """The result of a request to the probe.

    Attributes:
        interval_s: Seconds between the arrival of the two events; None if the response ended
            without the second one.
        duration_s: Seconds from the first event to the end of the response.
    """

    report: Mapping[str, Any]
    coding: str
    interval_s: float | None
    duration_s: float

    @property
    def is_prompt(self) -> bool:
        """Whether the first event was not held back until the second one."""
        return self.interval_s is not None and self.interval_s >= EVENT_INTERVAL_S / 2


class FrontAddress(NamedTuple):
    """The proxy to ask.

    Attributes:
        idle_s: How long idle streams and WebSockets must last; None for the longest time between
            two heartbeats of a route, and between two pings.
    """

    url: str
    ca: Path | None = None
    idle_s: float | None = None


@dataclass(frozen=True)
class Front:
    """The proxy, and how long idle streams and WebSockets through it must last."""

    url: str
    tls: ssl.SSLContext
    proxies: TrustedProxies
    idle_s: float
    websocket_idle_s: float

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def is_secure(self) -> bool:
        return self.parts.scheme == "https"

    @property
    def origin(self) -> str:
        return f"{self.parts.scheme}://{self.parts.netloc}"

    async def probe(
        self,
        silence_s: float = 0.0,
        headers: Mapping[str, str] | None = None,
        *,
        position: str = "",
    ) -> ProbeResult:
        """Send a request to the probe and read its response to the end.

        Raises:
            CheckError: The response is not the gateway's.
        """
        parameters = {"silence": f"{silence_s:g}"} | ({"lastEventId": position} if position else {})
        sent = {"accept": "text/event-stream", "accept-encoding": "identity", **(headers or {})}
        loop = asyncio.get_running_loop()
        async with self._request(parameters, sent, silence_s) as response:
            coding = response.headers.get("content-encoding", "identity").lower()
            decoder = zlib.decompressobj(wbits=47) if coding == "gzip" else None
            text, first_at, second_at = b"", None, None
            try:
                # The time-out of httpx is for each read: what never ends would never end here.
                async with asyncio.timeout(silence_s + REQUEST_TIMEOUT_S):
                    async for piece in response.aiter_raw():
                        text += piece if decoder is None else decoder.decompress(piece)
                        if first_at is None and b"\n\n" in text:
                            first_at = loop.time()
                        if second_at is None and text.count(b"\n\n") > 1:
                            second_at = loop.time()
                        if len(text) > MAX_PROBE_BYTES:
                            break
            except (httpx.TransportError, TimeoutError):
                pass  # cut off, or endless
            except zlib.error:
                raise CheckError(
                    f"{self.url}{PROBE_PATH} answers with Content-Encoding: gzip, and what it "
                    "sends is not; have the proxy leave responses as they are"
                ) from None
            ended_at = loop.time()
        report = _parse_report(text)
        if report is None or first_at is None:
            raise CheckError(
                f"{self.url}{PROBE_PATH} answers {response.status_code}, but not with what the "
                f"gateway sends ({coding}); correct the URL, or look at what the proxy answers"
            )
        interval_s = None if second_at is None else second_at - first_at
        return ProbeResult(report, coding, interval_s, ended_at - first_at)

    async def select_protocol(self) -> str | None:
        """Return the protocol that the proxy selects by ALPN for a client of HTTP/2 and 1.1."""
        if not self.is_secure:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        host, port = self.parts.hostname, self.parts.port or 443
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        selected: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.transport.abort()
        return selected

    async def hold_websocket(self) -> float | None:
        """Open an idle WebSocket; return the seconds until it was cut, or None if it lasted."""
        loop = asyncio.get_running_loop()
        scheme = "wss" if self.is_secure else "ws"
        async with connect(
            f"{scheme}://{self.parts.netloc}{self.parts.path}{WEBSOCKET_PATH}",
            origin=Origin(self.origin),
            ssl=self.tls if self.is_secure else None,
            proxy=None,
            open_timeout=REQUEST_TIMEOUT_S,
            ping_interval=None,
            close_timeout=1.0,
        ) as socket:
            opened_at = loop.time()
            try:
                async with asyncio.timeout(self.websocket_idle_s):
                    while True:
                        await socket.recv()
            except TimeoutError:
                return None
            except ConnectionClosed:
                return loop.time() - opened_at

    @asynccontextmanager
    async def _request(
        self, parameters: Mapping[str, str], headers: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=silence_s + REQUEST_TIMEOUT_S)
        # With an explicit transport, httpx ignores the proxies of the environment.
        transport = httpx.AsyncHTTPTransport(verify=self.tls)
        url = self.url + PROBE_PATH
        try:
            async with (
                httpx.AsyncClient(transport=transport, timeout=timeout) as http,
                http.stream("GET", url, params=parameters, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise CheckError(await _describe_refusal(url, response))
                yield response
        except httpx.TimeoutException:
            raise CheckError(f"{url} does not answer within {timeout.read:g} s") from None
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            ca = "; name who signed its certificate with --ca" if "CERTIFICATE" in str(exc) else ""
            raise CheckError(f"{url} cannot be reached: {exc}{ca}") from None


_REFUSALS = {
    404: "; correct the URL, or set listen.probe: true in the gateway",
    421: ": the gateway does not know the name in Host; list it in listen.hosts, and have the "
    "proxy pass Host on",
    **dict.fromkeys((502, 503, 504), "; the proxy does not reach a gateway"),
}


async def _describe_refusal(url: str, response: httpx.Response) -> str:
    await response.aread()
    status = f"{url} answers {response.status_code}"
    if response.has_redirect_location:
        return f"{status}, to {response.headers['location']}; give that URL"
    if response.status_code in _REFUSALS:
        return status + _REFUSALS[response.status_code]
    try:
        detail = f": {response.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        detail = ""
    return status + detail


def _parse_report(text: bytes) -> Mapping[str, Any] | None:
    match = re.match(rb"event: received\r?\ndata: (.*)", text)
    try:
        report: Mapping[str, Any] | None = json.loads(match[1]) if match else None
    except ValueError:
        return None
    return report


async def check_front(
    address: FrontAddress, settings: Settings, steps: CheckProgress
) -> list[Finding]:
    heartbeats = [route.stream.heartbeat for route in settings.routes if route.is_stream]
    longest_s = min(max(heartbeats, default=15.0) + IDLE_MARGIN_S, MAX_IDLE_S)
    listed = settings.listen.forwarded
    front = Front(
        address.url.rstrip("/"),
        create_trusting_context(address.ca),
        TrustedProxies(() if listed is False else listed),
        longest_s if address.idle_s is None else address.idle_s,
        PING_INTERVAL_S + IDLE_MARGIN_S if address.idle_s is None else address.idle_s,
    )
    with steps.track(f"front at {front.url}"):
        try:
            plain = await front.probe(EVENT_INTERVAL_S, SENT_HEADERS)
        except CheckError as exc:
            return [failure("front", str(exc))]
    return await asyncio.gather(
        *(
            judge(f"front: {name}", f"through {front.url}", check(front, plain), steps)
            for name, check in CHECKS.items()
        )
    )


async def _check_interval(front: Front, plain: ProbeResult) -> str:
    if plain.interval_s is None:
        raise CheckError(
            f"the proxy cut a stream {plain.duration_s:.1f} s after its first event; raise its "
            "timeouts for reading and for whole responses"
        )
    if not plain.is_prompt:
        raise CheckError(
            f"the proxy buffers: of two events that were sent {EVENT_INTERVAL_S:g} s apart, the "
            f"first arrived {plain.interval_s:.1f} s before the second; turn buffering off (nginx: "
            "proxy_buffering off, Caddy: flush_interval -1)"
        )
    return "an event arrives before the next one is sent"


async def _check_headers(front: Front, plain: ProbeResult) -> str:
    lengths = plain.report["headers"]
    dropped = [name for name, value in SENT_HEADERS.items() if lengths.get(name, 0) < len(value)]
    if dropped:
        raise CheckError(
            f"the proxy drops {', '.join(map(_title, dropped))}; have it pass on all headers of "
            "requests"
        )
    return f"{', '.join(map(_title, SENT_HEADERS))} arrive"


async def _check_scheme(front: Front, plain: ProbeResult) -> str:
    scheme, expected = plain.report["scheme"], front.parts.scheme
    if scheme != expected:
        raise CheckError(
            f"the gateway takes {expected} for {scheme}; have the proxy set X-Forwarded-Proto, and "
            "name it in listen.forwarded"
        )
    return f"the gateway knows that clients use {expected}"


async def _check_address(front: Front, plain: ProbeResult) -> str:
    address, forwarded = plain.report["address"], plain.report["forwarded"]
    if forwarded == "absent":
        raise CheckError(
            f"the proxy hides the client's address: the gateway sees {address} and no "
            "X-Forwarded-For, so all clients share the limits of one address; have the proxy set "
            "the header (nginx: proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for, "
            "HAProxy: option forwardfor)"
        )
    if forwarded == "ignored":
        raise CheckError(
            f"the gateway does not trust the proxy at {address}, so all clients share the limits "
            f"of one address; set listen.forwarded: [{address}]"
        )
    # From a machine that the gateway trusts as a proxy, what this command claims is to be believed.
    if front.proxies.trusts_all or not front.proxies.is_listed(address):
        claiming = await front.probe(headers={"x-forwarded-for": CLAIMED_ADDRESS})
        if claiming.report["address"] == CLAIMED_ADDRESS:
            raise CheckError(
                "clients can claim any address: the proxy passes their X-Forwarded-For on as it "
                "is; have it add the address of the connection"
            )
    return f"the gateway sees this client at {address}"


async def _check_compression(front: Front, plain: ProbeResult) -> str:
    offered = await front.probe(EVENT_INTERVAL_S, {"accept-encoding": "gzip"})
    own = offered.report["coding"]
    if plain.coding != "identity" or (own == "identity" and offered.coding != "identity"):
        raise CheckError(
            "the proxy compresses streams itself, once for each client, and may hold events back "
            "for it; have it leave responses as they are (nginx: gzip off), and pass on "
            "Accept-Encoding"
        )
    if own != offered.coding:
        raise CheckError(
            f"the gateway sent {own} and {offered.coding} arrived; have the proxy leave "
            "Content-Encoding as it is"
        )
    if own == "identity":
        raise CheckError(
            "Accept-Encoding does not arrive, so streams are sent uncompressed; pass it on",
            FindingState.WARNING,
        )
    if plain.is_prompt and not offered.is_prompt:
        raise CheckError(
            "the proxy holds back events that the gateway compressed; turn buffering off"
        )
    return "streams arrive as the gateway compressed them"


async def _check_header(front: Front, plain: ProbeResult) -> str:
    probe = front.probe(headers={"last-event-id": LONG_POSITION})
    return await _check_position("Last-Event-ID", probe, lambda r: r["headers"]["last-event-id"])


async def _check_query(front: Front, plain: ProbeResult) -> str:
    probe = front.probe(position=LONG_POSITION)
    return await _check_position("the parameter lastEventId", probe, lambda r: r["query"])


async def _check_position(
    what: str, probe: Awaitable[ProbeResult], get_length: Callable[[Mapping[str, Any]], int]
) -> str:
    try:
        received = get_length((await probe).report)
    except CheckError as exc:
        raise CheckError(
            f"the proxy caps the size of request heads: with 12 KB in {what}, {exc}; allow 64 KB "
            "(nginx: large_client_header_buffers 4 64k, HAProxy: tune.bufsize 65536)"
        ) from None
    if received != len(LONG_POSITION):
        raise CheckError(f"of 12 KB in {what}, {received} bytes arrive; allow 64 KB")
    return f"12 KB in {what} arrive"


async def _check_idle(front: Front, plain: ProbeResult) -> str:
    try:
        result = await front.probe(front.idle_s)
    except CheckError as exc:
        raise CheckError(f"after {front.idle_s:g} s without an event, {exc}") from None
    if result.interval_s is None:
        raise CheckError(
            f"the proxy cuts idle streams: after {result.duration_s:.1f} s without an event; its "
            f"timeout must exceed the heartbeat of the routes, {front.idle_s:g} s with a margin "
            "(nginx: proxy_read_timeout 60s, HAProxy: timeout server 60s)"
        )
    return f"a stream without events lasts {front.idle_s:g} s"


async def _check_websocket(front: Front, plain: ProbeResult) -> str:
    try:
        cut_after_s = await front.hold_websocket()
    except InvalidStatus as exc:
        status = exc.response.status_code
        is_answer_of_gateway = "problem+json" in exc.response.headers.get("content-type", "")
        if status in (401, 503) and is_answer_of_gateway:
            return f"upgrades reach the gateway, which answers {status}"
        if status == 403 and is_answer_of_gateway:
            raise CheckError(
                f"the gateway refuses pages of {front.origin}: the proxy does not pass on Host "
                "with its port (nginx: proxy_set_header Host $http_host)"
            ) from None
        raise CheckError(
            f"the proxy blocks WebSockets: an upgrade is answered with {status}; have it pass on "
            "Upgrade and Connection (nginx: proxy_set_header Upgrade $http_upgrade)"
        ) from None
    except (InvalidHandshake, InvalidURI, OSError, TimeoutError, EOFError) as exc:
        raise CheckError(f"the proxy blocks WebSockets: {exc or type(exc).__name__}") from None
    if cut_after_s is not None:
        raise CheckError(
            f"the proxy cuts idle WebSockets: after {cut_after_s:.1f} s; its timeout must exceed "
            f"the {PING_INTERVAL_S:g} s between pings (HAProxy: timeout tunnel 60s)"
        )
    return f"upgrades pass, and an idle one lasts {front.websocket_idle_s:g} s"


async def _check_version(front: Front, plain: ProbeResult) -> str:
    try:
        selected = await front.select_protocol()
    except (OSError, TimeoutError) as exc:
        raise CheckError(f"TLS: {exc or 'it does not answer'}") from None
    if selected != "h2":
        raise CheckError(
            "browsers get HTTP/1.1, and open six streams at most; offer HTTP/2 over TLS (nginx: "
            "listen 443 ssl http2, HAProxy: alpn h2,http/1.1)",
            FindingState.WARNING,
        )
    return "all streams of a browser share one connection"


CHECKS: Mapping[str, Callable[[Front, ProbeResult], Awaitable[str]]] = {
    "events at once": _check_interval,
    "headers": _check_headers,
    "scheme": _check_scheme,
    "client address": _check_address,
    "compression": _check_compression,
    "long positions in the header": _check_header,
    "long positions in the query": _check_query,
    "idle streams": _check_idle,
    "WebSocket": _check_websocket,
    "HTTP/2": _check_version,
}
"""What the findings are about. Each check returns what is well; `CheckError` has the others."""


def _title(name: str) -> str:
    return "Last-Event-ID" if name == "last-event-id" else name.title()
