"""The report of a directory of results: a summary, and a page for each seed, without a network.

The summary has the totals, what was found, how often each fault took effect, and a line for each
seed. The page of a seed has its verdict, a bar for each of its faults, and below these, on the same
axis of time, for each class of clients how many records came, how old they were, and where gaps
were told. Charts are SVG without text, stretched to the width of the page, so that labels stay
readable on a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import combinations
from pathlib import Path

from support.stream_check import FindingKind

from .results import BIN_S, FaultResult, SeedResult, Timeline

ROW_HEIGHT = 44  # of a chart, in pixels
TICK_S = 10
# What is counted also where there is none.
COUNTED_FINDINGS: Sequence[str] = (
    FindingKind.LOST, FindingKind.DUPLICATE, FindingKind.REORDERED, FindingKind.OUTSIDE,
    FindingKind.PHANTOM, FindingKind.ABORTED, FindingKind.ALTERED,
)  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5c6a7c; --back: #ffffff;
  --line: #d8dee6; --rate: #2f6fb4; --lag: #c26a00; --gap: #8a3ffc; --good: #18794e;
  --bad: #c22a2a; --fault: #93a4b8; --none: #e0b7b7; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e9f0; --soft: #9aa8b8; --back: #12171e;
  --line: #2c3642; --rate: #6aa9ec; --lag: #f0a64b; --gap: #be95ff; --good: #4cc38a;
  --bad: #ff8585; --fault: #5d6f84; --none: #5f3a3a; } }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; color: var(--text);
  background: var(--back); font: 15px/1.45 system-ui, sans-serif; }
a { color: var(--rate); } h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { text-align: left; padding: .2rem .5rem .2rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
td:last-child, th:last-child { padding-right: 0; }
td { overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
svg { display: block; width: 100%; background: color-mix(in srgb, var(--line) 25%, transparent); }
.label { display: flex; justify-content: space-between; gap: 1rem; color: var(--soft);
  font-size: .8rem; margin-top: .4rem; }
.label span:last-child { text-align: right; }
.track { position: relative; height: 18px; font-size: .75rem; line-height: 18px;
  white-space: nowrap; }
.track i { position: absolute; top: 3px; bottom: 3px; min-width: 2px; }
.track span { position: absolute; padding: 0 .3rem; }
.ticks { color: var(--soft); border-top: 1px solid var(--line); }
.ticks span { padding: 0 .1rem; border-left: 1px solid var(--line); }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .8rem; }
summary { cursor: pointer; margin: .6rem 0; }
.key span { margin-right: 1rem; white-space: nowrap; } .key i { display: inline-block; width: .8rem;
  height: .8rem; margin-right: .3rem; vertical-align: -.1rem; }
"""


def write_report(results: Sequence[SeedResult], directory: Path) -> Path:
    """Write the summary and the pages of seeds, and return the path of the summary."""
    directory.mkdir(parents=True, exist_ok=True)
    for result in results:
        page = directory / _get_page(result.seed)
        title = f"Seed {result.seed}: {result.state}"
        page.write_text(build_page(title, _iter_seed(result)), encoding="utf-8")
    path = directory / "index.html"
    path.write_text(build_summary(results), encoding="utf-8")
    return path


def _get_page(seed: int) -> str:
    return f"seed-{seed}.html"


def build_summary(results: Sequence[SeedResult]) -> str:
    """Build the page with the totals and a line for each seed, linked to its page."""
    clean = sum(each.is_clean for each in results)
    sections = (
        ("Totals", _build_totals(results)),
        ("Found", _build_findings(results)),
        ("Seeds", _build_seeds(results)),
        ("Faults", _build_kinds(results)),
    )
    body = (f"<h2>{name}</h2>{table}" for name, table in sections)
    return build_page(f"Faults: {clean} of {len(results)} seeds are clean", body)


