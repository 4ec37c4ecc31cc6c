from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Template, dumps, iter_warnings, load, loads

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads_without_a_warning(path: Path):
    settings = load(path)
    assert list(iter_warnings(settings)) == []
    assert settings.routes
    assert loads(dumps(settings), name=str(path)) == settings


def test_the_example_of_orders_says_what_its_comments_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GATEWAY_PORT", "9000")
    settings = load(EXAMPLES / "orders.yaml")
    assert settings.listen.port == 9000
    (orders,) = settings.kafka.topics
    assert orders.partition_ready_timeout == 5.0
    by_customer = settings.routes[2]
    assert by_customer.when[0].pattern.match("/events/orders/7") == {"customer": "7"}
    key = by_customer.with_.filters[0].key
    assert isinstance(key, Template) and key.render(params={"customer": "7"}) == "7"
