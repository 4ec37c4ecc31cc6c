"""All clients, to run one test with each."""

from __future__ import annotations

import pytest
from support.clients.chromium import ChromiumClient
from support.clients.client import SseClient
from support.clients.curl import CurlClient
from support.clients.httpx_sse import HttpxSseClient
from support.clients.node_sse import FetchEventSourceClient, NpmEventSourceClient
from support.clients.raw import RawClient

ALL_CLIENTS = [
    pytest.param(RawClient, id="raw"),
    pytest.param(HttpxSseClient, id="httpx-sse"),
    pytest.param(CurlClient, id="curl", marks=pytest.mark.needs("curl")),
    pytest.param(
        NpmEventSourceClient, id="npm-eventsource", marks=pytest.mark.needs("node", "npm")
    ),
    pytest.param(
        FetchEventSourceClient, id="fetch-event-source", marks=pytest.mark.needs("node", "npm")
    ),
    pytest.param(ChromiumClient, id="chromium", marks=pytest.mark.needs("chromium")),
]

__all__ = ["ALL_CLIENTS", "SseClient"]