def build_page(title: str, body: Iterable[str]) -> str:
    """Build a page that needs nothing else."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
        ]
    )


def _build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Build a table of HTML cells; all columns but the first have numbers."""
    kinds = ["", *[' class="number"'] * (len(head) - 1)]
    titles = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, head, strict=True))
    lines = (
        "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        for row in rows
    )
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _build_totals(results: Sequence[SeedResult]) -> str:
    totals = Counter[str]()
    for result in results:
        totals.update(result.records)
        totals.update(result.counts)
        totals["faults that took effect"] += _count_effective(result.faults)
    totals["pairs of kinds in effect together"] = len(list_pairs(results))
    rows = ((escape(name), f"{count:,}") for name, count in totals.items())
    return _build_table(("", "in all seeds"), rows)


def list_pairs(results: Iterable[SeedResult]) -> set[frozenset[str]]:
    """Return the pairs of kinds of faults that were in effect at the same time in some seed."""
    return {
        frozenset((first.kind, second.kind))
        for result in results
        for first, second in combinations(result.faults, 2)
        if _overlap(first, second)
    }


def _overlap(first: FaultResult, second: FaultResult) -> bool:
    if first.effect_at is None or second.effect_at is None:
        return False
    begins = max(first.effect_at, second.effect_at)
    return all(each.healed_at is None or begins < each.healed_at for each in (first, second))


def _build_findings(results: Sequence[SeedResult]) -> str:
    found = Counter[str](dict.fromkeys(COUNTED_FINDINGS, 0))
    for result in results:
        found.update(result.finding_kinds)
    rows = (
        (escape(str(kind)), f'<span class="bad">{count:,}</span>' if count else "0")
        for kind, count in found.items()
    )
    return _build_table(("", "in all seeds"), rows)


def _build_seeds(results: Sequence[SeedResult]) -> str:
    rows = (
        (
            f'<a href="{_get_page(each.seed)}">{each.seed}</a> '
            f'<span class="{_get_class(each)}">{each.state}</span>',
            f"{_count_effective(each.faults)} of {len(each.faults)}",
            f"{each.records.get('acknowledged', 0):,}",
            f"{each.counts.get('deliveries', 0):,}",
            f"{each.counts.get('gaps told', 0):,}",
        )
        for each in results
    )
    return _build_table(("Seed", "Faults", "Acked", "Deliveries", "Gaps"), rows)


def _get_class(result: SeedResult) -> str:
    return "good" if result.is_clean else "bad"


def _build_kinds(results: Sequence[SeedResult]) -> str:
    counts = Counter((fault.kind, fault.status) for each in results for fault in each.faults)
    statuses = ("effective", "failed", "not possible")
    rows = (
        (escape(kind), *(str(counts[kind, status]) for status in statuses))
        for kind in sorted({kind for kind, _ in counts})
    )
    return _build_table(("Kind", "Took effect", "Failed", "Not possible"), rows)


def _count_effective(faults: Iterable[FaultResult]) -> int:
    return sum(each.status == "effective" for each in faults)


def _iter_seed(result: SeedResult) -> Iterable[str]:
    end = max([result.seconds, result.duration_s, *(each.healed_at or 0 for each in result.faults)])
    yield f'<p><a href="index.html">All seeds</a></p><p>{escape(result.verdict)}</p>'
    for finding in result.findings:
        first, _, rest = finding.partition("\n")
        yield _build_details(first, f"<pre>{escape(rest)}</pre>", "bad")
    if result.error:
        yield f'<pre class="bad">{escape(result.error)}</pre>'
    faults = sorted(result.faults, key=lambda each: each.at)
    yield "<h2>Faults</h2>"
    yield from (_draw_fault(each, end) for each in faults)
    yield _draw_ticks(end)
    rows = "".join(map(build_fault_row, faults))
    head = "<tr><th>s</th><th>until</th><th>fault</th><th>effect</th></tr>"
    yield _build_details("How each effect was seen", f"<table>{head}{rows}</table>")
    yield "<h2>What clients got</h2>"
    yield (
        '<p class="key"><span><i style="background:var(--rate)"></i>records/s</span>'
        '<span><i style="background:var(--lag)"></i>age of the oldest</span>'
        '<span><i style="background:var(--gap)"></i>gap told</span></p>'
    )
    for name, timeline in result.timelines.items():
        rate = max(timeline.deliveries, default=0) / BIN_S
        lag = max(timeline.lag_s, default=0.0)
        told = f"up to {rate:.0f}/s, {lag:.1f} s old; {sum(timeline.gaps)} gaps"
        yield f'<div class="label"><span>{escape(name)}</span><span>{told}</span></div>'
        yield _draw_timeline(timeline, end)
    yield _draw_ticks(end)


