"""What the admin API answers of routes, in the process and without a broker."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.config import Settings, loads
from gateway.web.app.app import create_app

CONFIG = {
    "kafka": {"servers": ["127.0.0.1:1"], "topics": ["orders"]},
    "routes": [
        {"when": [{"path": "/orders"}, {"path": "/v2/orders"}], "with": {"topic": "orders"}}
    ],
    "admin": {},
}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_streams_are_selected_by_any_path_of_a_route_and_by_no_other(method: str):
    """A path that no route has selected no stream, and nothing said that it was misspelt."""
    app = create_app(loads(json.dumps(CONFIG), name="test"))
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9901") as http:
        for path in ("/orders", "/v2/orders"):
            response = await http.request(method, "/streams", params={"route": path})
            assert response.status_code == 200
        response = await http.request(method, "/streams", params={"route": "/v2/order"})
    assert response.status_code == 404
    assert "did you mean '/v2/orders'?" in response.json()["detail"]


async def test_a_page_of_another_site_that_also_says_that_it_is_none_is_refused():
    app = create_app(loads(json.dumps(CONFIG), name="test"))
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9901") as http:
        for sites, status in ((["none"], 200), (["none", "cross-site"], 403)):
            headers = [("Sec-Fetch-Site", site) for site in sites]
            assert (await http.get("/routes", headers=headers)).status_code == status


DOCUMENT = {
    "when": [{"path": "/d/{id}"}],
    "with": {"topic": "orders", "capability": "fetch", "filters": [{"key": "${params.id}"}]},
}
WRITER = {
    "when": [{"path": "/d/{id}", "method": "PUT"}],
    "with": {"topic": "orders", "capability": "produce", "key": "${params.id}"},
}


async def test_routes_that_share_a_path_are_two():
    """Reports knew the last of them only, and a pause of one paused both."""

    def load(*routes: object) -> Settings:
        return loads(json.dumps(CONFIG | {"routes": routes}), name="test")

    app = create_app(load(DOCUMENT, WRITER))
    for routes, change in (
        ((DOCUMENT, WRITER), None),
        ((WRITER,), ("/d/{id}", "removed")),
        ((DOCUMENT,), ("PUT /d/{id}", "removed")),
    ):
        outcome = await app.reload.preview(load(*routes))
        changes = [(each.route, each.change) for each in outcome.changes]
        assert changes == ([] if change is None else [change])
    transport = httpx.ASGITransport(app.admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9901") as http:
        response = await http.post("/routes/PUT%20/d/%7Bid%7D/pause")
        assert response.status_code == 200, response.text
        routes_told = (await http.get("/routes")).json()["routes"]
    paused = {each["route"]: each["paused"] is not None for each in routes_told}
    assert paused == {"/d/{id}": False, "PUT /d/{id}": True}
