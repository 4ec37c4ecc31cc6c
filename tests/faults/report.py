"""The report of a directory of results: one HTML file that needs no network.

Of each seed: its verdict, a timeline of its faults, and below it for each class of clients how many
records came, how old they were, and where gaps were told, on the same axis of time. Charts are SVG
without text, stretched to the width of the page, so that labels stay readable on a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .results import BIN_S, FaultResult, SeedResult, Timeline

ROW_HEIGHT, FAULT_HEIGHT = 44, 12
_STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5c6a7c; --back: #ffffff;
  --line: #d8dee6; --rate: #2f6fb4; --lag: #c26a00; --gap: #8a3ffc; --good: #18794e;
  --bad: #c22a2a; --fault: #93a4b8; --none: #e0b7b7; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e9f0; --soft: #9aa8b8; --back: #12171e;
  --line: #2c3642; --rate: #6aa9ec; --lag: #f0a64b; --gap: #be95ff; --good: #4cc38a;
  --bad: #ff8585; --fault: #5d6f84; --none: #5f3a3a; } }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; color: var(--text);
  background: var(--back); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { text-align: left; padding: .2rem .5rem .2rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; background: color-mix(in srgb, var(--line) 25%, transparent); }
.label { display: flex; justify-content: space-between; gap: 1rem; color: var(--soft);
  font-size: .8rem; margin-top: .4rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .8rem; }
summary { cursor: pointer; margin: .6rem 0; }
.key span { margin-right: 1rem; white-space: nowrap; } .key i { display: inline-block; width: .8rem;
  height: .8rem; margin-right: .3rem; vertical-align: -.1rem; }
"""


def write_report(results: Sequence[SeedResult], directory: Path) -> Path:
    """Write the report of all results, and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "index.html"
    path.write_text(build_report(results), encoding="utf-8")
    return path


def build_report(results: Sequence[SeedResult]) -> str:
    """Build the page."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Faults: {_describe_all(results)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>Faults: {_describe_all(results)}</h1>",
            _build_totals(results),
            _build_kinds(results),
            '<p class="key"><span><i style="background:var(--fault)"></i>fault in effect</span>'
            '<span><i style="background:var(--rate)"></i>records per half second</span>'
            '<span><i style="background:var(--lag)"></i>age of the oldest of them</span>'
            '<span><i style="background:var(--gap)"></i>gap told</span></p>',
            *(part for result in results for part in _build_seed(result)),
            "</body></html>",
        ]
    )


def _describe_all(results: Sequence[SeedResult]) -> str:
    clean = sum(each.is_clean for each in results)
    return f"{clean} of {len(results)} seeds are clean"


