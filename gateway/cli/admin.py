"""`gateway reload` and `gateway health`: reach the gateway of this machine by its configuration."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

from gateway.errors import GatewayError

from .options import ConfigFileOption, OptionalConfigOption, build_file_option, find_config_file

if TYPE_CHECKING:
    import ssl

    from gateway.config import Settings

AdminArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        show_default=False,
        help="The address that the gateway logs as `admin on`; by default that of --config.",
    ),
]
AdminTokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="GATEWAY_ADMIN_TOKEN",
        metavar="TOKEN",
        help="A token of an operator, if the admin API is guarded.",
    ),
]


class AdminAddress(NamedTuple):
    """The URL of an admin API, and the argument `verify` of httpx for its certificate."""

    url: str
    verify: ssl.SSLContext | bool = True

    @classmethod
    def parse(cls, url: str) -> Self:
        return cls(url if "://" in url else f"http://{url}")


def build_headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def find_admin_address(settings: Settings) -> AdminAddress:
    """Return the admin API of a gateway with these settings, as it is reached from this machine.

    Its certificate is for the names that clients use, so it is compared with the file instead.
    """
    from gateway.web.http.edge import uses_tls

    admin = settings.admin
    if admin is None:
        raise GatewayError(
            "the configuration has no section admin; add `admin: {}`, restart the gateway, and "
            "try again"
        )
    if admin.port == 0:
        raise GatewayError(
            "the port is any free one (admin.port: 0); give the URL that the gateway logs as "
            "`admin on`"
        )
    address = f"{get_local_host(admin.host)}:{admin.port}"
    tls = settings.listen.tls
    if tls is None or not uses_tls(settings):
        return AdminAddress(f"http://{address}")
    return AdminAddress(f"https://{address}", _trust_only(tls.certificate))


def _trust_only(certificate: Path) -> ssl.SSLContext:
    """Return a context for the server that has this certificate, under any name."""
    import ssl

    from gateway.config.types.address import describe_ssl_error

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Its issuer need not be there (RFC 4158 allows any certificate to be a trust anchor), and must
    # not be: whatever else it has issued would be trusted. The gateway's own certificate is the
    # first of its file.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        text = certificate.read_text("ascii", "replace")
        begin = text.find(ssl.PEM_HEADER)
        end = text.find(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        context.load_verify_locations(cadata=text[begin:end] if begin >= 0 else "none")
    except (OSError, ValueError) as exc:
        reason = describe_ssl_error(exc) if isinstance(exc, OSError) else str(exc)
        raise GatewayError(f"listen.tls.certificate: {certificate}: {reason}") from None
    return context


def reload(
    config: ConfigFileOption,
    url: AdminArgument = None,
    token: AdminTokenOption = None,
    pid: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The process id of `gateway run`: send SIGHUP, and ask no URL."
        ),
    ] = None,
    pid_file: Annotated[
        Path | None,
        build_file_option(
            "--pid-file", help="The file with the process id, as given to `gateway run`."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would change.")
    ] = False,
) -> None:
    """Make a running gateway read its configuration again.

    The configuration is checked first; if it is wrong, nothing changes. Streams whose route still
    shows them the same go on. What became of the other streams, and which changed options need a
    restart, is printed, or is in the gateway's log with --pid and --pid-file.

    \b
    gateway reload -c gateway.yaml                # by its section admin
    gateway reload http://127.0.0.1:9901 -c gateway.yaml --dry-run
    gateway reload -c gateway.yaml --pid-file /run/gateway.pid
    """
    from gateway.config import load

    if (pid is not None) + (pid_file is not None) + (url is not None) > 1:
        raise typer.BadParameter("give one of URL, --pid and --pid-file")
    has_signal = pid is not None or pid_file is not None
    if dry_run and has_signal:
        raise typer.BadParameter("a signal brings no answer; give URL", param_hint="--dry-run")
    settings = load(config)
    if not has_signal:
        address = find_admin_address(settings) if url is None else AdminAddress.parse(url)
        typer.echo(_request_reload(address, token, is_dry_run=dry_run))
        return
    process = pid if pid is not None else _read_pid(pid_file or Path())
    try:
        os.kill(process, signal.SIGHUP)
    except ProcessLookupError:
        raise GatewayError(f"there is no process {process}; start one with `gateway run`") from None
    except PermissionError:
        raise GatewayError(
            f"process {process} belongs to another user; run this as that user"
        ) from None
    typer.echo(f"{config}: ok; process {process} reads it again, see its log")


def _request_reload(admin: AdminAddress, token: str | None, *, is_dry_run: bool) -> str:
    import httpx

    try:
        response = httpx.post(
            f"{admin.url.rstrip('/')}/reload",
            params={"dryRun": "true"} if is_dry_run else None,
            headers=build_headers(token),
            timeout=60,
            verify=admin.verify,
            trust_env=False,
        )
        result = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise GatewayError(
            f"no gateway answers at {admin.url} ({exc}); see `admin on` in its log"
        ) from None
    if response.status_code != 200:
        raise GatewayError("\n".join(result.get("problems") or [str(result.get("detail"))]))
    heading = ["nothing is changed; a reload would do this:"] if is_dry_run else []
    return "\n".join([*heading, *_iter_outcome_lines(result)])


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


_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def health(
    config: OptionalConfigOption = None,
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
    # Without a file as of `gateway run --topic`, whose address is set by variables alone.
    settings = load(file) if file else loads("kafka: {servers: [a:1]}", with_variables=True)
    listen = settings.listen
    if listen.port == 0:
        raise GatewayError("the port is any free one (listen.port: 0); give it a number")
    scheme = "http" if listen.tls is None else "https"
    url = f"{scheme}://{get_local_host(listen.host)}:{listen.port}/health/live"
    try:
        # The certificate is the gateway's own, for a name that is not this address.
        status = httpx.get(url, timeout=timeout, verify=False, trust_env=False).status_code
    except httpx.TransportError as exc:
        if _is_refusal_of_certificate(exc):
            return
        raise GatewayError(f"no answer from {url} ({exc or type(exc).__name__})") from None
    if status >= 500:
        raise GatewayError(f"{url} answers {status}")


def get_local_host(host: str) -> str:
    """Return the host of a URL that reaches a bound address, such as 0.0.0.0, locally."""
    reached = _ANY_ADDRESS.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _is_refusal_of_certificate(exc: BaseException | None) -> bool:
    """Return whether TLS refused this client, which only a gateway that is alive does."""
    import ssl

    while exc is not None:
        if isinstance(exc, ssl.SSLError):
            return "ALERT" in (exc.reason or "")
        exc = exc.__cause__ or exc.__context__
    return False