def _build_details(summary: str, body: str, kind: str = "") -> str:
    return f'<details><summary class="{kind}">{escape(summary)}</summary>{body}</details>'


def build_fault_row(fault: FaultResult) -> str:
    """Return the row of a table: when it began, when it was healed, its kind and effect."""
    until = "" if fault.healed_at is None else f"{fault.healed_at:.1f}"
    effect = fault.effect if fault.status == "effective" else f"{fault.status}: {fault.effect}"
    return (
        f'<tr><td class="number">{fault.at:.1f}</td><td class="number">{until}</td>'
        f"<td>{escape(fault.kind)}</td><td>{escape(effect)}</td></tr>"
    )


def _draw_fault(fault: FaultResult, end: float) -> str:
    """Draw the bar of a fault, with its name on the side that has more room."""
    begin = 100 * fault.at / end
    until = 100 * (fault.healed_at or end) / end
    colour = "--fault" if fault.status == "effective" else "--none"
    side = f"right:{100 - begin:.2f}%" if begin > 100 - until else f"left:{until:.2f}%"
    name = fault.kind if fault.status == "effective" else f"{fault.kind}: {fault.status}"
    return (
        f'<div class="track"><i style="left:{begin:.2f}%;width:{until - begin:.2f}%;'
        f'background:var({colour})"></i><span style="{side}">{escape(name)}</span></div>'
    )


def _draw_ticks(end: float) -> str:
    ticks = (
        f'<span style="left:{100 * at / end:.2f}%">{at} s</span>'
        for at in range(0, int(end), TICK_S)
        if at + TICK_S / 2 < end
    )
    return f'<div class="track ticks">{"".join(ticks)}</div>'


def _draw_timeline(timeline: Timeline, end: float) -> str:
    """Draw the records as an area, their age as lines over it, and gaps as bars."""
    most = max([1, *timeline.deliveries])
    oldest = max([0.1, *timeline.lag_s])
    ticks = [
        f'<path d="M{at} 0V{ROW_HEIGHT}" stroke="var(--line)" vector-effect="non-scaling-stroke"/>'
        for at in range(TICK_S, int(end), TICK_S)
    ]
    steps = "".join(
        f"V{ROW_HEIGHT * (1 - 0.92 * count / most):.0f}h{BIN_S}" for count in timeline.deliveries
    )
    area = f'<path d="M0 {ROW_HEIGHT}{steps}V{ROW_HEIGHT}Z" fill="var(--rate)" opacity="0.55"/>'
    # Where nothing comes, nothing has an age.
    ages = "".join(
        f"M{n * BIN_S:g} {ROW_HEIGHT * (1 - 0.92 * lag / oldest):.0f}h{BIN_S}"
        for n, (count, lag) in enumerate(zip(timeline.deliveries, timeline.lag_s, strict=True))
        if count
    )
    line = (
        f'<path d="{ages}" fill="none" stroke="var(--lag)" stroke-width="2" '
        'vector-effect="non-scaling-stroke"/>'
    )
    gaps = [
        f'<rect x="{n * BIN_S:g}" y="0" width="{BIN_S}" height="6" fill="var(--gap)"/>'
        for n, count in enumerate(timeline.gaps)
        if count
    ]
    return (
        f'<svg viewBox="0 0 {max(end, 1):.2f} {ROW_HEIGHT}" height="{ROW_HEIGHT}" '
        f'preserveAspectRatio="none" role="img">{"".join([*ticks, area, line, *gaps])}</svg>'
    )
