"""What resume tokens are trusted by."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.config.types.fields import Duration, Secret, SecretText, in_range
from gateway.config.types.section import Section, create_value_error

MIN_SECRET_CHARS = 32


def _validate_secrets(value: object) -> object:
    """One text, which may be too short, or several."""
    if isinstance(value, str):
        _refuse_short_secret(value)
    return (value,) if isinstance(value, str | Secret) else value


def _validate_secret(secret: Secret) -> Secret:
    _refuse_short_secret(secret.get_secret_value())
    return secret


def _refuse_short_secret(secret: str) -> None:
    if len(secret) < MIN_SECRET_CHARS:
        raise create_value_error(
            f"has fewer than {MIN_SECRET_CHARS} characters, which somebody may guess; take such "
            "as `openssl rand -base64 32` makes"
        )


def _require_non_empty(secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
    if not secrets:
        raise create_value_error("is empty; give it one secret at least, or leave it out")
    return secrets


_SECRET_SCHEMA = {"type": "string", "minLength": MIN_SECRET_CHARS, "writeOnly": True}
Secrets: TypeAlias = Annotated[
    tuple[Annotated[SecretText, AfterValidator(_validate_secret)], ...],
    BeforeValidator(_validate_secrets),
    AfterValidator(_require_non_empty),
    WithJsonSchema(
        {"anyOf": [_SECRET_SCHEMA, {"type": "array", "items": _SECRET_SCHEMA, "minItems": 1}]}
    ),
]


class Tokens(Section):
    """Resume tokens: the ids of events, and positions."""

    secret: Secrets | None = Field(
        default=None,
        description="Signs them, so that nobody can make one up: a text, or a list of which the "
        "first signs and all are believed. The same at all replicas. For public gateways.",
    )
    resume: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=3600.0,
        description="How long a client may have been away where `history` is limited, on top of "
        "it, if no secret proves where it stood. For public routes.",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """As they are; the first one signs."""
        return tuple(each.get_secret_value() for each in self.secret or ())
