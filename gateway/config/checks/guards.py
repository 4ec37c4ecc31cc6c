"""Check that guards, the routes that name them, and the listening address agree.

The checks work on the values as written, as in `crosscheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.guards.guard_section import GuardSection
from gateway.config.guards.kinds import GUARD_KINDS
from gateway.config.source.substitution import UnresolvedText, suggest
from gateway.config.source.template import Placeholder
from gateway.config.types.address import is_loopback
from gateway.config.types.section import Problem, as_list, as_mapping, is_refused_mapping, is_true


def check_guards(raw: Mapping[str, Any]) -> Iterator[Problem]:
    listen = as_mapping(raw.get("listen"))
    for name, guard, kind in _iter_guards(raw):
        for problem in kind.check_listen(name, guard, listen):
            yield problem._replace(loc=("guards", name, *problem.loc))
        if _is_for_development(guard) and _is_open(listen.get("host", "127.0.0.1")):
            what = f"guard '{name}' is for development, and listen.host lets other machines in"
            hint = "use jwt or http, or add `exposed: true`"
            yield Problem(("guards", name), f"{what}; {hint}", is_key=True)


def _iter_guards(
    raw: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[Any, Any], type[GuardSection]]]:
    for name, written in as_mapping(raw.get("guards")).items():
        kind = GUARD_KINDS.find(as_mapping(written))
        if kind is not None:
            yield str(name), written, kind


def _is_for_development(guard: Mapping[Any, Any]) -> bool:
    """Return whether a guard must not be used where other machines can connect."""
    kind = GUARD_KINDS.find(guard)
    return kind is not None and kind.is_for_development and not is_true(guard.get("exposed"))


def _is_open(host: object) -> bool:
    is_known = isinstance(host, str) and not isinstance(host, UnresolvedText)
    return is_known and not is_loopback(str(host))


def check_admin(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of `admin`, which must not be open to everybody who reaches its port."""
    written = as_mapping(raw.get("admin"))
    names = [str(name) for name in as_mapping(written.get("guarded"))]
    for problem in check_guarded(raw, written):
        yield problem._replace(loc=("admin", *problem.loc))
    if not _is_open(written.get("host", "127.0.0.1")):
        return
    if not names:
        what = "lets other machines in, and nobody is asked who they are"
        yield Problem(("admin", "host"), f"{what}; add admin.guarded, or use 127.0.0.1")
    known = as_mapping(raw.get("guards"))
    for name in names:
        if _is_for_development(as_mapping(known.get(name))):
            what = f"guard '{name}' is for development, and admin.host lets other machines in"
            yield Problem(("admin", "guarded", name), f"{what}; use jwt or x509", is_key=True)


