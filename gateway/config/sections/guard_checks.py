"""Check that guards, the routes that name them, and the listening address agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.config.capabilities.options import Shown
from gateway.config.types.address import is_loopback
from gateway.config.types.section import Loc, Problem, nest
from gateway.config.types.substitution import suggest
from gateway.config.types.template import Placeholder

from .guard_section import GuardSection
from .route import Route

if TYPE_CHECKING:
    from .settings import Settings


def check_guards(settings: Settings) -> Iterator[Problem]:
    listen = settings.listen
    for name, guard in settings.guards.items():
        loc: Loc = ("guards", name)
        needs = ((*loc, "forwarded"), ("listen", "tls"), ("listen", "forwarded"))
        yield from nest(loc, guard.check_listen(name, listen), needs)
        if guard.is_for_development and not is_loopback(listen.host):
            what = f"guard '{name}' is for development, and listen.host lets other machines in"
            hint = "use jwt or http, or add `exposed: true`"
            yield Problem(loc, f"{what}; {hint}", is_key=True, needs=((*loc, "exposed"),))


def check_admin(settings: Settings) -> Iterator[Problem]:
    """Yield the problems of `admin`, which must not be open to everybody who reaches its port."""
    admin = settings.admin
    if admin is None:
        return
    yield from nest(("admin",), check_guarded(settings, admin.guarded))
    for name in admin.records or ():
        if name not in admin.guarded:
            near = suggest(name, admin.guarded, "add it to admin.guarded")
            what = f"operators are not asked by '{name}'; {near}"
            needs = (("admin", "guarded", name),)
            yield Problem(("admin", "records", name), what, is_key=True, needs=needs)
    if is_loopback(admin.host):
        return
    if not admin.guarded:
        what = "lets other machines in, and nobody is asked who they are"
        hint = "add admin.guarded, or use 127.0.0.1"
        yield Problem(("admin", "host"), f"{what}; {hint}", needs=(("admin", "guarded"),))
    for name in admin.guarded:
        guard = settings.guards.get(name)
        if guard is not None and guard.is_for_development:
            what = f"guard '{name}' is for development, and admin.host lets other machines in"
            needs = (("guards", name, "exposed"),)
            loc = ("admin", "guarded", name)
            yield Problem(loc, f"{what}; use jwt or x509", is_key=True, needs=needs)


def check_guarded(settings: Settings, guarded: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Yield the guards and roles that a route requires and nobody has."""
    for name, roles in guarded.items():
        guard = settings.guards.get(name)
        if guard is None:
            near = suggest(name, settings.guards, "add it to guards")
            what = f"unknown guard '{name}'; {near}"
            yield Problem(("guarded", name), what, is_key=True, needs=(("guards", name),))
            continue
        granted = guard.granted_roles
        for index, role in enumerate(roles):
            if granted is not None and role not in granted:
                near = suggest(role, granted, "add it to one")
                what = f"no user of '{name}' has the role '{role}'; {near}"
                yield Problem(("guarded", name, index), what, needs=(("guards", name, "users"),))


def check_route_guards(settings: Settings, route: Route, loc: Loc) -> Iterator[Problem]:
    if "guarded" in route.model_fields_set and not route.guarded:
        what = "is empty, so everybody may use this route"
        yield Problem(("guarded",), f"{what}; name a guard, or remove it")
    yield from check_guarded(settings, route.guarded)
    for index, field in enumerate(route.with_.fields):
        for name in field.guarded if isinstance(field, Shown) else ():
            if name not in route.guarded:
                near = suggest(name, route.guarded, "add it to guarded")
                what = f"this route is not guarded by '{name}'; {near}"
                place = ("with", "fields", index, "guarded", name)
                yield Problem(place, what, is_key=True, needs=((*loc, "guarded", name),))
    unmasked = _find_unmasked(route.with_.fields, (*loc, "with", "fields"))
    yield from nest(("with", "fields"), unmasked)


def _find_unmasked(fields: Sequence[str | Shown], loc: Loc) -> Iterator[Problem]:
    """Find guarded fields that clients see anyway through another field.

    A client sees all fields that it may see. So the guards of a field have no effect if the same
    field, or one that contains it, is also listed with fewer requirements.
    """
    requirements = [
        (field, frozenset())
        if isinstance(field, str)
        else (field.field, frozenset(_iter_requirements(field)))
        for field in fields
    ]
    for index, (pointer, wanted) in enumerate(requirements):
        for number, (other_pointer, other_wanted) in enumerate(requirements):
            if not wanted or not other_wanted <= wanted:
                continue
            if (other_pointer, other_wanted) == (pointer, wanted):
                continue  # itself, or the same entry twice, which is harmless
            if pointer == other_pointer or pointer.startswith(f"{other_pointer}/"):
                audience = "to everybody" if not other_wanted else "to whoever is shown that one"
                what = f"'{pointer}' is shown {audience} by fields[{number}], '{other_pointer}'"
                hint = "list what stands beside it there instead, or guard that one, too"
                needs = ((*loc, index), (*loc, number))
                yield Problem((index, "field"), f"{what}; {hint}", needs=needs, named=needs[1])
                break


def _iter_requirements(field: Shown) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a guard and a required role; the role is empty for the guard itself."""
    for name, roles in field.guarded.items():
        yield from ((name, role) for role in ("", *roles))


def find_claim_problem(settings: Settings, route: Route, placeholder: Placeholder) -> str | None:
    """Return why the guards of a route do not let a placeholder be filled; None if they do."""
    name, attribute = placeholder.name, placeholder.detail
    guards = {each: settings.guards.get(each, GuardSection()) for each in route.guarded}
    if placeholder.root == "query":
        for each, guard in guards.items():
            if name in guard.secret_parameters:
                return f"?{name}= holds the credentials of guard '{each}'; use another name"
    elif placeholder.root == "guarded":
        if name not in guards:
            near = suggest(name, guards, "add it to guarded")
            return f"this route is not guarded by '{name}'; {near}"
        attributes = guards[name].attribute_names
        if attribute and name in settings.guards and attribute not in attributes:
            near = suggest(attribute, attributes, "add it to the guard's attributes")
            return f"guard '{name}' has no attribute '{attribute}'; {near}"
    return None
