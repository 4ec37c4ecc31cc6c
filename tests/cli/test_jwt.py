"""`gateway token` creates JWTs for development, asks guards about them and decodes them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from support.issuer import get_private_key
from typer.testing import CliRunner, Result

from gateway.cli import app

SECRET = "a secret that is long enough for HS256"
JWK = {"kty": "oct", "alg": "HS256", "k": "YSBzZWNyZXQgdGhhdCBpcyBsb25nIGVub3VnaCBmb3IgSFMyNTY"}
GUARDS = {
    "login": {
        "type": "jwt", "issuer": "me", "audience": "orders", "keys": [JWK],
        "attributes": {"customer": "customer_id"},
    },
    "people": {"type": "inline", "users": {"ada": {"token": "t0ken", "roles": ["r"]}}},
}  # fmt: skip


def token(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["token", *arguments], input=stdin, prog_name="gateway")


def create(*arguments: str) -> str:
    result = token("create", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def read_claims(text: str) -> dict[str, Any]:
    return jwt.decode(text, options={"verify_signature": False})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"kafka": {"servers": "a:1"}, "guards": GUARDS}))
    return file


@pytest.fixture(params=["RS256", "ES256", "ES384", "EdDSA"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    file = tmp_path / "key.pem"
    file.write_bytes(
        get_private_key(request.param).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return request.param, file


def test_a_token_of_a_secret_has_the_claims_that_were_given():
    arguments = ["--issuer", "me", "--audience", "orders", "--subject", "ada", "--expires", "2h"]
    text = create("--secret", SECRET, *arguments, "--claim", "scope=a b", "--claim", 'ids=[1, "x"]')
    claims = jwt.decode(text, SECRET, ["HS256"], audience="orders", issuer="me")
    assert claims.pop("exp") - claims.pop("iat") == 7200
    assert claims == {"iss": "me", "aud": "orders", "sub": "ada", "scope": "a b", "ids": [1, "x"]}


def test_a_token_of_a_key_is_verified_by_its_jwk(key: tuple[str, Path], tmp_path: Path):
    algorithm, file = key
    text = create("--key", str(file), "--kid", "k1")
    printed = json.loads(create("--key", str(file), "--kid", "k1", "--jwk"))
    assert jwt.get_unverified_header(text) == {"alg": algorithm, "kid": "k1", "typ": "JWT"}
    assert (printed["alg"], printed["kid"], "d" in printed) == (algorithm, "k1", False)
    config = tmp_path / "g.yaml"
    guards = {"g": {"type": "jwt", "keys": [printed]}}
    config.write_text(json.dumps({"kafka": {"servers": "a:1"}, "guards": guards}))
    assert token("check", text, "-c", str(config)).exit_code == 0


def test_the_jwk_of_a_secret_is_that_of_a_guard():
    assert json.loads(create("--secret", SECRET, "--jwk")) == JWK


def test_a_guard_gives_secret_issuer_and_audience(config: Path):
    claims = read_claims(create("--guard", "login"))
    assert (claims["iss"], claims["aud"], claims["sub"]) == ("me", "orders", "developer")
    result = token("check", create("--guard", "login", "--claim", "scope=a b"), "--guard", "login")
    assert result.exit_code == 0
    assert "accepts the token" in result.stdout and "a, b" in result.stdout
    assert "  the token has no claim 'customer_id'" in result.stdout


def test_check_prints_a_json_object(config: Path):
    text = create("--guard", "login", "--claim", "scope=a b")
    said = json.loads(token("check", text, "--guard", "login", "--json").stdout)
    assert said.pop("expires").endswith("Z")
    assert said == {
        "guard": "login", "accepted": True, "identity": "developer", "roles": ["a", "b"],
        "attributes": {}, "problems": ["the token has no claim 'customer_id'"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--expires", "1h", "--claim", "exp=1"], ["expired", "exp is 1 (1970-01-01T00:00:01Z"]),
        (["--issuer", "you"], ["another issuer", "iss is 'you', the guard expects 'me'"]),
        (["--audience", "stock"], ["another audience", "aud is 'stock', the guard expects"]),
        (["--secret", SECRET + "!"], ["signature", "alg is 'HS256'"]),
        (["--claim", "sub=null"], ["names nobody"]),
    ],
)
def test_check_says_why_a_token_is_refused(config: Path, arguments: list[str], words: list[str]):
    text = create("--guard", "login", *arguments)
    result = token("check", "-", "--guard", "login", stdin=f"Bearer {text}\n")
    assert result.exit_code == 1
    assert all(word in result.stdout for word in words), result.stdout
    assert "refuses the token" in result.stdout


def test_check_says_why_a_guard_cannot_decide(config: Path):
    """Whatever the cause, the keys could not be fetched, and the user was to come back later."""
    login = {"type": "jwt", "issuer": "http://127.0.0.1:1", "audience": "a"}
    config.write_text(json.dumps({"kafka": {"servers": "a:1"}, "guards": {"login": login}}))
    result = token("check", create("--secret", SECRET))
    assert result.exit_code == 1 and "guard login cannot decide" in result.stdout
    assert "http://127.0.0.1:1/.well-known" in result.stdout
    assert "connection refused" in result.stdout and "come back" not in result.stdout


def test_check_asks_guards_of_other_kinds_too(config: Path):
    assert "identity  ada" in token("check", "t0ken", "--guard", "people").stdout
    assert token("check", "wrong", "--guard", "people").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        # It is wrong usage, and had the code of a failure.
        (["create"], 2, "--secret TEXT or --key FILE"),
        (["create", "--secret", "a", "--key", __file__], 2, "either --secret or --key"),
        (["create", "--key", __file__], 1, "no private key in PEM"),
        (["create", "--secret", SECRET, "--expires", "5"], 2, "--expires"),
        (["create", "--secret", SECRET, "--claim", "a"], 2, "NAME=VALUE"),
        (["create", "--guard", "people"], 1, "takes no JWT"),
        (["create", "--guard", "logni"], 1, "did you mean 'login'?"),
        (["check", "a.b.c"], 1, "login, people; give --guard NAME"),
        (["check", "a.b.c", "--guard", "login"], 1, "it is no JWT"),
        (["check", "", "--guard", "login"], 2, "is empty"),
        (["decode", "a.b.c"], 1, "the header of the token is not JSON"),
        (["decode", "e30.b.c"], 1, "the claims of the token are not JSON"),
        # JSON of another kind was called no JSON.
        (["decode", "e30.W10.c"], 1, "the claims of the token are not a JSON object"),
        (["decode", "dHJ1ZQ.W10.c"], 1, "the header of the token is not a JSON object"),
    ],
)
def test_what_cannot_be_done_is_reported_with_what_to_do(config, arguments, code, word):
    result = token(*arguments)
    assert (result.exit_code, word in result.output) == (code, True), result.output


def test_a_short_secret_is_reported_and_the_token_printed_alone():
    result = token("create", "--secret", "short")
    assert result.stdout.count(".") == 2 and "32 bytes" in result.stderr


def test_decode_shows_a_jwt_and_that_it_is_not_verified():
    text = create("--secret", SECRET, "--claim", "exp=1")
    shown = token("decode", text).stdout
    assert "not verified" in shown and "1 (1970-01-01T00:00:01Z, expired)" in shown
    said = json.loads(token("decode", f"Bearer {text}", "--json").stdout)
    assert said["signature"] == "not verified" and said["header"]["alg"] == "HS256"
    assert said["claims"]["sub"] == "developer" and said["claims"]["iat"] <= time.time()


def test_a_claim_cannot_control_the_terminal():
    text = jwt.encode({"sub": "\x1b[2J", "\x1b]0;x": 1}, SECRET, "HS256")
    assert "\x1b" not in token("decode", text).stdout
