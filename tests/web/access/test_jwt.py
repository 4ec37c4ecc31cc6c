from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from support.access_requests import build_access_request, build_bearer_connection, build_connection
from support.issuer import (
    AUDIENCE,
    ISSUER_NAME,
    SHARED_SECRET,
    TokenIssuer,
    build_jwk,
    get_private_key,
    get_rsa_key,
)

from gateway.config import Jwk, Jwt
from gateway.errors import NotGranted
from gateway.web.access.grant import MAX_EXPIRES_S, Grant
from gateway.web.access.jwks import KeySet, KeySource, KeysUnavailable
from gateway.web.access.jwt import JwtGuard

ISSUER = TokenIssuer()
PAST, FUTURE = 1_000_000_000, time.time() + 100_000


def build_guard(
    keys: list[dict[str, Any]] | None = None,
    kind: type[JwtGuard] = JwtGuard,
    key_source: KeySource | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> JwtGuard:
    given = {"issuer": ISSUER_NAME, "audience": AUDIENCE, **options}
    settings = Jwt.model_validate({"type": "jwt", "keys": keys or ISSUER.jwks, **given})
    assert isinstance(settings.keys, tuple)
    source = key_source or KeySource(KeySet(settings.keys))
    return kind("jwt0", settings, "orders", {"": source}, clock=clock)


async def request_grant(token: str, jwt_guard: JwtGuard | None = None) -> Grant:
    return await (jwt_guard or build_guard()).grant(
        build_access_request(build_bearer_connection(token))
    )


async def get_refusal(token: str, made: JwtGuard | None = None) -> str:
    """What a refused client is told; it never is what it sent."""
    with pytest.raises(NotGranted) as refused:
        await request_grant(token, made)
    challenge = refused.value.challenge or ""
    assert refused.value.status == 401 and 'error="invalid_token"' in challenge
    said = f"{challenge} {refused.value}"
    assert not any(len(part) > 8 and part in said for part in token.split("."))
    return challenge.partition('error_description="')[2].rstrip('"')


def encode_part(part: Any) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def build_unsigned_token(**header: Any) -> str:
    claims = {"iss": ISSUER_NAME, "aud": AUDIENCE, "sub": "ada", "exp": FUTURE}
    return f"{encode_part({'typ': 'JWT', **header})}.{encode_part(claims)}."


def build_confused_token() -> str:
    """Signed by HS256 with the public key, which everybody has, as the secret (CVE-2015-9235)."""
    public = get_rsa_key().public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, claims, _ = build_unsigned_token(alg="HS256", kid="k0").split(".")
    signature = hmac.new(pem, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    return f"{head}.{claims}.{encode_part(signature)}"


def build_tampered_token(token: str) -> str:
    head, _, signature = token.split(".")
    claims = {"iss": ISSUER_NAME, "aud": AUDIENCE, "sub": "eve", "exp": FUTURE}
    return f"{head}.{encode_part(claims)}.{signature}"


WRONG = {
    "the token is expired": [
        ISSUER.issue_token(exp=PAST),
        ISSUER.issue_token(exp=int(time.time()) - 1),
    ],
    "the token is not valid yet": [ISSUER.issue_token(nbf=FUTURE)],
    "the token is for another audience": [
        ISSUER.issue_token(aud="shop"),
        ISSUER.issue_token(aud=["shop", "gatewayx"]),
    ],
    "the token has no claim aud": [ISSUER.issue_token(aud=None)],
    "the token is of another issuer": [
        ISSUER.issue_token(iss="https://evil.example"),
        ISSUER.issue_token(iss=ISSUER_NAME + "/"),
    ],
    "the token has no claim iss": [ISSUER.issue_token(iss=None)],
    "the signature of the token is wrong": [
        ISSUER.issue_token(key=get_rsa_key(1)),
        build_tampered_token(ISSUER.issue_token()),
        ISSUER.issue_token() + "AA",
        ISSUER.issue_token() + "abc",  # which is no base64url
        ISSUER.issue_token()[:-1] + "B",  # nor is this one: its last four bits are not 0
    ],
    "no key of the issuer signs such a token": [
        build_unsigned_token(alg="none"),
        build_unsigned_token(alg="none", kid="k0"),
        build_unsigned_token(alg="None"),
        build_unsigned_token(alg="nOnE"),
        build_unsigned_token(alg=""),
        build_confused_token(),
        ISSUER.issue_token(headers={"kid": "k9"}),
        ISSUER.issue_token(headers={"kid": "../../dev/null"}),
        TokenIssuer("ES256").issue_token(),
        TokenIssuer("HS256").issue_token(),
        TokenIssuer("EdDSA").issue_token(),
    ],
    "the token needs extensions that are unknown here": [
        build_unsigned_token(alg="RS256", kid="k0", crit=["b64"], b64=True)
    ],
    "the token is no JWT": [
        "x",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        ".".join("abcde"),
        "\u00e9.\u00e9.\u00e9",
        f"{encode_part([1])}.{encode_part({})}.",
        f"{encode_part(b'{')}.{encode_part({})}.",
        f"{encode_part({'alg': ['RS256']})}.{encode_part({})}.",
        f"{encode_part({'alg': None})}.{encode_part({})}.",
        f"{encode_part({'alg': 'RS256', 'kid': 7})}.{encode_part({})}.",
        f"{encode_part(b'[' * 9999)}.{encode_part({})}.",
        "a" * 20_000 + ".b.c",
        f"{encode_part({})}.{encode_part([1])}.",
        ISSUER.issue_token(headers={"crit": ["exp"], "exp": PAST}),
        ISSUER.issue_token(headers={"crit": []}),
        ISSUER.issue_token(exp="soon"),
        ISSUER.issue_token(exp=10**400),
        ISSUER.issue_token(nbf="now"),
    ],
    "the token names nobody": [
        ISSUER.issue_token(sub=None),
        ISSUER.issue_token(sub=""),
        ISSUER.issue_token(sub=["ada"]),
        ISSUER.issue_token(sub={"a": 1}),
        ISSUER.issue_token(sub="\ud800"),
    ],
}


@pytest.mark.parametrize(
    ("said", "token"), [(said, token) for said, tokens in WRONG.items() for token in tokens]
)
async def test_a_token_that_is_not_good_lets_nobody_in_and_says_why(said: str, token: str):
    assert await get_refusal(token) == said


async def test_who_brings_no_token_is_told_so_without_an_error():
    """RFC 6750 3.1."""
    with pytest.raises(NotGranted) as refused:
        await build_guard().grant(build_access_request(build_connection()))
    assert refused.value.challenge == 'Bearer realm="orders"'
    assert "Authorization: Bearer TOKEN" in str(refused.value)


async def test_of_two_tokens_in_one_place_none_is_taken():
    twice = build_connection(*[("Authorization", f"Bearer {ISSUER.issue_token()}")] * 2)
    with pytest.raises(NotGranted) as refused:
        await build_guard().grant(build_access_request(twice))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "algorithm",
    ["RS256", "RS384", "RS512", "PS256", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256"],
)
async def test_every_algorithm_is_taken_of_a_key_that_is_good_for_it(algorithm: str):
    issuer = TokenIssuer(algorithm)
    assert (await request_grant(issuer.issue_token(), build_guard(issuer.jwks))).identity == "ada"


async def test_a_key_that_is_bound_to_one_algorithm_is_used_for_no_other():
    bound = build_guard([build_jwk(get_rsa_key(), "k0", alg="RS512")])
    assert (await request_grant(ISSUER.issue_token(algorithm="RS512"), bound)).identity == "ada"
    assert (
        await get_refusal(ISSUER.issue_token(), bound) == "no key of the issuer signs such a token"
    )


async def test_a_guard_may_take_fewer_algorithms_than_its_keys():
    narrow = build_guard(algorithms=["PS256"])
    assert (await request_grant(ISSUER.issue_token(algorithm="PS256"), narrow)).identity == "ada"
    assert (
        await get_refusal(ISSUER.issue_token(), narrow)
        == "the algorithm of the token is not accepted"
    )


async def test_a_key_for_encryption_signs_nothing():
    for_both = build_guard(
        [build_jwk(get_rsa_key(), "k0", use="enc"), build_jwk(get_rsa_key(1), "k1")]
    )
    assert (
        await get_refusal(ISSUER.issue_token(), for_both)
        == "no key of the issuer signs such a token"
    )


async def test_a_key_in_the_token_itself_is_not_looked_at():
    evil = get_rsa_key(1)
    for header in ({"jwk": build_jwk(evil)}, {"jku": "http://evil.example"}, {"x5c": ["AAAA"]}):
        token = ISSUER.issue_token(key=evil, headers=header)
        assert await get_refusal(token) == "the signature of the token is wrong"


async def test_without_a_key_id_every_key_is_tried():
    several = build_guard(
        [
            build_jwk(get_rsa_key(1), "k1"),
            build_jwk(get_rsa_key(), "k0"),
            build_jwk(get_private_key("ES256"), "e"),
        ]
    )
    token = ISSUER.issue_token(headers={"kid": None})
    assert (await request_grant(token, several)).identity == "ada"
    bad = ISSUER.issue_token(headers={"kid": None}, key=get_rsa_key(2))
    assert await get_refusal(bad, several) == "the signature of the token is wrong"
    late = ISSUER.issue_token(headers={"kid": None}, exp=PAST)
    assert await get_refusal(late, several) == "the token is expired"


async def test_a_key_without_an_id_is_tried_for_every_token():
    assert (
        await request_grant(ISSUER.issue_token(), build_guard([build_jwk(get_rsa_key())]))
    ).identity == "ada"


@pytest.mark.parametrize(("options", "claims"), [
    ({"audience": []}, {"aud": None}), ({"audience": []}, {"aud": "shop"}),
    ({"issuer": []}, {"iss": None}), ({"issuer": []}, {"iss": "https://b"}),
    ({}, {"aud": ["shop", AUDIENCE]}), ({}, {"nbf": PAST}), ({}, {"iat": FUTURE}),
    ({}, {"jti": 7}),
])  # fmt: skip
async def test_what_is_not_asked_for_is_not_looked_at(options: Any, claims: Any):
    assert (
        await request_grant(ISSUER.issue_token(**claims), build_guard(**options))
    ).identity == "ada"


@pytest.mark.parametrize("claims", [{}, {"iss": "https://b"}, {"aud": "mobile"}, {"aud": "web"}])
async def test_one_of_several_issuers_and_audiences_is_enough(claims: Any):
    made = build_guard(issuer=[ISSUER_NAME, "https://b"], audience=[AUDIENCE, "web", "mobile"])
    assert (await request_grant(ISSUER.issue_token(**claims), made)).identity == "ada"
    other = {name: f"{value}x" for name, value in claims.items()} or {"iss": "https://c"}
    assert "another" in await get_refusal(ISSUER.issue_token(**other), made)


async def test_the_keys_of_an_issuer_verify_its_own_tokens_only():
    other = TokenIssuer("ES256")
    settings = Jwt.model_validate({"type": "jwt", "issuer": [ISSUER_NAME, "https://b"]})
    sources = {
        name: KeySource(KeySet([Jwk.model_validate(jwk) for jwk in issuer.jwks]))
        for name, issuer in {ISSUER_NAME: ISSUER, "https://b": other}.items()
    }
    made = JwtGuard("jwt0", settings, "orders", sources)
    assert await request_grant(ISSUER.issue_token(), made)
    assert await request_grant(other.issue_token(iss="https://b"), made)
    for token in (ISSUER.issue_token(iss="https://b"), other.issue_token()):
        assert await get_refusal(token, made) == "no key of the issuer signs such a token"
    for iss in ("https://c", None):
        assert (
            await get_refusal(ISSUER.issue_token(iss=iss), made) == "the token is of another issuer"
        )
    assert await get_refusal("a.b.c", made) == "the token is no JWT"


@pytest.mark.parametrize(("claim", "off"), [("exp", -5), ("nbf", 5)])
async def test_clocks_may_differ_by_the_leeway(claim: str, off: int):
    # The time is taken here: a run of the suite is longer than any leeway.
    token = ISSUER.issue_token(**{claim: int(time.time()) + off})
    assert "token is" in await get_refusal(token)
    assert (await request_grant(token, build_guard(leeway="1m"))).identity == "ada"


async def test_a_grant_has_what_the_guard_takes_of_the_claims():
    made = build_guard(
        identity="preferred_username",
        roles="realm_access.roles",
        leeway="10s",
        attributes={"tenant": "https://shop.example/tenant", "age": "age", "none": "nothing"},
    )
    token = ISSUER.issue_token(
        preferred_username="Ada",
        realm_access={"roles": ["orders:read", "b"]},
        age=36,
        exp=int(FUTURE),
        **{"https://shop.example/tenant": "acme"},
    )
    grant = await request_grant(token, made)
    assert grant == Grant(
        "jwt0",
        "Ada",
        frozenset({"orders:read", "b"}),
        {"tenant": "acme", "age": "36"},
        int(FUTURE) + 10,
    )


async def test_why_claims_are_unknown_is_kept_and_named():
    """A role below a name that the token does not have was refused without a word about it."""
    made = build_guard(
        roles="realm.roles", attributes={"customer": "customer_id", "age": "years", "sub": "sub"}
    )
    grant = await request_grant(ISSUER.issue_token(years=[36]), made)
    assert grant.problems == {
        "": "the token has no claim 'realm.roles'",
        "customer": "the token has no claim 'customer_id'",
        "age": "the claim 'years' of the token has nothing that can be used",
    }
    with pytest.raises(NotGranted, match=r"nobody \(the token has no claim 'login'\); send"):
        await request_grant(ISSUER.issue_token(), build_guard(identity="login"))


async def test_a_token_without_an_end_is_good_for_so_long_from_each_connect_on():
    """It was good for ever, and so was its stream."""
    now = time.time()
    token = ISSUER.issue_token(exp=None)
    made, usual = build_guard(clock=lambda: now, maxLifetime="1h"), build_guard(clock=lambda: now)
    for _ in range(3):
        assert (await request_grant(token, made)).expires == now + 3600
        now += 1800
    assert (await request_grant(token, usual)).expires == now + 86_400


async def test_a_token_without_an_end_that_says_when_it_was_made_is_good_from_then_on():
    now = int(time.time())
    made = build_guard(maxLifetime="1h", leeway="5s")
    token = ISSUER.issue_token(exp=None, iat=now - 1800)
    assert (await request_grant(token, made)).expires == now + 1805
    for iat in (now - 3700, 0, -(10**300), -1.5e300):
        with pytest.raises(NotGranted, match="too old"):
            await request_grant(ISSUER.issue_token(exp=None, iat=iat), made)


async def test_a_token_that_a_clock_ahead_has_made_ends_all_the_same():
    """Its grant was kept without an end: each connect was good for so long again, for ever."""
    now = first = time.time()
    token = ISSUER.issue_token(exp=None, iat=int(now) + 5)
    made = build_guard(clock=lambda: now, maxLifetime="1h")
    for _ in range(2):
        assert (await request_grant(token, made)).expires == first + 3600
        now += 1800


@pytest.mark.parametrize("iat", [True, "1", None, [], 10**300, 1.5e300, 2**63])
async def test_an_odd_iat_is_none(iat: Any):
    grant = await request_grant(
        ISSUER.issue_token(exp=None, iat=iat), build_guard(maxLifetime="1h")
    )
    assert grant.expires is not None and abs(grant.expires - time.time() - 3600) < 60


async def test_a_guard_may_ask_for_tokens_that_end():
    made = build_guard(requireExpiry=True)
    await request_grant(ISSUER.issue_token(), made)
    with pytest.raises(NotGranted, match="no claim exp"):
        await request_grant(ISSUER.issue_token(exp=None), made)


@pytest.mark.parametrize("exp", [2**63 - 1, 2**63, 10**18, 10**300, 1.5e300, 253_402_300_800])
async def test_an_end_beyond_all_calendars_is_the_end_of_theirs(exp: float):
    """The list of streams failed for all operators because of one such token."""
    assert (await request_grant(ISSUER.issue_token(exp=exp))).expires == MAX_EXPIRES_S


async def test_a_number_as_subject_is_a_name():
    assert (await request_grant(ISSUER.issue_token(sub=4711))).identity == "4711"


async def test_a_told_token_beats_that_of_the_connection():
    told = ISSUER.issue_token(sub="eve")
    assert (
        await build_guard().grant(
            build_access_request(build_bearer_connection(ISSUER.issue_token()), told)
        )
    ).identity == "eve"
    with pytest.raises(NotGranted):
        await build_guard().grant(
            build_access_request(build_bearer_connection(ISSUER.issue_token()), "x.y.z")
        )


async def test_who_comes_again_with_a_token_has_the_same_grant():
    made, token = build_guard(), ISSUER.issue_token()
    assert await request_grant(token, made) is await request_grant(token, made)


async def test_what_was_known_of_a_token_ends_with_it():
    now = time.time()
    made, token = build_guard(clock=lambda: now), ISSUER.issue_token(exp=int(now) + 100)
    known = await request_grant(token, made)
    now += 101
    assert await request_grant(token, made) is not known, "it is not verified again"


class RotatingKeySource(KeySource):
    """Keys that are others as soon as an unknown one is asked for."""

    def __init__(self, first: KeySet, next_keys: KeySet | None) -> None:
        self._keys, self._next_keys = first, next_keys

    async def get_newer(self, known: KeySet, kid: str | None, algorithm: str) -> KeySet:
        if self._next_keys is None:
            raise KeysUnavailable("the issuer is away")
        self._keys = self._next_keys
        return self._keys


def build_key_set(*kids: str) -> KeySet:
    return KeySet(Jwk.model_validate(build_jwk(get_rsa_key(int(kid[1:])), kid)) for kid in kids)


async def test_a_token_of_a_key_that_is_gone_is_not_remembered():
    issuer = TokenIssuer()
    keys = RotatingKeySource(build_key_set("k0"), build_key_set("k1"))
    made = build_guard(key_source=keys)
    old = issuer.issue_token()
    assert await request_grant(old, made)
    issuer.rotate_key("k1")
    assert (await request_grant(issuer.issue_token(), made)).identity == "ada"
    assert await get_refusal(old, made) == "no key of the issuer signs such a token"


async def test_who_has_a_new_key_is_not_judged_while_the_issuer_is_away():
    issuer = TokenIssuer()
    made = build_guard(key_source=RotatingKeySource(build_key_set("k0"), None))
    assert await request_grant(issuer.issue_token(), made)
    issuer.rotate_key("k1")
    with pytest.raises(Exception, match="the issuer is away; come back") as uncertain:
        await request_grant(issuer.issue_token(), made)
    assert getattr(uncertain.value, "status", 0) == 503


class ForgetfulGuard(JwtGuard):
    MAX_CACHED_TOKENS = 3


async def test_it_remembers_so_many_tokens_and_no_more():
    made = build_guard(kind=ForgetfulGuard)
    tokens = [ISSUER.issue_token(sub=str(n)) for n in range(5)]
    grants = [await request_grant(token, made) for token in tokens]
    for n in (2, 3, 4, 1, 0):  # the last two are remembered in the place of others
        assert (await request_grant(tokens[n], made) is grants[n]) == (n >= 2)
    for token in tokens:
        assert token not in repr(vars(made)), "a token is held by its digest"


@given(st.text(max_size=200) | st.binary(max_size=60).map(encode_part))
async def test_no_text_breaks_it(text: str):
    with pytest.raises(NotGranted):
        await build_guard().grant(build_access_request(build_connection(), text or "x"))


@given(
    header=st.dictionaries(
        st.sampled_from(["alg", "kid", "crit", "b64", "typ", "zip", "jwk"]),
        st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.text(max_size=3))
        | st.sampled_from(["RS256", "HS256", "none", "k0"]),
    ),
    claims=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each),
        max_leaves=6,
    ),
    signature=st.binary(max_size=300),
)  # fmt: skip
async def test_nobody_comes_in_without_a_signature(header: Any, claims: Any, signature: bytes):
    token = f"{encode_part(header)}.{encode_part(claims)}.{encode_part(signature)}"
    with pytest.raises(NotGranted):
        await build_guard().grant(build_access_request(build_connection(), token))


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "iss", "scope", "tenant"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers())
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    )
)  # fmt: skip
async def test_any_claims_of_the_issuer_make_a_grant_or_a_refusal(claims: dict[str, Any]):
    issuer = TokenIssuer("HS256")
    made = build_guard(issuer.jwks, attributes={"tenant": "tenant"}, audience=[], issuer=[])
    token = f"{encode_part({'alg': 'HS256', 'kid': 'k0'})}.{encode_part(claims)}"
    secret = SHARED_SECRET + b"0"
    signed = f"{token}.{encode_part(hmac.new(secret, token.encode(), hashlib.sha256).digest())}"
    try:
        grant = await made.grant(build_access_request(build_connection(), signed))
    except NotGranted:
        return
    assert grant.identity and all(isinstance(each, str) for each in grant.roles)
