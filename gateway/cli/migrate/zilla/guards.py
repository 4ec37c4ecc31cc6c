"""Convert guards, and the places of their credentials."""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue

from .bindings import BindingGraph

_CERTIFICATE_FIELDS = {
    "subject.cn": "CN", "subject.o": "O", "subject.ou": "OU", "subject.c": "C", "subject.l": "L",
    "subject.st": "ST", "subject.dc": "DC", "subject.uid": "UID", "san.dns": "dns",
    "san.email": "email", "san.uri": "uri",
}  # fmt: skip
_UNUSED = "no route is guarded by it"


def convert_guards(
    root: SourceValue, draft: Draft, graph: BindingGraph, names: Collection[str]
) -> None:
    """Convert the guards of routes. Guards for Kafka are converted with the clusters."""
    for name, guard in root.get("guards").items():
        if name not in names:
            guard.omit(_UNUSED)
        elif guard.get("type").text == "jwt":
            _convert_jwt(name, guard, draft)
        elif guard.get("type").text == "x509":
            _convert_x509(name, guard, draft)
        elif guard.get("type").text == "inline":
            guard.omit(
                "one user with a fixed secret is no protection of a port that others reach; "
                "guards of type jwt, http or x509 are. Its routes are left out"
            )
        else:
            guard.omit(
                f"there is no guard of type {guard.get('type').text}; use jwt, http or x509. Its "
                "routes are left out"
            )
    for http in graph.list_used("http", "server"):
        for name, authorization in http.options.get("authorization").items():
            _convert_credentials(name, authorization, draft)


def omit_vaults(root: SourceValue) -> None:
    for _, vault in root.get("vaults").items():
        vault.omit(
            "the gateway reads PEM files; convert a store by openssl pkcs12 -in STORE.p12 -nodes "
            "-out FILE.pem (keytool -importkeystore makes a .p12 of a .jks)"
        )


def _convert_jwt(name: str, guard: SourceValue, draft: Draft) -> None:
    section = ("guards", name)
    options = guard.get("options")
    draft.comment(section, f"from guard {name}")
    draft.carry(guard.get("type"), *section, "type")
    for option in ("issuer", "audience", "roles", "identity", "attributes"):
        draft.carry(options.get(option), *section, option)
    keys = options.get("keys")
    if isinstance(keys.value, list):
        draft.set((*section, "keys"), [_convert_key(key, draft) for key in keys])
        keys.carry(*section, "keys", is_same=True)
    else:
        draft.carry(keys, *section, "keys")
    challenge = options.get("challenge")
    draft.carry(challenge, *section, "challenge", value=f"{challenge.text}s")


def _convert_key(key: SourceValue, draft: Draft) -> dict[str, str]:
    """Return a JWK with its numbers in base64url, as RFC 7518 has them, and without its secret."""
    members = {member: value.text for member, value in key.items()}
    for member in ("n", "e", "x", "y", "k"):
        if member in members and not members[member].startswith("${"):
            members[member] = members[member].translate(str.maketrans("+/", "-_")).rstrip("=")
    if "k" in members and not members["k"].startswith("${"):
        members["k"] = draft.need_variable("TOKEN_KEY", "the shared secret of tokens, in base64url")
    return members


def _convert_x509(name: str, guard: SourceValue, draft: Draft) -> None:
    section = ("guards", name)
    options = guard.get("options")
    draft.comment(section, f"from guard {name}")
    draft.carry(guard.get("type"), *section, "type")
    identity = options.get("identity")
    field = _CERTIFICATE_FIELDS.get(identity.text)
    if field is not None:
        draft.carry(identity, *section, "identity", value=field)
    identity.omit("has no counterpart; the identity is the common name (CN)", section)
    for attribute, value in options.get("attributes").items():
        field = _CERTIFICATE_FIELDS.get(value.text)
        if field is not None:
            draft.carry(value, *section, "attributes", attribute, value=field)
        value.omit("the gateway does not read this field of a certificate", section)
    options.get("roles").omit(
        "roles are the values of one field of the certificate (roles: OU), and not rules; set it, "
        "and name these values in `guarded` of routes",
        section,
    )


def _convert_credentials(name: str, authorization: SourceValue, draft: Draft) -> None:
    guard = draft.get(("guards", name))
    if guard is None:
        authorization.omit(f"no route is guarded by '{name}', or its guard is not carried over")
        return
    section = ("guards", name, "credentials")
    for place in ("headers", "cookies", "query"):
        for key, form in authorization.get("credentials", place).items():
            if draft.get((*section, place, key)) is None:
                draft.set(
                    (*section, place, key),
                    re.sub(r"\{\s*credentials\s*\}", "{credentials}", form.text),
                )
            form.carry(*section, place, key)
