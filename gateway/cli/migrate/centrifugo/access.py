"""Convert tokens and the connect proxy to guards, and allowed origins to CORS.

A route that needed a token there has a guard here. If the source says nothing of whom it lets in,
variables say it, so that nothing is open that was not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import settle
from gateway.config.types.section import Loc

LOGIN, SUBSCRIPTION = "login", "subscription"
_HOW_TO_ENCODE = (
    "in base64url: printf %s \"$SECRET\" | openssl base64 -A | tr '+/' '-_' | tr -d '='"
)
_KEY_NAMES = (
    "hmac_secret_key",
    "hmac_previous_secret_key",
    "rsa_public_key",
    "ecdsa_public_key",
    "jwks_public_endpoint",
)
_TOKEN_REASONS = {
    "hmac_previous_secret_key_valid_until": "remove the previous key from the guard then",
    "insecure_skip_jwks_endpoint_safety_check": "keys of a URL are always fetched from that URL",
    "insecure_skip_token_signature_verify": "signatures are always verified",
}
_ORIGINS: Loc = ("listen", "access-control")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect.

    Attributes:
        guard: The guard of users; None if anybody may connect without one.
        has_anonymous: Whether clients without a token may connect.
        is_insecure: Whether everybody may read everything, as in development.
        subscription_guard: The guard that reads the channel from a token; None without tokens.
    """

    guard: str | None
    has_anonymous: bool
    subscription_guard: str | None
    is_insecure: bool = False


def convert_access(client: SourceValue, draft: Draft) -> Access:
    """Convert the tokens, the connect proxy and the origins of clients."""
    _convert_origins(client.get("allowed_origins"), draft)
    anonymous = client.get("allow_anonymous_connect_without_token")
    has_anonymous = anonymous.value is True
    insecure = client.get("insecure")
    token = client.get("token")
    connect = client.get("proxy", "connect")
    has_tokens = any(token.get(name).text for name in _KEY_NAMES)
    subscription_guard = None
    if has_tokens:
        _convert_token(token, LOGIN, draft)
        subscription_guard = SUBSCRIPTION
        own_token = client.get("subscription_token")
        is_own = own_token.get("enabled").value is True
        _convert_token(own_token if is_own else token, SUBSCRIPTION, draft)
        draft.set(("guards", SUBSCRIPTION, "attributes"), {"channel": "channel"})
        draft.comment(("guards", SUBSCRIPTION), "tokens for one channel, which their claim names")
        own_token.get("enabled").carry("guards", SUBSCRIPTION)
        own_token.omit("is not enabled")
    elif connect.get("endpoint").text:
        _convert_connect_proxy(connect, draft)
    elif insecure.value is True:
        insecure.imply("routes have no guard; anybody may connect")
        return Access(None, True, None, is_insecure=True)
    elif not has_anonymous:
        _require_issuer(draft)
    token.omit("the guard `login` says who may connect")
    connect.omit("tokens say who a client is; a guard of type http would ask the application")
    client.get("proxy", "refresh").omit("clients are asked for a new token before theirs expires")
    insecure.omit("guards are always asked; remove `guarded` of routes that are for everybody")
    has_guard = draft.get(("guards", LOGIN)) is not None
    anonymous.imply("is what `guarded` of routes says")
    return Access(LOGIN if has_guard else None, has_anonymous, subscription_guard)


def _convert_origins(source: SourceValue, draft: Draft) -> None:
    origins: list[str] = []
    for origin in source:
        if "*" in origin.text and origin.text != "*":
            origin.omit("origins have no patterns here; list each in listen.access-control")
        elif origin.text:
            origins.append(origin.text)
            draft.set((*_ORIGINS, "policy"), "cross-origin")
            draft.set((*_ORIGINS, "allow"), {"origins": list(origins)})
            origin.carry(*_ORIGINS, "allow", "origins", len(origins) - 1)
    source.imply("pages of other origins may not connect")


