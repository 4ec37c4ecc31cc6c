"""`gateway health`: ask the gateway of this machine whether it is alive."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import GatewayError

from .options import CONFIG_HELP, DEFAULT_CONFIG_NAME, build_config_option, find_config_file

if TYPE_CHECKING:
    from gateway.config import Listen

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def health(
    config: Annotated[
        Path | None, build_config_option(f"{CONFIG_HELP}  [default: {DEFAULT_CONFIG_NAME}]")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long an answer may take.")
    ] = 2.0,
) -> None:
    """Ask the gateway on this machine whether it serves.

    Address, port and TLS are those of `listen`, also where environment variables set them, with or
    without a file. For health checks of containers, which need no curl then. It does not ask for
    Kafka: see /health/ready.

    \b
    gateway health -c gateway.yaml
    """
    import httpx

    from gateway.config import load, loads

    file = find_config_file(config)
    if file is None:
        # As of `gateway run --topic`, whose address is set by variables alone.
        settings = loads("kafka: {servers: [localhost:9092]}", with_variables=True)
    else:
        settings = load(file)
    url = build_url(settings.listen)
    try:
        # The certificate is the gateway's own, for a name that is not this address.
        status = httpx.get(url, timeout=timeout, verify=False, trust_env=False).status_code
    except httpx.TransportError as exc:
        if _is_refusal_of_certificate(exc):
            return
        raise GatewayError(f"no answer from {url} ({exc or type(exc).__name__})") from None
    if status >= 500:
        raise GatewayError(f"{url} answers {status}")


def build_url(listen: Listen) -> str:
    if listen.port == 0:
        raise GatewayError("the port is any free one (listen.port: 0); give it a number")
    scheme = "http" if listen.tls is None else "https"
    return f"{scheme}://{get_local_host(listen.host)}:{listen.port}/health/live"


def get_local_host(host: str) -> str:
    """Return the host of a URL that reaches a bound address, such as 0.0.0.0, locally."""
    reached = _ANY_ADDRESS.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _is_refusal_of_certificate(exc: BaseException | None) -> bool:
    """Return whether TLS refused this client, which only a gateway that is alive does."""
    while exc is not None:
        if isinstance(exc, ssl.SSLError):
            return "ALERT" in (exc.reason or "")
        exc = exc.__cause__ or exc.__context__
    return False