def check_guarded(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the guards and roles that a route requires and nobody has."""
    if is_refused_mapping(raw.get("guards")):
        return
    known = as_mapping(raw.get("guards"))
    for name, roles in as_mapping(route.get("guarded")).items():
        if name not in known:
            near = suggest(str(name), map(str, known), "add it to guards")
            yield Problem(("guarded", str(name)), f"unknown guard '{name}'; {near}", is_key=True)
        else:
            yield from _check_granted_roles(("guarded", str(name)), roles, as_mapping(known[name]))


def check_masked_fields(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the guards that fields require and the route does not have."""
    names = [str(name) for name in as_mapping(route.get("guarded"))]
    is_known = not is_refused_mapping(route.get("guarded"))
    for index, field in enumerate(as_list(as_mapping(route.get("with")).get("fields"))):
        for name in as_mapping(as_mapping(field).get("guarded")):
            if is_known and name not in names:
                near = suggest(str(name), names, "add it to guarded")
                what = f"this route is not guarded by '{name}'; {near}"
                yield Problem(("with", "fields", index, "guarded", str(name)), what, is_key=True)
    yield from _find_unmasked(as_list(as_mapping(route.get("with")).get("fields")))


def _find_unmasked(fields: list[Any]) -> Iterator[Problem]:
    """Find guarded fields that clients see anyway through another field.

    A client sees all fields that it may see. So the guards of a field have no effect if the same
    field, or one that contains it, is also listed with fewer requirements.
    """
    requirements = [(_pointer(field), _requirements(field)) for field in fields]
    for index, (pointer, wanted) in enumerate(requirements):
        if pointer is None or not wanted:
            continue
        for other, (other_pointer, other_wanted) in enumerate(requirements):
            if other == index or other_pointer is None or not other_wanted <= wanted:
                continue
            if (other_pointer, other_wanted) == (pointer, wanted):
                continue  # the same entry twice is harmless
            if pointer == other_pointer or pointer.startswith(f"{other_pointer}/"):
                audience = "to everybody" if not other_wanted else "to whoever is shown that one"
                what = f"'{pointer}' is shown {audience} by fields[{other}], '{other_pointer}'"
                hint = "list what stands beside it there instead, or guard that one, too"
                yield Problem(("with", "fields", index, "field"), f"{what}; {hint}")
                break


def _pointer(field: object) -> str | None:
    pointer = field if isinstance(field, str) else as_mapping(field).get("field")
    return pointer if isinstance(pointer, str) else None


def _requirements(field: object) -> frozenset[tuple[str, str]]:
    """Return the pairs of a guard and a required role; the role is empty for the guard itself."""
    guarded = as_mapping(as_mapping(field).get("guarded"))
    names = {(str(name), "") for name in guarded}
    return frozenset(names | {(str(n), str(role)) for n in guarded for role in as_list(guarded[n])})


def _check_granted_roles(
    loc: tuple[str, str], roles: object, guard: Mapping[Any, Any]
) -> Iterator[Problem]:
    """Yield the roles that none of the users has: they lock everybody out."""
    kind = GUARD_KINDS.find(guard)
    granted = None if kind is None else kind.list_roles(guard)
    if granted is None or any(isinstance(role, UnresolvedText) for role in granted):
        return
    for index, role in enumerate(as_list(roles)):
        if isinstance(role, str) and not isinstance(role, UnresolvedText) and role not in granted:
            near = suggest(
                role, {name for name in granted if isinstance(name, str)}, "add it to one"
            )
            yield Problem((*loc, index), f"no user of '{loc[1]}' has the role '{role}'; {near}")


def check_claim(
    raw: Mapping[str, Any], route: Mapping[str, Any], placeholder: Placeholder
) -> str | None:
    """Return why the guards of a route cannot fill a placeholder; None if they can."""
    if is_refused_mapping(route.get("guarded")):
        return None
    known, names = (
        as_mapping(raw.get("guards")),
        [str(name) for name in as_mapping(route.get("guarded"))],
    )
    if placeholder.name not in names:
        near = suggest(placeholder.name, names, "add it to guarded")
        return f"this route is not guarded by '{placeholder.name}'; {near}"
    if placeholder.detail and placeholder.name in known:
        guard = as_mapping(known[placeholder.name])
        attributes = list((GUARD_KINDS.find(guard) or GuardSection).list_attributes(guard))
        if placeholder.detail not in attributes:
            near = suggest(placeholder.detail, attributes, "add it to the guard's attributes")
            return f"guard '{placeholder.name}' has no attribute '{placeholder.detail}'; {near}"
    return None


def check_secret_query(
    raw: Mapping[str, Any], route: Mapping[str, Any], placeholder: Placeholder
) -> str | None:
    """Return a problem if a query parameter holds credentials; None if it does not."""
    for name in as_mapping(route.get("guarded")):
        guard = as_mapping(as_mapping(raw.get("guards")).get(name))
        kind = GUARD_KINDS.find(guard)
        if kind is not None and placeholder.name in kind.list_parameters(guard):
            return f"?{placeholder.name}= holds the credentials of guard '{name}'; use another name"
    return None
