"""Define the section `tokens`: when the resume token of a client is trusted."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.config.types.fields import Duration, Secret, SecretText, in_range
from gateway.config.types.section import Section, create_value_error

MIN_SECRET_CHARS = 32  # characters: 192 bits in base64


def _validate_secrets(value: object) -> object:
    """Return several secrets for one or a list.

    The length of a single one is checked here, so that its problem is reported at `secret` and not
    at `secret[0]`, which the file does not have.
    """
    if isinstance(value, str):
        _refuse_short_secret(value)
    return (value,) if isinstance(value, str | Secret) else value


def _validate_secret(secret: Secret) -> Secret:
    _refuse_short_secret(secret.get_secret_value())
    return secret


def _refuse_short_secret(secret: str) -> None:
    if len(secret) < MIN_SECRET_CHARS:
        raise create_value_error(
            f"has fewer than {MIN_SECRET_CHARS} characters, which can be guessed; use the output "
            "of `openssl rand -base64 32`"
        )


def _require_non_empty(secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
    if not secrets:
        raise create_value_error("is empty; add at least one secret, or leave it out")
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
    """When resume tokens, the ids of events, are trusted."""

    secret: Secrets | None = Field(
        default=None,
        description="Secret that signs resume tokens, so that clients cannot forge them: a text of "
        "at least 32 characters, or a list, of which the first signs and all are accepted. All "
        "replicas need the same. For public gateways.",
    )
    resume: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=3600.0,
        description="How much longer than the `history` of a route a client may have been away and "
        "still resume, if no secret proves its position. For public routes.",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets in plain text; the first one signs."""
        return tuple(secret.get_secret_value() for secret in self.secret or ())
