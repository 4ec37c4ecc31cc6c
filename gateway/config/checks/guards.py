"""Check what must agree between guards, the routes that name them, and the listening address.

The checks work on the values as written, as in `crosscheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from gateway.config.source.expression import suggest
from gateway.config.source.substitution import UnresolvedText
from gateway.config.source.template import Placeholder
from gateway.config.types.section import Problem


def check_guards(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems between the guards and `listen`."""
    listen = _as_mapping(raw.get("listen"))
    for name, written in _as_mapping(raw.get("guards")).items():
        guard = _as_mapping(written)
        if guard.get("type") == "x509":
            yield from _check_x509(str(name), guard, listen)
        elif guard.get("type") == "inline" and not _is_true(guard.get("exposed")):
            yield from _check_inline(str(name), listen.get("host", "127.0.0.1"))


def _check_x509(
    name: str, guard: Mapping[Any, Any], listen: Mapping[Any, Any]
) -> Iterator[Problem]:
    if not _is_true(guard.get("forwarded")):
        if _as_mapping(listen.get("tls")).get("trust") is None:
            what = f"guard '{name}' sees no certificate: clients are not asked for any"
            yield Problem(("guards", name), f"{what}; add listen.tls.trust", is_key=True)
    elif not isinstance(listen.get("forwarded"), (list, tuple, str)):
        what = "anybody could send the certificate of another"
        loc = ("guards", name, "forwarded")
        yield Problem(loc, f"{what}; list the proxies in listen.forwarded", is_key=True)


def _check_inline(name: str, host: object) -> Iterator[Problem]:
    if isinstance(host, str) and not isinstance(host, UnresolvedText) and not is_loopback(host):
        what = f"guard '{name}' is for development, and listen.host lets other machines in"
        hint = "use jwt or http, or add `exposed: true`"
        yield Problem(("guards", name), f"{what}; {hint}", is_key=True)


def check_admin(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of `admin`, which must not be open to everybody who reaches its port."""
    written = _as_mapping(raw.get("admin"))
    names = [str(name) for name in _as_mapping(written.get("guarded"))]
    for problem in check_guarded(raw, written):
        yield problem._replace(loc=("admin", *problem.loc))
    host = written.get("host", "127.0.0.1")
    if not isinstance(host, str) or isinstance(host, UnresolvedText) or is_loopback(host):
        return
    if not names:
        what = "lets other machines in, and nobody is asked who they are"
        yield Problem(("admin", "host"), f"{what}; add admin.guarded, or use 127.0.0.1")
    known = _as_mapping(raw.get("guards"))
    for name in names:
        guard = _as_mapping(known.get(name))
        if guard.get("type") == "inline" and not _is_true(guard.get("exposed")):
            what = f"guard '{name}' is for development, and admin.host lets other machines in"
            yield Problem(("admin", "guarded", name), f"{what}; use jwt or x509", is_key=True)


def is_loopback(host: str | None) -> bool:
    """Return whether a name or an address is of this machine only."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def check_guarded(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the guards and roles that a route requires and nobody has."""
    known = _as_mapping(raw.get("guards"))
    for name, roles in _as_mapping(route.get("guarded")).items():
        if name not in known:
            near = suggest(str(name), map(str, known), "add it to guards")
            yield Problem(("guarded", str(name)), f"unknown guard '{name}'; {near}", is_key=True)
        elif _as_mapping(known[name]).get("type") == "inline":
            yield from _check_granted_roles(("guarded", str(name)), roles, _as_mapping(known[name]))


def check_masked_fields(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the guards that fields require and the route does not have."""
    names = [str(name) for name in _as_mapping(route.get("guarded"))]
    for index, field in enumerate(_as_list(_as_mapping(route.get("with")).get("fields"))):
        for name in _as_mapping(_as_mapping(field).get("guarded")):
            if name not in names:
                near = suggest(str(name), names, "add it to guarded")
                what = f"this route is not guarded by '{name}'; {near}"
                yield Problem(("with", "fields", index, "guarded", str(name)), what, is_key=True)
    yield from _find_unmasked(_as_list(_as_mapping(route.get("with")).get("fields")))


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
    pointer = field if isinstance(field, str) else _as_mapping(field).get("field")
    return pointer if isinstance(pointer, str) else None


def _requirements(field: object) -> frozenset[tuple[str, str]]:
    """Return the guards that must have granted something, and each required role.

    A pair of a guard and an empty role stands for the guard itself.
    """
    guarded = _as_mapping(_as_mapping(field).get("guarded"))
    names = {(str(name), "") for name in guarded}
    return frozenset(
        names | {(str(n), str(role)) for n in guarded for role in _as_list(guarded[n])}
    )


def _check_granted_roles(
    loc: tuple[str, str], roles: object, guard: Mapping[Any, Any]
) -> Iterator[Problem]:
    """Yield the roles that none of the users has: they lock everybody out."""
    users = [_as_mapping(user) for user in _as_mapping(guard.get("users")).values()]
    granted = [role for user in users for role in _as_list(user.get("roles"))]
    if any(isinstance(role, UnresolvedText) for role in granted):
        return
    for index, role in enumerate(_as_list(roles)):
        if isinstance(role, str) and not isinstance(role, UnresolvedText) and role not in granted:
            near = suggest(
                role, {name for name in granted if isinstance(name, str)}, "add it to one"
            )
            yield Problem((*loc, index), f"no user of '{loc[1]}' has the role '{role}'; {near}")


def check_claim(
    raw: Mapping[str, Any], route: Mapping[str, Any], placeholder: Placeholder
) -> str | None:
    """Return why the guards of a route cannot fill a placeholder; None if they can."""
    known, names = (
        _as_mapping(raw.get("guards")),
        [str(name) for name in _as_mapping(route.get("guarded"))],
    )
    if placeholder.name not in names:
        near = suggest(placeholder.name, names, "add it to guarded")
        return f"this route is not guarded by '{placeholder.name}'; {near}"
    if placeholder.detail and placeholder.name in known:
        attributes = _list_attributes(_as_mapping(known[placeholder.name]))
        if placeholder.detail not in attributes:
            near = suggest(placeholder.detail, attributes, "add it to the guard's attributes")
            return f"guard '{placeholder.name}' has no attribute '{placeholder.detail}'; {near}"
    return None


def check_secret_query(
    raw: Mapping[str, Any], route: Mapping[str, Any], placeholder: Placeholder
) -> str | None:
    """Return what is wrong if a query parameter holds credentials; None if it does not."""
    for name in _as_mapping(route.get("guarded")):
        guard = _as_mapping(_as_mapping(raw.get("guards")).get(name))
        credential_names = _as_mapping(_as_mapping(guard.get("credentials")).get("query"))
        forwarded_names = _as_list(_as_mapping(guard.get("forward")).get("query"))
        if placeholder.name in credential_names or placeholder.name in forwarded_names:
            return f"?{placeholder.name}= holds the credentials of guard '{name}'; use another name"
    return None


def _list_attributes(guard: Mapping[Any, Any]) -> list[str]:
    """Return the names of the attributes that a guard knows, whatever its kind."""
    if guard.get("type") == "inline":
        users = [_as_mapping(user) for user in _as_mapping(guard.get("users")).values()]
        return [str(name) for user in users for name in _as_mapping(user.get("attributes"))]
    written = guard.get("attributes")
    return [str(name) for name in (written if isinstance(written, (Mapping, list, tuple)) else ())]


def _is_true(flag: object) -> bool:
    return flag is True or flag == "true"


def _as_mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
