"""`gateway reload`: make a running gateway read its configuration again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .commands import EXIT_FAILURE
from .options import ConfigFileOption

if TYPE_CHECKING:
    from .admin_address import AdminAddress


def reload(
    config: ConfigFileOption,
    pid: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The process id of `gateway run`.")
    ] = None,
    pid_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="PATH",
            help="The file with the process id, as given to `gateway run`.",
        ),
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="URL", help="The address that it logs as `admin on`.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_ADMIN_TOKEN",
            metavar="TOKEN",
            help="A token for --admin, if it is guarded.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing; print what would change. It asks --admin, by default that of "
            "the configuration.",
        ),
    ] = False,
) -> None:
    """Make a running gateway read its configuration again.

    The configuration is checked first; if it is wrong, nothing changes. Streams whose route still
    shows them the same go on. The gateway's log says what became of the other streams, and which
    changed options need a restart; with --admin this command prints it, too.

    \b
    gateway reload -c gateway.yaml --pid-file /run/gateway.pid
    gateway reload -c gateway.yaml --pid 4711
    gateway reload -c gateway.yaml --admin http://127.0.0.1:9901
    gateway reload -c gateway.yaml --dry-run
    """
    from gateway.config import load

    from .admin_address import AdminAddress, find_admin_address

    if dry_run and (pid is not None or pid_file is not None):
        raise typer.BadParameter("a signal brings no answer; give --admin", param_hint="--dry-run")
    if not dry_run and [pid, pid_file, admin].count(None) != 2:
        raise typer.BadParameter("give one of --pid, --pid-file and --admin")
    settings = load(config)
    if dry_run or admin is not None:
        address = find_admin_address(settings) if admin is None else AdminAddress(admin)
        typer.echo(_request_reload(address, token, is_dry_run=dry_run))
        return
    process = pid if pid is not None else _read_pid(pid_file or Path())
    try:
        os.kill(process, signal.SIGHUP)
    except ProcessLookupError:
        typer.echo(
            f"gateway: there is no process {process}; start one with `gateway run`", err=True
        )
        raise typer.Exit(EXIT_FAILURE) from None
    except PermissionError:
        typer.echo(
            f"gateway: process {process} belongs to another user; run this as that user", err=True
        )
        raise typer.Exit(EXIT_FAILURE) from None
    typer.echo(f"{config}: ok; process {process} reads it again, see its log")


def _request_reload(admin: AdminAddress, token: str | None, *, is_dry_run: bool) -> str:
    import httpx

    from gateway.errors import GatewayError

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    query = "?dryRun=true" if is_dry_run else ""
    try:
        url = f"{admin.url.rstrip('/')}/reload{query}"
        response = httpx.post(
            url, headers=headers, timeout=60, verify=admin.verify, trust_env=False
        )
        result = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise GatewayError(
            f"no gateway answers at {admin.url} ({exc}); see `admin on` in its log"
        ) from None
    if response.status_code != 200:
        raise GatewayError("\n".join(result.get("problems") or [str(result.get("detail"))]))
    return "\n".join(
        [
            *(["nothing is changed; a reload would do this:"] if is_dry_run else []),
            *_iter_outcome_lines(result),
        ]
    )


def _iter_outcome_lines(result: Mapping[str, Any]) -> Iterator[str]:
    routes = ", ".join(f"{count} {what}" for what, count in result["routes"].items())
    kept = "".join(f"; needs a restart: {name}" for name in result["kept"])
    missing = "".join(f"; worker {number} did not answer" for number in result["missing"])
    yield f"routes: {routes}; streams: {_format_streams(result['streams'])}{kept}{missing}"
    for change in result.get("changes", ()):
        streams = _format_streams(change["streams"])
        yield f"  {change['change']} {change['route']}: streams: {streams}"


def _format_streams(streams: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in streams.items()) or "none"


def _read_pid(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is no text"
        raise typer.BadParameter(
            f"{path} cannot be read ({reason})", param_hint="--pid-file"
        ) from None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise typer.BadParameter(f"{path} holds no process id", param_hint="--pid-file")
    return int(text)
