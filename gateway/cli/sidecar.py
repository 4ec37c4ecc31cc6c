"""`gateway sidecar`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import ConfigError

from .run import LOGGER_NAMES, ConfigFileOption

if TYPE_CHECKING:
    from gateway.config import Settings


def sidecar(
    config: ConfigFileOption,
    values: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="YAML of single options, such as `kafka-producer.keyFormat: json`.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to bind; beats listen.host.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="0 for a free one; beats listen.port."),
    ] = None,
    debug: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROOM", help=f"Log in detail ({', '.join(LOGGER_NAMES)}); repeatable."
        ),
    ] = None,
) -> None:
    """Serve Kafka over HTTP to the back end beside it, and nothing else, until SIGTERM or ^C.

    \b
    gateway sidecar -c gateway.yaml                       # on 127.0.0.1:8080
    gateway sidecar -c gateway.yaml --values values.yml
    gateway sidecar -c gateway.yaml --host 0.0.0.0 --port 8443    # with sidecar.guarded
    """
    from gateway.config import load
    from gateway.web.app.server import serve

    from .sidecar_factory import create_standalone_sidecar

    for room in debug or ():
        if room not in LOGGER_NAMES:
            what = f"'{room}' is none of {', '.join(LOGGER_NAMES)}"
            raise typer.BadParameter(what, param_hint="--debug")

    def load_settings() -> Settings:
        return build_standalone_settings(
            load(config, values=values, listen={"host": host, "port": port}), str(config)
        )

    status = serve(
        load_settings(),
        debug=set(debug or ()),
        load=load_settings,
        co_hosted_app_factory=create_standalone_sidecar,
    )
    if status:
        raise typer.Exit(status)


def build_standalone_settings(settings: Settings, filename: str) -> Settings:
    """Without streams. name: of the file. Raises ConfigError for settings without a sidecar."""
    if settings.sidecar is None:
        what = "there is no section sidecar; add one, such as `sidecar: {producer: {}}`"
        raise ConfigError([f"{filename}:1:1: {what}"])
    return settings.model_copy(update={"routes": ()})
