from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from support.access_requests import build_connection, build_route
from support.tasks import running_task
from support.waiting import wait_until

from gateway.config import Jwt, Route, Settings
from gateway.errors import GuardUnavailable, NotGranted, RequestError
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.access import Grant, Granted, allow_anyone
from gateway.web.access.admission import Guards
from gateway.web.access.guard import AccessRequest, Guard, GuardErrors
from gateway.web.access.jwks import KeySet, KeySource
from gateway.web.access.jwt import JwtGuard


class FakeGuard:
    """A guard that knows some tokens: of the connection, in a header of its own name."""

    def __init__(self, name: str, known: dict[str, Grant], *, renewable: bool = True) -> None:
        self.is_renewable = renewable
        self.errors = GuardErrors(name, "orders", "log in")
        self.request_count = 0
        self._name, self._known = name, known

    def find_problem(self) -> str | None:
        return "away" if self._name == "session" else None

    async def grant(self, request: AccessRequest) -> Grant:
        self.request_count += 1
        token = (request.token if self.is_renewable else None) or request.connection.headers.get(
            self._name
        )
        if token == "away":
            raise self.errors.build_unavailable("away")
        if token not in self._known:
            raise self.errors.build_invalid_token(f"{self._name} knows no {token}")
        return self._known[token]


def build_grant(guard: str, identity: str, *roles: str) -> Grant:
    return Grant(guard, identity, frozenset(roles))


JWT = {"a1": build_grant("jwt0", "ada", "read"), "a2": build_grant("jwt0", "ada", "read", "write")}
SESSION = {
    "s1": build_grant("session", "ada@shop", "staff"),
    "s2": build_grant("session", "eve@shop"),
}
MACHINE = {"m1": build_grant("machines", "sensor")}


class FakeGuards(Guards):
    def create_guard(self, name: str, settings: Settings) -> Guard:
        known = {"jwt0": JWT, "session": SESSION, "machines": MACHINE}[name]
        return FakeGuard(name, known, renewable=name != "machines")


def build_settings() -> Settings:
    names = ("jwt0", "session", "machines")
    return Settings.model_validate(
        {
            "kafka": {"servers": ["a:1"], "topics": [{"name": "orders"}]},
            "guards": {name: {"type": "http", "url": "http://127.0.0.1:9/"} for name in names},
            "routes": [
                {
                    "when": [{"path": "/a"}],
                    "guarded": {name: [] for name in names},
                    "with": {"topic": "orders"},
                }
            ],
        }
    )


def build_guards(own: Any = allow_anyone) -> Guards:
    return FakeGuards(build_settings(), own)


async def request_grant(
    route: Route, token: str | None = None, application_access: Any = allow_anyone, **headers: str
) -> list[str]:
    """The identities, or what the refusal says."""
    came = build_connection(*headers.items())
    try:
        found = await build_guards(application_access)(route, {"customer": "7"}, came, token)
    except RequestError as exc:
        return [str(exc.status), str(exc).partition(";")[0]]
    return [found[name].identity for name in found]


@pytest.mark.parametrize(
    ("guarded", "headers", "found"),
    [
        ({}, {}, []),
        ({"jwt0": []}, {"jwt0": "a1"}, ["ada"]),
        ({"jwt0": ["read"]}, {"jwt0": "a1"}, ["ada"]),
        ({"jwt0": ["read", "write"]}, {"jwt0": "a2"}, ["ada"]),
        (
            {"jwt0": ["read", "write", "own"]},
            {"jwt0": "a1"},
            ["403", "guard 'jwt0' does not grant the roles write, own"],
        ),
        ({"jwt0": ["Read"]}, {"jwt0": "a1"}, ["403", "guard 'jwt0' does not grant the role Read"]),
        ({"jwt0": []}, {}, ["401", "jwt0 knows no None"]),
        ({"jwt0": [], "session": []}, {"jwt0": "a1", "session": "s1"}, ["ada", "ada@shop"]),
        ({"session": [], "jwt0": []}, {"jwt0": "a1", "session": "s1"}, ["ada@shop", "ada"]),
        ({"jwt0": [], "session": []}, {"jwt0": "a1"}, ["401", "session knows no None"]),
        ({"jwt0": [], "session": []}, {"session": "s1"}, ["401", "jwt0 knows no None"]),
        (
            {"jwt0": [], "session": ["staff"]},
            {"jwt0": "a1", "session": "s2"},
            ["403", "guard 'session' does not grant the role staff"],
        ),
        ({"jwt0": []}, {"jwt0": "away"}, ["503", "guard 'jwt0': away"]),
    ],
)
async def test_all_guards_of_a_route_grant_all_roles_that_it_names(guarded, headers, found):
    assert await request_grant(build_route(**guarded), None, **headers) == found