def _convert_token(token: SourceValue, name: str, draft: Draft) -> None:
    section = ("guards", name)
    draft.set((*section, "type"), "jwt")
    draft.comment(section, "from client.token" if name == LOGIN else "from the same tokens")
    draft.carry(token.get("issuer"), *section, "issuer")
    draft.carry(token.get("audience"), *section, "audience")
    for option in ("issuer", "audience"):
        pattern = token.get(f"{option}_regex")
        if pattern.text:
            variable = f"TOKEN_{option.upper()}"
            claim = "iss" if option == "issuer" else "aud"
            reference = draft.need_variable(variable, f"the `{claim}` that tokens must have")
            draft.set((*section, option), reference)
            pattern.omit(f"there are no patterns of `{claim}`; {variable} is the only one", section)
        pattern.imply("is off, as here")
    _convert_keys(token, section, draft)
    draft.carry(token.get("user_id_claim"), *section, "identity")
    settle(token, _TOKEN_REASONS)


def _convert_keys(token: SourceValue, section: Loc, draft: Draft) -> None:
    target = (*section, "keys")
    url = token.get("jwks_public_endpoint")
    if url.text:
        draft.carry(url, *target)
        for name in _KEY_NAMES[:-1]:
            token.get(name).omit(
                "a guard has either a URL of keys or a list of keys; use the URL's for all tokens",
                section,
            )
        return
    keys: list[dict[str, Any]] = []
    prefix = "TOKEN" if section[-1] == LOGIN else "SUBSCRIPTION"
    for name, variable in (
        ("hmac_secret_key", f"{prefix}_KEY"),
        ("hmac_previous_secret_key", f"{prefix}_PREVIOUS_KEY"),
    ):
        secret = token.get(name)
        if secret.text:
            path = f"client.token.{name}" if prefix == "TOKEN" else f"subscription_token.{name}"
            is_shared = section[-1] == SUBSCRIPTION and draft.get(
                ("guards", LOGIN, "keys", len(keys))
            )
            shared = is_shared.get("k") if is_shared and secret.loc[1:2] == ("token",) else None
            reference = shared or draft.need_variable(variable, f"{path}, {_HOW_TO_ENCODE}")
            keys.append({"kty": "oct", "k": reference})
            secret.carry(*target, len(keys) - 1)
    for name in ("rsa_public_key", "ecdsa_public_key"):
        key = token.get(name)
        if key.text:
            jwk = _convert_public_key(key.text)
            if jwk is None:
                key.omit("is no public key in PEM", section)
            else:
                keys.append(jwk)
                key.carry(*target, len(keys) - 1)
    if keys:
        draft.set(target, keys)


def _convert_public_key(pem: str) -> dict[str, Any] | None:
    """Return a public key as a JWK; None if it is none."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm
    from jwt.exceptions import PyJWTError

    try:
        key = load_pem_public_key(pem.encode())
        if isinstance(key, RSAPublicKey):
            written = RSAAlgorithm.to_jwk(key)
        elif isinstance(key, EllipticCurvePublicKey):
            written = ECAlgorithm.to_jwk(key)
        else:
            return None
    except (ValueError, TypeError, PyJWTError):
        return None
    jwk = json.loads(written)
    return {member: jwk[member] for member in ("kty", "crv", "n", "e", "x", "y") if member in jwk}


def _convert_connect_proxy(connect: SourceValue, draft: Draft) -> None:
    section = ("guards", LOGIN)
    draft.set((*section, "type"), "http")
    draft.carry(connect.get("endpoint"), *section, "url")
    draft.comment(
        section,
        "The application is asked by GET, with the client's cookies and Authorization, and answers "
        '200 with {"identity": ...}, or 401. Centrifugo\'s POST and its answer are others.',
    )
    connect.get("enabled").carry(*section)
    connect.omit("the guard sends the headers that its option `forward` lists", section)


def _require_issuer(draft: Draft) -> None:
    """Let variables say who may connect, where the source lets nobody in by itself."""
    section = ("guards", LOGIN)
    issuer = draft.need_variable("LOGIN_ISSUER", "the issuer of tokens, with OIDC discovery")
    audience = draft.need_variable("LOGIN_AUDIENCE", "the audience of tokens")
    draft.set(section, {"type": "jwt", "issuer": issuer, "audience": audience})
    draft.comment(section, "The source has no keys of tokens: say who may connect.")
