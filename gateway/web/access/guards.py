"""The configured guards, and who an application that mounts the gateway says may come in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from gateway import config as configured
from gateway.config import Http, Inline, Jwt, Route, Settings
from gateway.errors import NotGranted
from gateway.telemetry.redaction import add_secret_names

from .credentials import get_bearer_token
from .external_http import ExternalHttp
from .grant import NO_GRANTS, Grant, Granted
from .guard import AccessRequest, Guard
from .inline import InlineGuard
from .jwks import KeySource, RemoteKeySource, StaticKeySource

if TYPE_CHECKING:
    from gateway.web.access import Access


class Guards:
    """An `Access`: all guards that a route names must know the client, and grant it the roles
    that the route names; then the application's own is asked, too.

    own: the application's own.
    """

    def __init__(self, settings: Settings, application_access: Access) -> None:
        self._application_access = application_access
        self._external_http = ExternalHttp()
        self._remote_key_sources: dict[str, RemoteKeySource] = {}
        self._guards: dict[str, Guard] = {}
        self._settings: Mapping[str, configured.Guard] = {}
        self._admin_route: Route | None = None
        self.apply_settings(settings)

    def apply_settings(self, settings: Settings) -> frozenset[str]:
        """Go by these settings from now on; the guards that are others, or gone, by their names.
        Those that are the same keep what they know, such as an issuer's keys."""
        before, self._settings = self._settings, settings.guards
        for guard in settings.guards.values():
            add_secret_names(_list_secret_parameters(guard))
        changed = frozenset(
            name for name, guard in before.items() if settings.guards.get(name) != guard
        )
        for name in changed:
            self._guards.pop(name, None)
            self._remote_key_sources.pop(name, None)
        asked = [route.guarded for route in settings.routes]
        self._admin_route = None if settings.admin is None else settings.admin.route
        if self._admin_route is not None:
            asked.append(self._admin_route.guarded)
        if settings.sidecar is not None:
            asked.append(settings.sidecar.guarded)
        for name in sorted({name for guarded in asked for name in guarded}):
            if name not in self._guards:
                self._guards[name] = self._create_guard(name, settings)
        return changed

    async def __call__(
        self,
        route: Route,
        params: Mapping[str, str],
        connection: HTTPConnection,
        token: str | None,
    ) -> Granted:
        granted = NO_GRANTS
        if route.guarded:
            told = None if token == get_bearer_token(connection) else token
            granted = await self._grant_all(AccessRequest(route, params, connection, told))
        own = await self._application_access(route, params, connection, token)
        return granted | own if own else granted

    @property
    def has_operator_guards(self) -> bool:
        """Whether operators have to say who they are."""
        return self._admin_route is not None and bool(self._admin_route.guarded)

    async def admit_operator(self, connection: HTTPConnection) -> Granted:
        """Who asks for what `admin` may do. Raises NotGranted and GuardUnavailable."""
        if self._admin_route is None or not self.has_operator_guards:
            return NO_GRANTS
        return await self._grant_all(AccessRequest(self._admin_route, {}, connection))

    async def run(self) -> None:
        """Fetch keys before anybody needs them; close what was opened when it is cancelled."""
        try:
            first = [fetched.get_current() for fetched in self._remote_key_sources.values()]
            await asyncio.gather(*first, return_exceptions=True)
            await asyncio.Event().wait()
        finally:
            await self._external_http.close()

    async def _grant_all(self, request: AccessRequest) -> Granted:
        """A token that was told (`token`) is for the guards that take it, and the others have
        what the connection came with; but one of them has to take it."""
        guards = [self._guards[name] for name in request.route.guarded]
        several = sum([guard.is_renewable for guard in guards]) > 1
        refused: NotGranted | None = None
        taken = request.token is None or not any([guard.is_renewable for guard in guards])
        grants = []
        for guard, roles in zip(guards, request.route.guarded.values(), strict=True):
            try:
                grants.append(await _grant_with_roles(guard, roles, request))
                taken = taken or guard.is_renewable
            except NotGranted as exc:
                if request.token is None or not (several and guard.is_renewable):
                    raise
                refused = refused or exc
                grants.append(await self._grant_without_token(guard, roles, request, refused))
        if not taken and refused is not None:
            raise refused
        return Granted(grants)

    async def _grant_without_token(
        self, guard: Guard, roles: Sequence[str], request: AccessRequest, original_error: NotGranted
    ) -> Grant:
        """What a guard says that does not take the token that was told."""
        try:
            return await _grant_with_roles(guard, roles, replace(request, token=None))
        except NotGranted:
            raise original_error from None

    def _create_guard(self, name: str, settings: Settings) -> Guard:
        """Imported when they are needed: cryptography takes a tenth of a second."""
        made, realm = settings.guards[name], settings.name
        if isinstance(made, Jwt):
            from .jwt import JwtGuard

            return JwtGuard(name, made, realm, self._create_key_source(name, made))
        if isinstance(made, Http):
            from .http import HttpGuard

            return HttpGuard(name, made, realm, self._external_http)
        if isinstance(made, Inline):
            return InlineGuard(name, made, realm)
        from .x509 import X509Guard

        return X509Guard(name, made, realm)

    def _create_key_source(self, name: str, guard: Jwt) -> KeySource:
        if not isinstance(guard.keys, str):
            return StaticKeySource(guard.keys)
        fetched = RemoteKeySource(name, guard.keys, guard.jwks, self._external_http)
        self._remote_key_sources[name] = fetched
        return fetched


def _list_secret_parameters(guard: configured.Guard) -> Iterable[str]:
    """The parameters of a query that hold its credentials."""
    if isinstance(guard, Http):
        return guard.forward.query
    return guard.credentials.query if isinstance(guard, (Jwt, Inline)) else ()


async def _grant_with_roles(guard: Guard, roles: Sequence[str], request: AccessRequest) -> Grant:
    grant = await guard.grant(request)
    lacking = [role for role in roles if role not in grant.roles]
    if lacking:
        raise guard.errors.build_missing_roles(lacking)
    return grant
