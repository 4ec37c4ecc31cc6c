"""Guards as a file has them; what is wrong in one is in `test_bad_input`."""

from __future__ import annotations

import pickle
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from gateway.config import (
    X509,
    Credentials,
    Http,
    Inline,
    Jwk,
    Jwt,
    Settings,
    build_json_schema,
    dumps,
    loads,
)

KAFKA = "kafka: {servers: [a:1], topics: [{name: orders}]}\n"
OCT = "{kty: oct, k: aHVudGVyMi5odW50ZXIyLmh1bnRlcjIuaHVudGVyMi4}"
P256 = {
    "kty": "EC", "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}  # fmt: skip
ED = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}

EVERY = (
    KAFKA
    + f"""
listen:
  forwarded: [10.0.0.1]
guards:
  login:
    type: jwt
    issuer: https://login.example
    audience: gateway
    keys: https://login.example/jwks
    jwks: {{refresh: 1m, cooldown: 5s, timeout: 1s, maxAge: 1h}}
    algorithms: [RS256, EdDSA]
    leeway: 10s
    roles: realm_access.roles
    attributes: {{tenant: "https://example/tenant"}}
    credentials:
      headers: {{Authorization: "Bearer {{credentials}}"}}
      cookies: {{access: "{{credentials}}"}}
      query: {{access_token: "{{credentials}}"}}
  own: {{type: jwt, keys: [{OCT}]}}
  session:
    type: http
    url: https://app.example/who
    forward: {{headers: [Cookie], query: [ticket]}}
    timeout: 500ms
    cache: 1m
    attributes: [tenant]
  machines: {{type: x509, forwarded: true, identity: uri, roles: OU, attributes: {{org: O}}}}
  team:
    type: inline
    exposed: true
    users:
      ada: {{password: hunter3, roles: [read], attributes: {{region: eu}}}}
      bot: {{token: hunter4}}
"""
)


def test_every_kind_of_guard_is_read():
    guards = loads(EVERY).guards
    login, session, machines, team = (
        guards[name] for name in ("login", "session", "machines", "team")
    )
    assert isinstance(login, Jwt) and isinstance(session, Http)
    assert isinstance(machines, X509) and isinstance(team, Inline)
    assert login.jwks.cooldown == 5 and login.leeway == 10
    assert login.credentials.headers == {"authorization": "Bearer {credentials}"}
    assert login.credentials.query == {"access_token": "{credentials}"}
    assert session.forward.headers == ("cookie",) and session.cache == 60
    assert machines.identity == "uri"
    assert team.users["ada"].roles == ("read",)


def test_what_is_not_said_is_the_safe_and_usual_thing():
    guards = loads(
        KAFKA + "guards: {a: {type: jwt, keys: 'https://a'}, b: {type: http, url: 'https://b'}}"
    ).guards
    jwt, http = guards["a"], guards["b"]
    assert isinstance(jwt, Jwt) and isinstance(http, Http)
    assert jwt.credentials == Credentials(headers={"authorization": "Bearer {credentials}"})
    assert (jwt.identity, jwt.roles, jwt.leeway, jwt.challenge) == ("sub", "scope", 0, 30)
    assert (jwt.jwks.refresh, jwt.jwks.max_age) == (600, 86400)
    assert http.forward.headers == ("cookie", "authorization") and http.forward.query == ()


def test_every_kind_is_dumped_and_read_again_without_its_secrets():
    made = loads(EVERY)
    text = dumps(made)
    assert "hunter" not in text and "aHVudGVyMi" not in text
    environ = {
        "GUARDS_OWN_KEYS_0_K": "aHVudGVyMi5odW50ZXIyLmh1bnRlcjIuaHVudGVyMi4",
        "GUARDS_TEAM_USERS_ADA_PASSWORD": "hunter3",
        "GUARDS_TEAM_USERS_BOT_TOKEN": "hunter4",
    }
    assert loads(text, environ=environ) == made
    for shown in (repr(made), str(made), made.model_dump_json(), str(made.model_dump())):
        assert "hunter" not in shown and "aHVudGVyMi" not in shown


def test_settings_that_were_written_as_json_are_read_again():
    made = loads(KAFKA + "guards: {a: {type: http, url: 'https://a', timeout: 500ms}}")
    assert Settings.model_validate(made.model_dump(mode="json", by_alias=True)) == made


def test_workers_are_told_of_them_with_their_secrets():
    made = loads(EVERY)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    team = again.guards["team"]
    assert isinstance(team, Inline) and team.users["bot"].token is not None
    assert team.users["bot"].token.get_secret_value() == "hunter4"


def test_editors_know_every_kind():
    validator = jsonschema.Draft202012Validator(build_json_schema())
    raw = YAML(typ="safe", pure=True).load(EVERY)
    assert not list(validator.iter_errors(raw))
    raw["guards"]["session"]["urll"] = "https://app"
    assert [each.json_path for each in validator.iter_errors(raw)] == ["$.guards.session"]


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (P256, ["ES256"]),
        ({**P256, "alg": "ES256"}, ["ES256"]),
        ({**P256, "use": "sig"}, ["ES256"]),
        ({**P256, "use": "enc"}, []),
        (ED, ["EdDSA"]),
        ({"kty": "oct", "k": "YWJj"}, ["HS256", "HS384", "HS512"]),
        ({"kty": "oct", "k": "YWJj", "alg": "HS384"}, ["HS384"]),
    ],
)
def test_a_key_is_good_for_the_algorithms_of_its_type_and_no_others(key, algorithms):
    """Or a shared secret could be made of a public key (CVE-2015-9235)."""
    assert list(Jwk.model_validate(key).algorithms) == algorithms


def test_the_public_part_of_a_private_jwks_is_asked_for(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"keys": [{"kty": "oct", "k": "YWJj"}]}')
    text = KAFKA + "guards: {g: {type: jwt, keys: '${file:a.json}'}}"
    guard = loads(text, name=str(tmp_path / "g.yaml")).guards["g"]
    assert isinstance(guard, Jwt) and not isinstance(guard.keys, str)
    assert [key.key_bits for key in guard.keys] == [24]
