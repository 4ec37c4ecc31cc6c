"""Combine the configured guards with the access check of an application that mounts the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from gateway.config import X509, GuardSection, Http, Inline, Jwt, Route, Settings
from gateway.errors import NotGranted
from gateway.telemetry import catalog
from gateway.telemetry.logs import LogRateLimit, add_secret_names
from gateway.telemetry.samples import MetricSamples

from .external_http import ExternalHttp
from .grant import NO_GRANTS, Grant, Granted, get_bearer_token
from .guard import AccessRequest, Guard, GuardContext

if TYPE_CHECKING:
    from gateway.web.access import Access

log = logging.getLogger(__name__)
log.addFilter(LogRateLimit())


class Guards:
    """All guards of the configuration; an `Access`.

    A client is admitted if all guards that a route names know it and grant the roles that the route
    names, and if the application's own check admits it. Created by `create_app`, one per process.
    Between calls, there is a guard for every name that a route, the sidecar or the admin API uses.
    """

    def __init__(self, settings: Settings, application_access: Access) -> None:
        self._application_access = application_access
        self._external_http = ExternalHttp()
        self._guards: dict[str, Guard[Any]] = {}
        self._settings: Mapping[str, GuardSection] = {}
        self._admin_route: Route | None = None
        self.apply_settings(settings)

    def apply_settings(self, settings: Settings) -> frozenset[str]:
        """Use these settings from now on; return the guards whose clients must be admitted again.

        Guards that are the same keep their state, such as an issuer's keys. See
        `find_changed_guards`.
        """
        old_settings, self._settings = self._settings, settings.guards
        for guard in settings.guards.values():
            add_secret_names(guard.secret_parameters)
        for name, section in old_settings.items():
            if settings.guards.get(name) != section:
                self._guards.pop(name, None)
        guarded_sections = [route.guarded for route in settings.routes]
        self._admin_route = None if settings.admin is None else settings.admin.route
        if self._admin_route is not None:
            guarded_sections.append(self._admin_route.guarded)
        if settings.sidecar is not None:
            guarded_sections.append(settings.sidecar.guarded)
        for name in sorted({name for guarded in guarded_sections for name in guarded}):
            if name not in self._guards:
                self._guards[name] = self.create_guard(name, settings)
        return find_changed_guards(old_settings, settings.guards)

    def check_settings(self, settings: Settings) -> None:
        """Raise a `GatewayError` if a guard of other settings cannot be created."""
        Guards(settings, self._application_access)

    async def __call__(
        self, route: Route, params: Mapping[str, str], connection: HTTPConnection, token: str | None
    ) -> Granted:
        granted = NO_GRANTS
        if route.guarded:
            # The token of the connection is in the connection: guards find it where they are
            # configured to look. Only a token of a message is passed on.
            message_token = None if token == get_bearer_token(connection) else token
            request = AccessRequest(route, params, connection, message_token)
            granted = await self._grant_all(request)
        application_granted = await self._application_access(route, params, connection, token)
        return granted | application_granted if application_granted else granted

    @property
    def has_operator_guards(self) -> bool:
        return self._admin_route is not None and bool(self._admin_route.guarded)

    async def admit_operator(self, connection: HTTPConnection) -> Granted:
        """Return what the guards of `admin` know of an operator; raises as `Guard.grant`."""
        if self._admin_route is None or not self.has_operator_guards:
            return NO_GRANTS
        return await self._grant_all(AccessRequest(self._admin_route, {}, connection))

    def list_problems(self) -> list[str]:
        problems = ((name, guard.find_problem()) for name, guard in self._guards.items())
        return [f"guard {name}: {problem}" for name, problem in problems if problem is not None]

    def collect_metrics(self, samples: MetricSamples) -> None:
        for name, guard in self._guards.items():
            samples.add(catalog.GUARD_READY, guard.find_problem() is None, name)

    async def run(self) -> None:
        """Prepare all guards for clients, and close all connections when cancelled."""
        try:
            preparations = [guard.prepare() for guard in self._guards.values()]
            await asyncio.gather(*preparations, return_exceptions=True)
            await asyncio.Event().wait()
        finally:
            await self._external_http.close()

    async def _grant_all(self, request: AccessRequest) -> Granted:
        try:
            return await self._ask_all(request)
        except NotGranted as exc:
            client = request.connection.client
            address = client.host if client else "a client"
            log.info("%s is refused on %s: %s", address, request.route.path, exc)
            raise

    async def _ask_all(self, request: AccessRequest) -> Granted:
        """Return what all guards of the route know of the client.

        The token of a message is for the guards that accept it, of which at least one must; the
        others use the credentials of the connection.
        """
        guards = [self._guards[name] for name in request.route.guarded]
        has_several_renewable = sum([guard.is_renewable for guard in guards]) > 1
        first_error: NotGranted | None = None
        is_token_accepted = request.token is None or not any(
            [guard.is_renewable for guard in guards]
        )
        grants = []
        for guard, roles in zip(guards, request.route.guarded.values(), strict=True):
            try:
                grants.append(await _grant_with_roles(guard, roles, request))
                is_token_accepted = is_token_accepted or guard.is_renewable
            except NotGranted as exc:
                # With one guard that takes tokens, the token can only be meant for that one.
                if request.token is None or not (has_several_renewable and guard.is_renewable):
                    raise
                first_error = first_error or exc
                grants.append(await self._grant_without_token(guard, roles, request, first_error))
        if not is_token_accepted and first_error is not None:
            raise first_error
        return Granted(grants)

    async def _grant_without_token(
        self,
        guard: Guard[Any],
        roles: Sequence[str],
        request: AccessRequest,
        original_error: NotGranted,
    ) -> Grant:
        """Return the grant by the connection's credentials, or raise the error of the token."""
        try:
            return await _grant_with_roles(guard, roles, replace(request, token=None))
        except NotGranted:
            raise original_error from None

    def create_guard(self, name: str, settings: Settings) -> Guard[Any]:
        section = settings.guards[name]
        context = GuardContext(name, settings.name, self._external_http)
        return get_guard_class(section).create(section, context)