def _build_totals(results: Sequence[SeedResult]) -> str:
    totals = Counter[str]()
    for result in results:
        totals.update(result.records)
        totals.update(result.counts)
        totals["faults that took effect"] += _count_effective(result.faults)
        totals["findings"] += sum(result.finding_kinds.values())
    rows = (
        f'<tr><td>{escape(name)}</td><td class="number">{count:,}</td></tr>'
        for name, count in totals.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _build_kinds(results: Sequence[SeedResult]) -> str:
    counts = Counter((fault.kind, fault.status) for each in results for fault in each.faults)
    rows = "".join(
        f'<tr><td>{escape(kind)}</td><td class="number">{counts[kind, "effective"]}</td>'
        f'<td class="number">{counts[kind, "failed"] + counts[kind, "not possible"]}</td></tr>'
        for kind in sorted({kind for kind, _ in counts})
    )
    head = "<tr><th>Fault</th><th>took effect</th><th>did not</th></tr>"
    return _build_details("Faults by kind", f"<table>{head}{rows}</table>")


def _count_effective(faults: Iterable[FaultResult]) -> int:
    return sum(each.status == "effective" for each in faults)


def _build_seed(result: SeedResult) -> Iterable[str]:
    kind = "good" if result.is_clean else "bad"
    end = max([result.seconds, result.duration_s, *(each.healed_at or 0 for each in result.faults)])
    yield f'<h2 id="seed-{result.seed}">Seed {result.seed}</h2>'
    yield f'<p class="{kind}">{escape(result.verdict)}</p>'
    yield _label("faults", f"{end:.0f} s")
    yield _draw_faults(result.faults, end)
    rows = "".join(map(_build_fault_row, sorted(result.faults, key=lambda each: each.at)))
    head = "<tr><th>s</th><th>until</th><th>fault</th><th>effect</th></tr>"
    yield _build_details(f"{len(result.faults)} faults", f"<table>{head}{rows}</table>")
    for name, timeline in result.timelines.items():
        rate = max(timeline.deliveries, default=0) / BIN_S
        lag = max(timeline.lag_s, default=0.0)
        told = f"at most {rate:.0f} records/s, {lag:.1f} s old, {sum(timeline.gaps)} gaps"
        yield _label(name, told)
        yield _draw_timeline(timeline, end)
    for finding in result.findings:
        first, _, rest = finding.partition("\n")
        yield _build_details(first, f"<pre>{escape(rest)}</pre>", "bad")
    if result.error:
        yield f"<pre>{escape(result.error)}</pre>"


def _build_details(summary: str, body: str, kind: str = "") -> str:
    return f'<details><summary class="{kind}">{escape(summary)}</summary>{body}</details>'


def _label(left: str, right: str) -> str:
    return f'<div class="label"><span>{escape(left)}</span><span>{escape(right)}</span></div>'


def _build_fault_row(fault: FaultResult) -> str:
    until = "" if fault.healed_at is None else f"{fault.healed_at:.1f}"
    effect = fault.effect if fault.status == "effective" else f"{fault.status}: {fault.effect}"
    return (
        f'<tr><td class="number">{fault.at:.1f}</td><td class="number">{until}</td>'
        f"<td>{escape(fault.kind)}</td><td>{escape(effect)}</td></tr>"
    )


def _draw_faults(faults: Sequence[FaultResult], end: float) -> str:
    """Draw a bar for each fault, in as many rows as overlap."""
    row_ends: list[float] = []
    bars: list[str] = []
    for fault in sorted(faults, key=lambda each: each.at):
        until = fault.healed_at or end
        row = next((n for n, each in enumerate(row_ends) if each <= fault.at), len(row_ends))
        row_ends[row : row + 1] = [until]
        colour = "--fault" if fault.status == "effective" else "--none"
        text = escape(f"{fault.kind}: {fault.effect}")
        bars.append(
            f'<rect x="{fault.at:.2f}" y="{row * FAULT_HEIGHT + 1}" '
            f'width="{max(0.2, until - fault.at):.2f}" height="{FAULT_HEIGHT - 2}" '
            f'fill="var({colour})"><title>{text}</title></rect>'
        )
    return _draw(end, max(1, len(row_ends)) * FAULT_HEIGHT, bars)


def _draw_timeline(timeline: Timeline, end: float) -> str:
    """Draw the records as an area, their age as a line over it, and gaps as bars."""
    most = max([1, *timeline.deliveries])
    oldest = max([0.1, *timeline.lag_s])
    steps = [
        f"L{n * BIN_S:.2f} {ROW_HEIGHT * (1 - 0.92 * count / most):.1f}H{(n + 1) * BIN_S:.2f}"
        for n, count in enumerate(timeline.deliveries)
    ]
    area = f'<path d="M0 {ROW_HEIGHT}{"".join(steps)}V{ROW_HEIGHT}Z" fill="var(--rate)" '
    points = " ".join(
        f"{(n + 0.5) * BIN_S:.2f},{ROW_HEIGHT * (1 - 0.92 * lag / oldest):.1f}"
        for n, lag in enumerate(timeline.lag_s)
    )
    line = (
        f'<polyline points="{points}" fill="none" stroke="var(--lag)" stroke-width="1.5" '
        'vector-effect="non-scaling-stroke"/>'
    )
    gaps = [
        f'<rect x="{n * BIN_S:.2f}" y="0" width="{BIN_S}" height="6" fill="var(--gap)"/>'
        for n, count in enumerate(timeline.gaps)
        if count
    ]
    return _draw(end, ROW_HEIGHT, [f'{area}opacity="0.55"/>', line, *gaps])


def _draw(end: float, height: int, shapes: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {max(end, 1):.2f} {height}" height="{height}" '
        f'preserveAspectRatio="none" role="img">{"".join(shapes)}</svg>'
    )
