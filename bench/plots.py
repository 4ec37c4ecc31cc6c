"""Draw the plots of a run by matplotlib (the extra `bench`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .journal import Run
from .works.work import PACED_SUFFIX, PER_CPU, Row

RAW_PEERS = ("raw-sse", "raw-ws")
BAR_WORKS = ("broadcast", "joined", "lat", "sat", "keys")
COLOURS = {
    "raw": "#9aa0a6", "c": "#5f6368", "gateway": "#1a73e8", "each": "#f6aea9",
    "shared": "#d93025", "nchan": "#188038", "centrifugo": "#f9ab00",
}  # fmt: skip


def draw_plots(run: Run, folder: Path) -> list[Path]:
    """The files that were made; a picture without a figure is not."""
    import matplotlib

    matplotlib.use("Agg")
    made = []
    for name, picture in (
        ("rates", _plot_rates),
        ("latency", _plot_latency),
        ("clients", _plot_clients),
        ("partitions", _plot_partitions),
        ("a-client", _plot_client_costs),
    ):
        figure = picture(run)
        if figure is not None:
            figure.text(0.01, 0.005, _format_facts(run), fontsize=5, color="#5f6368")
            made.append(folder / f"{name}.png")
            figure.savefig(made[-1], dpi=120)
    return made


def _format_facts(run: Run) -> str:
    """Two lines, for what is narrow."""
    lines = ("date", "commit", "python"), ("kafka", "uvicorn", "uvloop", "aiokafka")
    return "\n".join(
        "  ".join(f"{f} {run.facts[f]}" for f in line if f in run.facts) for line in lines
    )


def _iter_rows(run: Run, work: str, what: str) -> Iterator[tuple[str, Row]]:
    for (name, peer), cell in run.cells.items():
        if name == work:
            yield from ((peer, row) for row in cell.rows if row.what == what)


def _create_panels(
    count: int, width: float, height: float, columns: int = 4
) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows))
    figure.set_layout_engine("constrained", rect=(0, 0.05 / rows, 1, 1 - 0.05 / rows))
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(count)]


def _draw_bars(axes: Any, title: str, rows: Sequence[tuple[str, Row]]) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    names = [peer for peer, _ in rows][::-1]
    values = [row.value for _, row in rows][::-1]
    colours = [COLOURS[name.partition("-")[0]] for name in names]
    axes.barh(names, values, color=colours)
    for n, (_, row) in enumerate(reversed(rows)):
        axes.plot([row.low, row.high], [n, n], color="black", linewidth=1)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plot_rates(run: Run) -> Any:
    found = []
    for work in BAR_WORKS:
        rows = list(_iter_rows(run, work, PER_CPU))
        for case in dict.fromkeys(row.case.removesuffix(PACED_SUFFIX) for _, row in rows):
            same = [(peer, row) for peer, row in rows if row.case == case]
            same += [
                (peer + PACED_SUFFIX, row) for peer, row in rows if row.case == case + PACED_SUFFIX
            ]
            found.append((f"{work}, {case}\n{PER_CPU}", same))
    if not found:
        return None
    figure, panels = _create_panels(len(found), 3.2, 4)
    for axes, (title, rows) in zip(panels, found, strict=True):
        _draw_bars(axes, title, rows)
        axes.axvline(
            max((row.value for peer, row in rows if peer in RAW_PEERS), default=0),
            color=COLOURS["raw"], linestyle=":",
        )  # fmt: skip
    return figure


def _plot_latency(run: Run) -> Any:
    works = [work for work in ("lat", "sat") if any(_iter_rows(run, work, "latency p50"))]
    if not works:
        return None
    figure, panels = _create_panels(len(works), 5, 4)
    for axes, work in zip(panels, works, strict=True):
        for what, mark in (("latency p50", "o"), ("latency p99", "D"), ("latency p99.9", "x")):
            rows = list(_iter_rows(run, work, what))
            peers, values = [peer for peer, _ in rows], [row.value for _, row in rows]
            axes.plot(values, peers, mark, label=what, linestyle="none")
        axes.set_xscale("log")
        axes.set_xlabel("ms")
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.set_title(f"{work}: produced to received", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7)
    return figure


def _draw_curve(axes: Any, rows: Sequence[tuple[str, Row]], x_label: str, y_label: str) -> None:
    for peer in dict.fromkeys(peer for peer, _ in rows):
        points = sorted((_parse_count(row.case), row.value) for name, row in rows if name == peer)
        kind, _, wire = peer.partition("-")
        style = "-" if wire == "sse" else "--"
        axes.plot(*zip(*points, strict=True), style, marker=".", color=COLOURS[kind], label=peer)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _parse_count(case: str) -> int:
    return int(case.split()[0].replace(",", ""))


def _plot_clients(run: Run) -> Any:
    rows = list(_iter_rows(run, "clients", PER_CPU))
    if not rows:
        return None
    figure, (axes,) = _create_panels(1, 7, 4)
    _draw_curve(axes, rows, "clients", PER_CPU)
    return figure


def _plot_partitions(run: Run) -> Any:
    rows = list(_iter_rows(run, "partitions", "record bytes of a CPU second"))
    if not rows:
        return None
    figure, (axes,) = _create_panels(1, 7, 4)
    _draw_curve(axes, rows, "partitions", "MB of values of a CPU second")
    return figure


def _plot_client_costs(run: Run) -> Any:
    told = (("idle", "PSS of a client", "KB"), ("storm", "CPU of a client", "ms"))
    found = [
        (f"{work}: {what}, {unit}", list(_iter_rows(run, work, what))) for work, what, unit in told
    ]
    found = [(title, rows) for title, rows in found if rows]
    if not found:
        return None
    figure, panels = _create_panels(len(found), 4.5, 3.5)
    for axes, (title, rows) in zip(panels, found, strict=True):
        _draw_bars(axes, title, rows)
    return figure
