"""Guards that read tokens which an issuer signed (RFC 7519)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gateway.config.types.fields import Duration, Flag, Text, in_range
from gateway.config.types.section import Problem, Section, create_section_error
from gateway.config.types.units import format_duration

from .credentials import BEARER_CREDENTIALS, Credentials
from .jwk import SHARED_SECRET_ALGORITHMS, Algorithm, Keys

ChallengeDuration = Annotated[Duration, in_range(0, 86_400)]


class Jwks(Section):
    """How the keys of a URL are kept."""

    refresh: Annotated[Duration, in_range(0.1, 86_400)] = Field(
        default=600.0, description="How old they get before they are fetched anew. For rotation."
    )
    cooldown: Annotated[Duration, in_range(0.1, 3600)] = Field(
        default=10.0,
        description="How soon a token with an unknown key has them fetched again. For rotation.",
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=5.0, description="How long fetching may take. For operators of slow issuers."
    )
    max_age: Annotated[Duration, in_range(1, 30 * 86_400)] = Field(
        default=86_400.0,
        description="How long they serve while the issuer is away. For operators.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_age < self.refresh:
            least = format_duration(self.refresh)
            way = ("maxAge",) if "max_age" in self.model_fields_set else ("refresh",)
            raise create_section_error(
                Problem(way, f"maxAge is less than refresh, {least}; use {least} or more")
            )
        return self


class Jwt(Section):
    type: Literal["jwt"] = Field(description="The kind of guard. For access control.")
    issuer: Text | None = Field(default=None, description="Required `iss`. For access control.")
    audience: Text | None = Field(default=None, description="Required `aud`. For access control.")
    keys: Keys = Field(description="Keys, or the URL of a JWKS. For access control.")
    jwks: Jwks = Field(default=Jwks(), description="How keys of a URL are kept. For operators.")
    algorithms: tuple[Algorithm, ...] = Field(
        default=(),
        description="Signatures that are taken; default all that a key is good for, and of a URL "
        "none with a shared secret. For access control.",
    )
    leeway: Annotated[Duration, in_range(0, 300)] = Field(
        default=0.0,
        description="How wrong the issuer's clock may be, for `exp` and `nbf`. For operators.",
    )
    require_expiry: Flag = Field(
        default=False,
        description="Refuse tokens without `exp`. For access control.",
    )
    max_lifetime: Annotated[Duration, in_range(1, 10 * 365 * 86_400)] = Field(
        default=86_400.0,
        description="How long a token without `exp` is good, from its `iat` on; one without `iat` "
        "from each connect on. For access control.",
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS,
        description="From where a token is taken. For clients without headers.",
    )
    roles: Text = Field(
        default="scope",
        description="The claim with the roles, a list or a text with spaces; dots lead into it. "
        "For `guarded` of routes.",
    )
    challenge: ChallengeDuration = Field(
        default=30.0,
        description="How long before expiry a new token is asked for. For long streams.",
    )
    identity: Text = Field(
        default="sub", description="The claim that names the client. For templates."
    )
    attributes: dict[Text, Text] = Field(
        default={}, description="Names for further claims. For templates."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("algorithms") in ([], ()):
            yield Problem(("algorithms",), "is empty; list at least one, or leave it out")
        if raw.get("requireExpiry") in (True, "true") and "maxLifetime" in raw:
            what = "'maxLifetime' is for tokens without `exp`, which requireExpiry refuses"
            yield Problem(("maxLifetime",), f"{what}; remove it", is_key=True)

    @model_validator(mode="after")
    def _check_agreement(self) -> Self:
        problems = list(self._iter_disagreements())
        if problems:
            raise create_section_error(*problems)
        return self

    def _iter_disagreements(self) -> Iterable[Problem]:
        listed = self.keys if not isinstance(self.keys, str) else None
        if listed is not None and self.jwks != Jwks():
            yield Problem(("jwks",), "is for keys of a URL; remove it", is_key=True)
        for index, algorithm in enumerate(self.algorithms):
            way = ("algorithms", index)
            if listed is None and algorithm in SHARED_SECRET_ALGORITHMS:
                what = f"{algorithm} is a shared secret, which no URL gives to everybody"
                yield Problem(way, f"{what}; list the key, or use another")
            elif listed is not None and not any(algorithm in key.algorithms for key in listed):
                yield Problem(way, f"no key of this guard is good for {algorithm}; remove it")