async def test_a_refusal_is_logged_and_many_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The log said nothing at the default level: only the client knew why."""
    caplog.set_level("INFO")
    logger = logging.getLogger("gateway.web.access.admission")
    # Refusals of other tests count as well: begin with a filter of the same kind.
    kinds = [type(each) for each in logger.filters]
    monkeypatch.setattr(logger, "filters", [kind() for kind in kinds])
    for _ in range(20):
        await request_grant(build_route(jwt0=["write"]), None, jwt0="a1")
    assert caplog.messages == [
        "a client is refused on /events/{customer}: guard 'jwt0' does not grant the role write; "
        "ask whoever gives them, and come back with new credentials"
    ]


@pytest.mark.parametrize(
    ("guarded", "told", "headers", "found"),
    [
        ({"jwt0": []}, "a2", {"jwt0": "a1"}, ["ada"]),
        ({"jwt0": []}, "a2", {}, ["ada"]),
        ({"jwt0": []}, "bad", {"jwt0": "a1"}, ["401", "jwt0 knows no bad"]),
        ({"jwt0": ["write"]}, "a1", {"jwt0": "a2"},
         ["403", "guard 'jwt0' does not grant the role write"]),
        ({"jwt0": [], "session": []}, "a2", {"jwt0": "a1", "session": "s1"}, ["ada", "ada@shop"]),
        ({"jwt0": [], "session": []}, "s2", {"jwt0": "a1", "session": "s1"}, ["ada", "eve@shop"]),
        ({"jwt0": [], "session": []}, "a2", {"session": "s1"}, ["ada", "ada@shop"]),
        ({"jwt0": [], "session": []}, "a2", {"jwt0": "a1"}, ["401", "session knows no a2"]),
        ({"jwt0": [], "session": []}, "bad", {"jwt0": "a1", "session": "s1"},
         ["401", "jwt0 knows no bad"]),
        ({"jwt0": [], "session": []}, "away", {"jwt0": "a1", "session": "s1"},
         ["503", "guard 'jwt0': away"]),
        ({"machines": []}, "bad", {"machines": "m1"}, ["sensor"]),
        ({"machines": []}, "m1", {}, ["401", "machines knows no None"]),
        ({"machines": [], "jwt0": []}, "a1", {"machines": "m1"}, ["sensor", "ada"]),
        ({"machines": [], "jwt0": []}, "bad", {"machines": "m1", "jwt0": "a1"},
         ["401", "jwt0 knows no bad"]),
    ],
)  # fmt: skip
async def test_a_told_token_is_taken_by_one_guard_at_least_and_the_others_have_what_came(
    guarded, told, headers, found
):
    assert await request_grant(build_route(**guarded), told, **headers) == found


async def test_what_the_connection_came_with_is_no_told_token():
    """The bearer of the connection is handed on by every caller; guards look where they look."""
    came = build_connection(("Authorization", "Bearer a1"), ("session", "s1"))
    found = await build_guards()(build_route(session=[]), {"customer": "7"}, came, "a1")
    assert found.identity == "ada@shop"


async def test_an_applications_own_access_is_asked_too():
    asked: list[Any] = []

    async def authorize_application(
        to: Any, params: Any, came: HTTPConnection, token: str | None
    ) -> Granted | None:
        asked.append((to, params, came, token))
        if token == "banned":
            raise RequestError(403, "Forbidden", "you are banned; ask us")
        return Granted([build_grant("app", "Ada of the app"), build_grant("jwt0", "not asked")])

    assert await request_grant(build_route(), None, authorize_application) == [
        "Ada of the app",
        "not asked",
    ]
    assert await request_grant(build_route(jwt0=[]), None, authorize_application, jwt0="a1") == [
        "ada",
        "Ada of the app",
    ]
    assert await request_grant(build_route(), "banned", authorize_application) == [
        "403",
        "you are banned",
    ]
    before = len(asked)
    assert (await request_grant(build_route(jwt0=[]), None, authorize_application, jwt0="bad"))[
        0
    ] == "401"
    assert len(asked) == before, "whom a guard keeps out, it is not bothered with"


async def test_only_guards_that_a_route_names_are_made():
    settings = Settings.model_validate(
        {
            "kafka": {"servers": ["a:1"], "topics": [{"name": "orders"}]},
            "guards": {
                "used": {"type": "http", "url": "http://127.0.0.1:9/"},
                "unused": {"type": "jwt", "keys": "http://127.0.0.1:9/"},
            },
            "routes": [
                {"when": [{"path": "/a"}], "guarded": {"used": []}, "with": {"topic": "orders"}}
            ],
        }
    )
    created: list[str] = []

    class RecordingGuards(Guards):
        def create_guard(self, name: str, settings: Settings) -> Guard:
            created.append(name)
            return super().create_guard(name, settings)

    made = RecordingGuards(settings, allow_anyone)
    assert created == ["used"]
    with pytest.raises(GuardUnavailable):
        await made(settings.routes[0], {}, build_connection(("Cookie", "a=b")), None)
    with pytest.raises(NotGranted):
        await made(settings.routes[0], {}, build_connection(), None)


async def test_keys_are_fetched_before_anybody_comes():
    requests: list[str] = []

    class RecordingKeySource(KeySource):
        async def get_current(self) -> KeySet:
            requests.append("keys")
            return await super().get_current()

    class JwtGuards(Guards):
        def create_guard(self, name: str, settings: Settings) -> Guard:
            section = Jwt.model_validate({"type": "jwt", "keys": "http://127.0.0.1:9/"})
            return JwtGuard(name, section, "orders", {"": RecordingKeySource(())})

    async with running_task(JwtGuards(build_settings(), allow_anyone).run()):
        await wait_until(lambda: requests, "the keys")


def test_a_guard_that_cannot_decide_is_not_ready():
    samples = MetricSamples()
    build_guards().collect_metrics(samples)
    ready = {("jwt0",): 1, ("session",): 0, ("machines",): 1}
    assert samples[catalog.GUARD_READY] == ready
