"""The report of a soak: one HTML file that needs no network.

Memory, latency, clients, descriptors, tasks and timers over time, with the faults as bars behind
them. Charts are SVG without text, stretched to the width of the page, so that labels stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ..report import build_fault_row, build_page
from ..results import FaultResult
from .result import Sample, SoakResult

CHART_HEIGHT = 120
COLOURS = ("#2f6fb4", "#c26a00", "#8a3ffc", "#18794e")
Series = Sequence[tuple[float, float]]


def build_report(result: SoakResult) -> str:
    """Build the page."""
    problems = list(result.list_problems())
    title = f"Soak of {result.minutes:g} minutes: {'failed' if problems else 'passed'}"
    return build_page(
        title,
        (
            *(f'<p class="bad">{escape(each)}</p>' for each in problems),
            _build_totals(result),
            *_build_charts(result),
            "<h2>Faults</h2><table>",
            "<tr><th>s</th><th>until</th><th>fault</th><th>effect</th></tr>",
            *map(build_fault_row, result.faults),
            "</table>",
        ),
    )


def _build_totals(result: SoakResult) -> str:
    growth = result.compute_latency_growth()
    slopes = result.compute_slopes()
    rows = {
        "clients at a time": f"{result.clients:,}",
        "connections": f"{result.visits:,}",
        "records sent": f"{result.sent:,}",
        "seed": str(result.seed),
        "memory in ten minutes": ", ".join(f"{slope:+.2f} %" for slope in slopes.values()) or "?",
        "latency at the end": ", ".join(f"{name} x{each:.2f}" for name, each in growth.items())
        or "?",
    }
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<table>{cells}</table>"


def _build_charts(result: SoakResult) -> Iterator[str]:
    samples = result.samples
    memory = [
        [(at, size / 2**20) for at, size in series]
        for series in result.collect_memory(samples).values()
    ]
    yield from _build_chart("memory of each worker (PSS)", "MiB", memory, result)
    quiet = [each for each in samples if each.is_quiet]
    yield from _build_chart(
        "latency without faults: p50, p99",
        "ms",
        [
            [(s.at_s, 1000 * s.p50_s) for s in quiet if s.p50_s is not None],
            [(s.at_s, 1000 * s.p99_s) for s in quiet if s.p99_s is not None],
        ],
        result,
    )
    yield from _build_chart("clients", "", [[(s.at_s, float(s.clients)) for s in samples]], result)
    for title, name in (("descriptors", "descriptors"), ("tasks", "tasks"), ("timers", "timers")):
        yield from _build_chart(f"{title} of each worker", "", _collect(samples, name), result)


def _collect(samples: Iterable[Sample], name: str) -> list[Series]:
    """Return time and value of an attribute of each worker, where it is known."""
    found: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        for worker in sample.workers:
            if (value := getattr(worker, name)) is not None:
                found.setdefault(worker.pid, []).append((sample.at_s, float(value)))
    return list(found.values())


def _build_chart(
    title: str, unit: str, lines: Sequence[Series], result: SoakResult
) -> Iterator[str]:
    values = [value for line in lines for _, value in line]
    if not values:
        return
    bounds = f"{min(values):,.1f} to {max(values):,.1f} {unit}"
    yield f'<div class="label"><span>{escape(title)}</span><span>{bounds}</span></div>'
    most, end = max(values) or 1.0, 60 * result.minutes
    yield (
        f'<svg viewBox="0 0 {end:.1f} {CHART_HEIGHT}" height="{CHART_HEIGHT}" '
        'preserveAspectRatio="none" role="img">'
    )
    yield from (_draw_fault(each, end) for each in result.faults)
    for number, line in enumerate(lines):
        points = " ".join(
            f"{at:.1f},{CHART_HEIGHT * (1 - 0.95 * value / most):.1f}" for at, value in line
        )
        yield (
            f'<polyline points="{points}" fill="none" stroke-width="1.5" '
            f'stroke="{COLOURS[number % len(COLOURS)]}" vector-effect="non-scaling-stroke"/>'
        )
    yield "</svg>"


def _draw_fault(fault: FaultResult, end: float) -> str:
    width = max(1.0, (fault.healed_at or end) - fault.at)
    return (
        f'<rect x="{fault.at:.1f}" width="{width:.1f}" height="{CHART_HEIGHT}" fill="#8886">'
        f"<title>{escape(fault.kind)}</title></rect>"
    )
