"""What must agree between guards, the routes that name them, and where clients come in.

Works on the values as written, as `crosscheck`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from gateway.config.source.expression import nearest
from gateway.config.source.substitution import Unsettled
from gateway.config.source.template import Hole
from gateway.config.types.section import Problem


def guards(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What the guards need of `listen`."""
    listen = _map(raw.get("listen"))
    for name, written in _map(raw.get("guards")).items():
        guard = _map(written)
        if guard.get("type") == "x509":
            yield from _x509(str(name), guard, listen)
        elif guard.get("type") == "inline" and not _yes(guard.get("exposed")):
            yield from _inline(str(name), listen.get("host", "127.0.0.1"))


def _x509(name: str, guard: Mapping[Any, Any], listen: Mapping[Any, Any]) -> Iterator[Problem]:
    if not _yes(guard.get("forwarded")):
        if _map(listen.get("tls")).get("trust") is None:
            what = f"guard '{name}' sees no certificate: clients are not asked for any"
            yield Problem(("guards", name), f"{what}; add listen.tls.trust", key=True)
    elif not isinstance(listen.get("forwarded"), (list, tuple, str)):
        what = "anybody could send the certificate of another"
        way = ("guards", name, "forwarded")
        yield Problem(way, f"{what}; list the proxies in listen.forwarded", key=True)


def _inline(name: str, host: object) -> Iterator[Problem]:
    if isinstance(host, str) and not isinstance(host, Unsettled) and not is_loopback(host):
        what = f"guard '{name}' is for development, and listen.host lets other machines in"
        hint = "use jwt or http, or add `exposed: true`"
        yield Problem(("guards", name), f"{what}; {hint}", key=True)


