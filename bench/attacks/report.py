"""Format measured attacks as tables: a line for each attack and checkout, medians of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..figure import median
from ..results import format_number
from .attack import MEMORY_BYTES
from .catalog import ATTACKS

RunSummary = Mapping[str, Any]
"""Of one run: `Measured.summary`."""

MAX_RATIO = 2.0  # of p99 while attacked to p99 idle
MAX_CALLBACK_MS = 20.0
MAX_EXTRA_BYTES = 64 << 20  # bytes beside `memory` and the idle process
MAX_ID_CHARS = 512  # characters; above it ids would come in batches

COLUMNS = (
    "attack", "gateway", "p99 to idle", "idle p50", "idle p99", "p50", "p99", "max",
    "longest callback", "CPU", "of a core", "after", "idle MiB", "most", "left",
    "lost", "twice", "begin", "id", "back", "missed",
)  # fmt: skip
LEGEND = (
    "`p99 to idle`: p99 of /health/live while attacked to that before, in the same run; times in "
    "ms. `CPU`: seconds of the gateway while attacked, `of a core` its share before, `after` its "
    "share behind the attack. `begin`: bytes of the newcomer's first block, `id`: characters of "
    "the longest id of honest clients, `back`: what they were answered when they came back. Goals "
    f"that were missed: `latency` (a ratio above {MAX_RATIO:g}), `loop` (a callback of more "
    f"than {MAX_CALLBACK_MS:g} ms of CPU), `memory` (above idle + {MEMORY_BYTES >> 20} MiB of "
    f"`memory` + {MAX_EXTRA_BYTES >> 20} MiB), `records` (lost, twice, an id above "
    f"{MAX_ID_CHARS}, or somebody was not let in), "
    "`bounds` (the attacker was given more than its limits say)."
)


def summarize(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the medians of several runs; of what must not happen, the worst."""
    idle, hit = [each["idle"] for each in runs], [each["attacked"] for each in runs]
    callbacks = [each["callback"] for each in runs if each["callback"] is not None]
    return {
        "ratio": median([b["p99"] / a["p99"] for a, b in zip(idle, hit, strict=True)]),
        "idle p50": median([each["p50"] for each in idle]),
        "idle p99": median([each["p99"] for each in idle]),
        "p50": median([each["p50"] for each in hit]),
        "p99": median([each["p99"] for each in hit]),
        "max": median([each["max"] for each in hit]),
        "callback": 1000 * median(callbacks) if callbacks else None,
        "cpu": median([each["cpu"] for each in runs]),
        "cpu_idle": median([each["cpu_idle"] for each in runs]),
        "cpu_after": median([each["cpu_after"] for each in runs]),
        "memory": [median([each["memory"][n] for each in runs]) for n in range(3)],
        "lost": max(each["lost"] for each in runs),
        "twice": max(each["twice"] for each in runs),
        "begin": max(each["begin"] for each in runs),
        "let_in": all(each["begin"] for each in runs),
        "id": max(each["id_length"] for each in runs),
        "back": sorted({answer for each in runs for answer in each["back"]}),
        "notes": sorted({note for each in runs for note in each["notes"]}),
        "name": max(runs, key=lambda each: each["callback"] or 0)["callback_name"],
        "counts": runs[-1]["counts"],
        "n": len(runs),
    }


def find_missed_goals(attack: str, summary: Mapping[str, Any]) -> list[str]:
    """Return which goals a summary misses."""
    idle, most, _ = summary["memory"]
    kept = (
        not summary["lost"]
        and not summary["twice"]
        and summary["id"] <= MAX_ID_CHARS
        and summary["let_in"]
    )
    judged = {
        "latency": summary["ratio"] <= MAX_RATIO,
        "loop": summary["callback"] is not None and summary["callback"] <= MAX_CALLBACK_MS,
        "memory": most <= idle + MEMORY_BYTES + MAX_EXTRA_BYTES,
        "records": kept and summary["back"] == ["200"],
        "bounds": all(
            summary["counts"].get(name, 0) <= most
            for name, most in ATTACKS[attack].max_counts.items()
        ),
    }
    return [name for name, met in judged.items() if not met]


def render_markdown(
    facts: Mapping[str, Any], runs: Mapping[tuple[str, str], Sequence[RunSummary]]
) -> str:
    """Return the page of a run.

    Args:
        facts: The machine and the versions.
        runs: By attack and gateway.
    """
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "date")
    lines = [f"# Attacks, {facts.get('date', '')}", "", f"{told}.", "", LEGEND, ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    summaries = {key: summarize(each) for key, each in runs.items() if each}
    lines += [_render_row(*key, one) for key, one in summaries.items()]
    lines += [
        "",
        *(f"- `{name}`: {ATTACKS[name].description}" for name in dict.fromkeys(a for a, _ in runs)),
    ]
    lines += ["", *_render_remarks(summaries)]
    return "\n".join(lines) + "\n"


def _render_row(attack: str, gateway: str, summary: Mapping[str, Any]) -> str:
    times = [summary[name] for name in ("ratio", "idle p50", "idle p99", "p50", "p99", "max")]
    callback = "" if summary["callback"] is None else format_number(summary["callback"])
    cores = [
        format_number(summary["cpu"]),
        f"{summary['cpu_idle']:.0%}",
        f"{summary['cpu_after']:.0%}",
    ]
    sizes = [f"{each / 2**20:,.0f}" for each in summary["memory"]]
    sent = [f"{summary[name]:,}" for name in ("lost", "twice", "begin", "id")]
    back = ", ".join(summary["back"]) or "no"
    cells = [attack, gateway, *map(format_number, times), callback, *cores, *sizes, *sent, back]
    return (
        "| " + " | ".join([*cells, ", ".join(find_missed_goals(attack, summary)) or "none"]) + " |"
    )


def _render_remarks(summaries: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    for (attack, gateway), one in summaries.items():
        counted = ", ".join(f"{name} {count:,.0f}" for name, count in one["counts"].items())
        yield f"- {attack}, {gateway}: {one['n']} runs; {counted}; longest: {one['name'] or 'none'}"
        for note in one["notes"]:
            yield f"  - {note}"
