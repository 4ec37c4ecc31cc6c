"""What `gateway/README.md` says under "Where to add what": one of each is added here, and used.

Nothing in `gateway` knows of them: each is a class or two, and an entry in a registry.
"""

from __future__ import annotations

from typing import Any, Literal

import httpx
import pytest
from pydantic import Field
from support.brokers import embedded_kafka
from support.gateways import build_config
from support.in_process_gateway import running_in_process_gateway

from gateway.config import GUARD_KINDS, GuardSection, build_json_schema, loads
from gateway.errors import ConfigError
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.access.grant import Grant
from gateway.web.access.guard import AccessRequest, Guard, GuardContext
from gateway.web.access.guard_errors import GuardErrors
from gateway.web.access.kinds import GUARD_CLASSES
from gateway.web.access.security_schemes import SecurityScheme, build_api_key

kafka = embedded_kafka({"orders": 1})


class BadgeSection(GuardSection):
    """A guard that believes a badge."""

    type: Literal["badge"] = Field(description="The kind of guard. For tests.")
    color: str = Field(default="blue", description="The color of badges. For tests.")


class BadgeGuard(Guard[BadgeSection]):
    """A guard that believes a badge: a header with a color and a name."""

    is_renewable = False

    def __init__(self, section: BadgeSection, context: GuardContext) -> None:
        self._section, self._name = section, context.name
        self.errors = GuardErrors(context.name, context.realm, "wear a badge")

    @classmethod
    def create(cls, section: BadgeSection, context: GuardContext) -> BadgeGuard:
        return cls(section, context)

    @classmethod
    def describe(cls, section: BadgeSection) -> tuple[SecurityScheme, ...]:
        definition = build_api_key("header", "x-badge")
        return (SecurityScheme(definition, f"-H 'X-Badge: {section.color} NAME'"),)

    async def grant(self, request: AccessRequest) -> Grant:
        color, _, name = request.connection.headers.get("x-badge", "").partition(" ")
        if not name:
            raise self.errors.build_missing_credentials()
        if color != self._section.color:
            raise self.errors.build_invalid_token(f"{color} is not the color")
        return Grant(self._name, name)


@pytest.fixture
def badge(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kind of guard is added; return the section of one."""
    monkeypatch.setitem(GUARD_KINDS, "badge", BadgeSection)
    monkeypatch.setitem(GUARD_CLASSES, BadgeSection, lambda: BadgeGuard)
    return {"type": "badge", "color": "red"}


async def test_a_kind_of_guard_admits_refuses_and_is_described(
    badge: dict[str, Any], kafka: EmbeddedKafka
):
    routes = [
        {
            "when": [{"path": "/orders"}],
            "guarded": {"entrance": []},
            "with": {"topic": "orders", "filters": [{"key": "${guarded['entrance'].identity}"}]},
        }
    ]
    config = build_config(kafka.bootstrap, ["orders"], routes, guards={"entrance": badge})
    async with (
        running_in_process_gateway(config) as (url, _),
        httpx.AsyncClient(base_url=url) as client,
    ):

        async def get_status(badge_text: str) -> int:
            headers = {"x-badge": badge_text, "accept": "application/x-ndjson"}
            query = {"from": "earliest", "until": "latest"}
            return (await client.get("/orders", params=query, headers=headers)).status_code

        assert await get_status("red ada") == 200
        assert [await get_status("blue ada"), await get_status("")] == [401, 401]
        document = (await client.get("/asyncapi.json")).json()
        schemes = document["components"]["securitySchemes"]
        assert schemes == {"entrance": build_api_key("header", "x-badge")}
        (stream,) = (await client.get("/", headers={"accept": "application/json"})).json()[
            "streams"
        ]
        assert "-H 'X-Badge: red NAME'" in stream["examples"][0]["line"]


def test_a_kind_of_guard_is_validated_and_in_the_json_schema(badge: dict[str, Any]):
    options = build_json_schema()["properties"]["guards"]["additionalProperties"]
    assert options["discriminator"]["mapping"]["badge"] == "#/$defs/BadgeSection"
    with pytest.raises(ConfigError) as refused:
        loads(
            "kafka: {servers: [a:1]}\nguards: {door: {type: badge, colour: red}, gate: {type: bag}}"
        )
    assert "unknown key 'colour' in guards.door; did you mean 'color'?" in str(refused.value)
    assert "'bag' is no kind of guard; did you mean 'badge'?" in str(refused.value)
