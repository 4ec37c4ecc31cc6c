"""What the admin API answers of routes, in the process and without a broker."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.config import loads
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
