"""`gateway token`: create, check and decode the tokens of clients.

A JSON Web Token says who a client is, and a resume token where its stream continues.
`json_web_token` creates and decodes the former, and asks a guard about one; `resume_token` decodes
the latter. This module has the commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.commands import EXIT_FAILURE, format_exit_codes
from gateway.cli.options import (
    ConfigFileOption,
    JsonOption,
    build_config_option,
    build_file_option,
    build_time_option,
    complete_guard,
    require_config_file,
)

STDIN_ARGUMENT = "-"
MAX_INPUT_BYTES = 128 * 1024  # bytes read from standard input, twice the longest token

TokenArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOKEN", show_default=False, help="The token, or - to read standard input."
    ),
]

token = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=format_exit_codes("a token that is refused or cannot be read"),
)


@token.callback()
def _token() -> None:
    """Create, check and decode the tokens of clients.

    A JSON Web Token (JWT) says who a client is, to a guard of type jwt. A resume token is the `id:`
    of an event, which a client sends back as `Last-Event-ID`.

    \b
    gateway token create --secret "$SECRET" --claim scope=orders:read
    gateway token check "$TOKEN" --guard login -c gateway.yaml
    gateway token decode 1g0QzhBrAOj3y3KyFB1azr6lyQpZoHtMCABFFGFGFFFFFFFD389wp
    """


@token.command(epilog=format_exit_codes("the key cannot be used"))
def create(
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Sign with this shared secret (HS256), of at least 32 bytes."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        build_file_option("--key", help="Sign with this private key in PEM: RSA, EC or Ed25519."),
    ] = None,
    guard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Take issuer, audience and a listed shared secret from this guard.",
            autocompletion=complete_guard,
        ),
    ] = None,
    config: Annotated[
        Path | None, build_config_option("The configuration that has the guard.")
    ] = None,
    subject: Annotated[
        str, typer.Option(metavar="NAME", help="Whom the token is for: its claim `sub`.")
    ] = "developer",
    issuer: Annotated[str | None, typer.Option(help="The claim `iss`.")] = None,
    audience: Annotated[str | None, typer.Option(help="The claim `aud`.")] = None,
    claims: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME=VALUE",
            help='A further claim; JSON such as 7 or ["a"] is read as such. Repeatable.',
        ),
    ] = None,
    expires: Annotated[float, build_time_option("How long it is valid, such as 1h.")] = "1h",  # type: ignore[assignment]
    key_id: Annotated[
        str | None, typer.Option("--kid", help="The key id in the token and in --jwk.")
    ] = None,
    jwk: Annotated[
        bool,
        typer.Option("--jwk", help="Print the key as a JWK, for `keys` of a guard, and no token."),
    ] = False,
) -> None:
    """Create a JWT for development, and print it.

    The key is a --secret, a private --key, or a shared secret among the `keys` of the --guard.
    With --jwk the command prints what the guard needs: the public key, or the secret itself.

    \b
    gateway token create --secret "$SECRET" --claim scope="orders:read orders:write"
    gateway token create --key dev.pem --issuer me --audience orders --expires 8h
    gateway token create --key dev.pem --jwk            # for guards.NAME.keys
    gateway token create --guard login -c gateway.yaml --subject alice
    """
    from .json_web_token import build_claims, find_jwt_guard, load_signing_key, parse_claims

    if (secret is not None) + (key is not None) > 1:
        raise typer.BadParameter("give either --secret or --key")
    section = None
    if guard is not None:
        section = find_jwt_guard(require_config_file(config), guard)
    elif config is not None:
        raise typer.BadParameter("is for --guard", param_hint="--config")
    signing_key = load_signing_key(secret, key, section, key_id)
    if jwk:
        typer.echo(json.dumps(signing_key.to_jwk()))
        return
    own = {
        "iss": issuer or (section.issuer[0] if section and section.issuer else None),
        "aud": audience or (section.audience[0] if section and section.audience else None),
        "sub": subject,
    }
    if signing_key.is_weak:
        typer.echo(
            "gateway: a secret of less than 32 bytes can be guessed; use a longer one", err=True
        )
    typer.echo(signing_key.sign(build_claims(own, parse_claims(claims or ()), expires)))


@token.command(epilog=format_exit_codes("the guard refuses the token"))
def check(
    text: TokenArgument,
    config: ConfigFileOption,
    guard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The guard; required if there are several.",
            autocompletion=complete_guard,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a guard of a configuration accepts a token, and why not.

    The guard is asked as for a stream: keys of an issuer are fetched, and an application is called.

    \b
    gateway token check "$TOKEN"                        # by the only guard of gateway.yaml
    gateway token check "$TOKEN" --guard login -c gateway.yaml
    gateway token create --guard login | gateway token check - --guard login
    """
    from .json_web_token import check_token

    verdict = check_token(_read_token(text), config, guard)
    typer.echo(json.dumps(verdict.to_json()) if as_json else verdict.to_text())
    if not verdict.is_accepted:
        raise typer.Exit(EXIT_FAILURE)


@token.command(epilog=format_exit_codes("the token cannot be read"))
def decode(
    text: TokenArgument,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="A topic that the token may be of, so that its name is shown; repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        build_config_option(
            "Take names of topics, and the secrets of signed tokens, from a configuration."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a resume token or a JWT holds.

    A resume token holds a position: for each partition the next offset to fetch, or `pending` if it
    was not known yet. It has digests of the names of its topics, and not the names: give them with
    --topic or --config. Without them the digest is shown.

    The signature of a JWT is not verified; `gateway token check` does that.

    \b
    gateway token decode 1g0QzhBrAOj3y3KyFB1azr6lyQpZoHtMCABFFGFGFFFFFFFD389wp --topic orders
    gateway token decode "$LAST_EVENT_ID" -c gateway.yaml
    grep '^id:' events.txt | tail -n 1 | gateway token decode - --json | jq .partitions
    """
    from .json_web_token import DecodedJwt, is_jwt
    from .resume_token import DecodedToken, decode_resume_token

    text = _read_token(text)
    decoded: DecodedJwt | DecodedToken
    if is_jwt(text):
        decoded = DecodedJwt.decode(text)
    else:
        from gateway.config import load

        settings = None if config is None else load(config)
        decoded = decode_resume_token(text, topics or (), settings)
    typer.echo(json.dumps(decoded.to_json()) if as_json else decoded.to_table())


def _read_token(text: str) -> str:
    """Return the token, also of a line `id: TOKEN` of a stream or `Bearer TOKEN` of a header."""
    if text == STDIN_ARGUMENT:
        text = sys.stdin.buffer.read(MAX_INPUT_BYTES).decode(errors="replace")
    token_text = text.strip().removeprefix("id:").removeprefix("Bearer ").strip()
    if not token_text:
        raise typer.BadParameter("is empty", param_hint="TOKEN")
    return token_text