def admin(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Who may list and end streams: never whoever reaches the port."""
    written = _map(raw.get("admin"))
    names = [str(name) for name in _map(written.get("guarded"))]
    for problem in guarded(raw, written):
        yield problem._replace(way=("admin", *problem.way))
    host = written.get("host", "127.0.0.1")
    if not isinstance(host, str) or isinstance(host, Unsettled) or is_loopback(host):
        return
    if not names:
        what = "lets other machines in, and nobody is asked who they are"
        yield Problem(("admin", "host"), f"{what}; add admin.guarded, or use 127.0.0.1")
    known = _map(raw.get("guards"))
    for name in names:
        guard = _map(known.get(name))
        if guard.get("type") == "inline" and not _yes(guard.get("exposed")):
            what = f"guard '{name}' is for development, and admin.host lets other machines in"
            yield Problem(("admin", "guarded", name), f"{what}; use jwt or x509", key=True)


def is_loopback(host: str | None) -> bool:
    """A name or address of this machine only."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def guarded(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """What a route asks of its guards."""
    known = _map(raw.get("guards"))
    for name, roles in _map(route.get("guarded")).items():
        if name not in known:
            near = nearest(str(name), map(str, known), "add it to guards")
            yield Problem(("guarded", str(name)), f"unknown guard '{name}'; {near}", key=True)
        elif _map(known[name]).get("type") == "inline":
            yield from _granted(("guarded", str(name)), roles, _map(known[name]))


def masked(raw: Mapping[str, Any], route: Mapping[str, Any]) -> Iterator[Problem]:
    """What fields ask of guards that the route does not have."""
    names = [str(name) for name in _map(route.get("guarded"))]
    for index, each in enumerate(_list(_map(route.get("with")).get("fields"))):
        for name in _map(_map(each).get("guarded")):
            if name not in names:
                near = nearest(str(name), names, "add it to guarded")
                what = f"this route is not guarded by '{name}'; {near}"
                yield Problem(("with", "fields", index, "guarded", str(name)), what, key=True)
    yield from _find_unmasked(_list(_map(route.get("with")).get("fields")))


def _find_unmasked(fields: list[Any]) -> Iterator[Problem]:
    """Find fields for some only that everybody is shown all the same who is shown another one: the
    same field, or one that it is a part of, with no more asked for. A client is shown all fields
    that it may see, so what is asked for the smaller one would never count."""
    asked = [(_pointer(each), _requirements(each)) for each in fields]
    for index, (pointer, wanted) in enumerate(asked):
        if pointer is None or not wanted:
            continue
        for other, (above, less) in enumerate(asked):
            if other == index or above is None or not less <= wanted:
                continue
            if (above, less) == (pointer, wanted):
                continue  # the same, twice
            if pointer == above or pointer.startswith(f"{above}/"):
                whom = "to everybody" if not less else "to whoever is shown that one"
                what = f"'{pointer}' is shown {whom} by fields[{other}], '{above}'"
                hint = "list what stands beside it there instead, or guard that one, too"
                yield Problem(("with", "fields", index, "field"), f"{what}; {hint}")
                break


def _pointer(field: object) -> str | None:
    pointer = field if isinstance(field, str) else _map(field).get("field")
    return pointer if isinstance(pointer, str) else None


def _requirements(field: object) -> frozenset[tuple[str, str]]:
    """The guards that a client must have been granted something by, and each of the roles."""
    guarded = _map(_map(field).get("guarded"))
    names = {(str(name), "") for name in guarded}
    return frozenset(names | {(str(n), str(role)) for n in guarded for role in _list(guarded[n])})


def _granted(way: tuple[str, str], roles: object, guard: Mapping[Any, Any]) -> Iterator[Problem]:
    """A role that none of the users has keeps everybody out."""
    users = [_map(user) for user in _map(guard.get("users")).values()]
    there = [role for user in users for role in _list(user.get("roles"))]
    if any(isinstance(role, Unsettled) for role in there):
        return
    for index, role in enumerate(_list(roles)):
        if isinstance(role, str) and not isinstance(role, Unsettled) and role not in there:
            near = nearest(role, {each for each in there if isinstance(each, str)}, "add it to one")
            yield Problem((*way, index), f"no user of '{way[1]}' has the role '{role}'; {near}")


def claim(raw: Mapping[str, Any], route: Mapping[str, Any], hole: Hole) -> str | None:
    """What a hole asks of a guard that the route cannot give; None if it can."""
    known, names = _map(raw.get("guards")), [str(name) for name in _map(route.get("guarded"))]
    if hole.name not in names:
        near = nearest(hole.name, names, "add it to guarded")
        return f"this route is not guarded by '{hole.name}'; {near}"
    if hole.detail and hole.name in known:
        attributes = _attributes(_map(known[hole.name]))
        if hole.detail not in attributes:
            near = nearest(hole.detail, attributes, "add it to the guard's attributes")
            return f"guard '{hole.name}' has no attribute '{hole.detail}'; {near}"
    return None


def secret_query(raw: Mapping[str, Any], route: Mapping[str, Any], hole: Hole) -> str | None:
    """What is wrong with a parameter of the query that holds credentials."""
    for name in _map(route.get("guarded")):
        guard = _map(_map(raw.get("guards")).get(name))
        asked = _map(_map(guard.get("credentials")).get("query"))
        shown = _list(_map(guard.get("forward")).get("query"))
        if hole.name in asked or hole.name in shown:
            return f"?{hole.name}= holds the credentials of guard '{name}'; use another name"
    return None


def _attributes(guard: Mapping[Any, Any]) -> list[str]:
    """The names of what a guard says of a client, however its kind writes them."""
    if guard.get("type") == "inline":
        users = [_map(user) for user in _map(guard.get("users")).values()]
        return [str(name) for user in users for name in _map(user.get("attributes"))]
    written = guard.get("attributes")
    return [str(name) for name in (written if isinstance(written, (Mapping, list, tuple)) else ())]


def _yes(flag: object) -> bool:
    return flag is True or flag == "true"


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
