"""`gateway reload`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from .commands import EXIT_FAILURE
from .run import ConfigFileOption


def reload(
    config: ConfigFileOption,
    pid: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Process id of `gateway run`.")
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="PATH", help="The file it is in."),
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="URL", help="Where it says `admin on`.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_ADMIN_TOKEN", metavar="TOKEN", help="For one whose admin is guarded."
        ),
    ] = None,
) -> None:
    """Have a gateway that runs take over its configuration as it is by now.

    What is wrong with it is said here, and nothing is changed then. Streams whose route shows them
    the same go on untouched; its log says what became of the others, and which options need a
    restart.

    \b
    gateway reload -c gateway.yaml --pid-file /run/gateway.pid
    gateway reload -c gateway.yaml --pid 4711
    gateway reload -c gateway.yaml --admin http://127.0.0.1:9901    # says here what came of it
    """
    from gateway.config import load

    if [pid, pid_file, admin].count(None) != 2:
        raise typer.BadParameter("give one of --pid, --pid-file and --admin")
    load(config)
    if admin is not None:
        typer.echo(_request_reload(admin, token))
        return
    process = pid if pid is not None else _read_pid(pid_file or Path())
    try:
        os.kill(process, signal.SIGHUP)
    except ProcessLookupError:
        typer.echo(f"gateway: no process {process} runs; start it with `gateway run`", err=True)
        raise typer.Exit(EXIT_FAILURE) from None
    except PermissionError:
        typer.echo(f"gateway: process {process} is another user's; run this as that one", err=True)
        raise typer.Exit(EXIT_FAILURE) from None
    typer.echo(f"{config}: ok; process {process} takes it over, its log says how")


def _request_reload(admin: str, token: str | None) -> str:
    """What came of it, as the gateway says. Raises GatewayError where nothing did."""
    import httpx

    from gateway.errors import GatewayError

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        answer = httpx.post(f"{admin.rstrip('/')}/reload", headers=headers, timeout=60)
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise GatewayError(f"no gateway answers at {admin} ({exc}); see its `admin on`") from None
    if answer.status_code != 200:
        raise GatewayError("\n".join(told.get("problems") or [str(told.get("detail"))]))
    streams = ", ".join(f"{count} {what}" for what, count in told["streams"].items()) or "none"
    routes = ", ".join(f"{count} {what}" for what, count in told["routes"].items())
    kept = "".join(f"; until a restart as before: {name}" for name in told["kept"])
    missing = "".join(f"; worker {number} did not answer" for number in told["missing"])
    return f"routes: {routes}; streams: {streams}{kept}{missing}"


def _read_pid(path: Path) -> int:
    text = path.read_text().strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(f"{path} holds no process id", param_hint="--pid-file")
    return int(text)
