"""Define the guard `inline`, which knows the users that the file lists, for development."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.config.source.substitution import safe_repr
from gateway.config.types.fields import Flag, SecretText, Text, validate_text
from gateway.config.types.section import Problem, Section, create_value_error

from .credentials import BEARER_CREDENTIALS, Credentials
from .guard_section import GuardSection


class User(Section):
    """A user of an inline guard: with a password, a token or both."""

    password: SecretText | None = Field(
        default=None, description="Password of Basic authentication. For browsers."
    )
    token: SecretText | None = Field(
        default=None, description="A bearer token. For programs and streams."
    )
    roles: tuple[Text, ...] = Field(
        default=(), description="The user's roles. For `guarded` of routes."
    )
    attributes: dict[Text, Text] = Field(
        default={}, description="The user's attributes, by name. For templates."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "password" not in raw and "token" not in raw:
            yield Problem((), "has neither password nor token; add one", is_key=True)


def _validate_user_name(value: object) -> str:
    name = validate_text(value)
    if ":" in name:
        raise create_value_error(
            f"{safe_repr(value)} is no name of a user; leave out ':' (RFC 7617 2)"
        )
    return name


class Inline(GuardSection):
    """A guard that knows the users that this file lists, for development.

    It is refused where other machines can connect, unless it is `exposed`.
    """

    type: Literal["inline"] = Field(description="The kind of guard. For development.")
    users: dict[Annotated[Text, BeforeValidator(_validate_user_name)], User] = Field(
        description="Users by name; the name is the identity. For development.",
        json_schema_extra={"minProperties": 1},
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS,
        description="Where in a request the token is. For pages, which cannot set headers on "
        "streams.",
    )
    exposed: Flag = Field(
        default=False,
        description="Allow this guard even if other machines can connect. For containers of "
        "developers.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("users") in ({}, [], ()):
            yield Problem(("users",), "is empty; add one")

    @property
    def is_for_development(self) -> bool:
        return not self.exposed

    @property
    def secret_parameters(self) -> Iterable[str]:
        return self.credentials.query

    @property
    def credential_headers(self) -> Iterable[str]:
        return self.credentials.headers

    @property
    def attribute_names(self) -> Iterable[str]:
        return [name for user in self.users.values() for name in user.attributes]

    @property
    def granted_roles(self) -> Collection[str] | None:
        return {role for user in self.users.values() for role in user.roles}