async def _grant_with_roles(
    guard: Guard[Any], roles: Sequence[str], request: AccessRequest
) -> Grant:
    grant = await guard.grant(request)
    missing_roles = [role for role in roles if role not in grant.roles]
    if missing_roles:
        raise guard.errors.build_missing_roles(missing_roles, grant.problems.get(""))
    return grant


def find_changed_guards(
    before: Mapping[str, GuardSection], after: Mapping[str, GuardSection]
) -> frozenset[str]:
    """Return the names of the guards that may refuse clients after a reload, or know less of them.

    A guard that only admits more, such as a `jwt` with one more key, is not among them.
    """
    return frozenset(
        name
        for name, guard in before.items()
        if name not in after or not after[name].admits_all_of(guard)
    )


# A module is imported when its kind is used: cryptography takes a tenth of a second.
def _load_jwt() -> type[Guard[Any]]:
    from gateway.web.access.jwt import JwtGuard

    return JwtGuard


def _load_http() -> type[Guard[Any]]:
    from gateway.web.access.http import HttpGuard

    return HttpGuard


def _load_x509() -> type[Guard[Any]]:
    from gateway.web.access.x509 import X509Guard

    return X509Guard


def _load_inline() -> type[Guard[Any]]:
    from gateway.web.access.inline import InlineGuard

    return InlineGuard


GUARD_LOADERS: dict[type[GuardSection], Callable[[], type[Guard[Any]]]] = {
    Jwt: _load_jwt,
    Http: _load_http,
    X509: _load_x509,
    Inline: _load_inline,
}
"""Functions that import the class of a kind of guard and return it, by its section."""


def get_guard_class(section: GuardSection) -> type[Guard[Any]]:
    return GUARD_LOADERS[type(section)]()
