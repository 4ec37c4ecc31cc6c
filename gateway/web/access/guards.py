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
from gateway.telemetry.redact import hide

from .credentials import bearer
from .elsewhere import Elsewhere
from .grant import NOBODY, Grant, Granted
from .guard import Asked, Guard
from .inline import InlineGuard
from .jwks import Fetched, Keys, Listed

if TYPE_CHECKING:
    from gateway.web.access import Access


class Guards:
    """An `Access`: all guards that a route names must know the client, and grant it the roles
    that the route names; then the application's own is asked, too.

    own: the application's own.
    """

    def __init__(self, settings: Settings, own: Access) -> None:
        self._own = own
        self._elsewhere = Elsewhere()
        self._fetched: dict[str, Fetched] = {}
        self._guards: dict[str, Guard] = {}
        self._settings: Mapping[str, configured.Guard] = {}
        self._admin: Route | None = None
        self.adopt(settings)

    def adopt(self, settings: Settings) -> frozenset[str]:
        """Go by these settings from now on; the guards that are others, or gone, by their names.
        Those that are the same keep what they know, such as an issuer's keys."""
        before, self._settings = self._settings, settings.guards
        for guard in settings.guards.values():
            hide(_secret(guard))
        changed = frozenset(
            name for name, guard in before.items() if settings.guards.get(name) != guard
        )
        for name in changed:
            self._guards.pop(name, None)
            self._fetched.pop(name, None)
        asked = [route.guarded for route in settings.routes]
        self._admin = None if settings.admin is None else settings.admin.route
        if self._admin is not None:
            asked.append(self._admin.guarded)
        if settings.sidecar is not None:
            asked.append(settings.sidecar.guarded)
        for name in sorted({name for guarded in asked for name in guarded}):
            if name not in self._guards:
                self._guards[name] = self._made(name, settings)
        return changed

    async def __call__(
        self,
        route: Route,
        params: Mapping[str, str],
        connection: HTTPConnection,
        token: str | None,
    ) -> Granted:
        granted = NOBODY
        if route.guarded:
            told = None if token == bearer(connection) else token
            granted = await self._granted(Asked(route, params, connection, told))
        own = await self._own(route, params, connection, token)
        return granted | own if own else granted

    @property
    def ask_operators(self) -> bool:
        """Whether operators have to say who they are."""
        return self._admin is not None and bool(self._admin.guarded)

    async def operator(self, connection: HTTPConnection) -> Granted:
        """Who asks for what `admin` may do. Raises NotGranted and GuardUnavailable."""
        if self._admin is None or not self.ask_operators:
            return NOBODY
        return await self._granted(Asked(self._admin, {}, connection))

    async def run(self) -> None:
        """Fetch keys before anybody needs them; close what was opened when it is cancelled."""
        try:
            first = [fetched.current() for fetched in self._fetched.values()]
            await asyncio.gather(*first, return_exceptions=True)
            await asyncio.Event().wait()
        finally:
            await self._elsewhere.close()

    async def _granted(self, asked: Asked) -> Granted:
        """A token that was told (`token`) is for the guards that take it, and the others have
        what the connection came with; but one of them has to take it."""
        guards = [self._guards[name] for name in asked.route.guarded]
        several = sum([guard.renewable for guard in guards]) > 1
        refused: NotGranted | None = None
        taken = asked.token is None or not any([guard.renewable for guard in guards])
        grants = []
        for guard, roles in zip(guards, asked.route.guarded.values(), strict=True):
            try:
                grants.append(await _grant(guard, roles, asked))
                taken = taken or guard.renewable
            except NotGranted as exc:
                if asked.token is None or not (several and guard.renewable):
                    raise
                refused = refused or exc
                grants.append(await self._without(guard, roles, asked, refused))
        if not taken and refused is not None:
            raise refused
        return Granted(grants)

    async def _without(
        self, guard: Guard, roles: Sequence[str], asked: Asked, refused: NotGranted
    ) -> Grant:
        """What a guard says that does not take the token that was told."""
        try:
            return await _grant(guard, roles, replace(asked, token=None))
        except NotGranted:
            raise refused from None

    def _made(self, name: str, settings: Settings) -> Guard:
        """Imported when they are needed: cryptography takes a tenth of a second."""
        made, realm = settings.guards[name], settings.name
        if isinstance(made, Jwt):
            from .jwt import JwtGuard

            return JwtGuard(name, made, realm, self._keys(name, made))
        if isinstance(made, Http):
            from .http import HttpGuard

            return HttpGuard(name, made, realm, self._elsewhere)
        if isinstance(made, Inline):
            return InlineGuard(name, made, realm)
        from .x509 import X509Guard

        return X509Guard(name, made, realm)

    def _keys(self, name: str, guard: Jwt) -> Keys:
        if not isinstance(guard.keys, str):
            return Listed(guard.keys)
        fetched = Fetched(name, guard.keys, guard.jwks, self._elsewhere)
        self._fetched[name] = fetched
        return fetched


def _secret(guard: configured.Guard) -> Iterable[str]:
    """The parameters of a query that hold its credentials."""
    if isinstance(guard, Http):
        return guard.forward.query
    return guard.credentials.query if isinstance(guard, (Jwt, Inline)) else ()


async def _grant(guard: Guard, roles: Sequence[str], asked: Asked) -> Grant:
    grant = await guard.grant(asked)
    lacking = [role for role in roles if role not in grant.roles]
    if lacking:
        raise guard.refusals.lacking(lacking)
    return grant
