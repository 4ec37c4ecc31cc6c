"""Draw who read each partition when, while a member was replaced, as an SVG without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from .replacement_result import Replacement

WIDTH, LEFT, ROW_HEIGHT, HEAD_HEIGHT, FOOT_HEIGHT = 960, 40, 9, 32, 30
SILENCE_COLOUR = "#f6d5d2"
BEFORE_S, AFTER_S = 1.0, 7.5  # what is drawn, around the beginning of a replacement
COLOURS = ("#1a73e8", "#188038", "#d93025", "#f9ab00")  # of the members, the last one is new


def draw_timelines(runs: Sequence[Replacement]) -> str:
    """Draw one panel for each run, with a row for each partition, all on one axis of time."""
    heights = [HEAD_HEIGHT + ROW_HEIGHT * len(run.silences) for run in runs]
    height = sum(heights) + FOOT_HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_draw_key(),
    ]
    top = 20
    for run, own_height in zip(runs, heights, strict=True):
        parts += _draw_panel(run, top)
        top += own_height
    parts += _draw_axis(top)
    return "\n".join([*parts, "</svg>\n"])


def _to_x(seconds: float) -> float:
    share = (min(max(seconds, -BEFORE_S), AFTER_S) + BEFORE_S) / (BEFORE_S + AFTER_S)
    return round(LEFT + share * (WIDTH - LEFT - 10), 1)


def _draw_key() -> Iterator[str]:
    names = ("member 1", "member 2", "the one that is replaced, or comes back", "an additional one")
    for colour, name, x in zip(COLOURS, names, (LEFT, 140, 240, 490), strict=True):
        yield f'<rect x="{x}" y="4" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="13" fill="#222">{name}</text>'
    yield f'<rect x="620" y="4" width="10" height="10" fill="{SILENCE_COLOUR}"/>'
    yield '<text x="634" y="13" fill="#222">silence</text>'


def _draw_panel(run: Replacement, top: int) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="{top + 16}" fill="#222">{escape(run.case)}</text>'
    first_row, bottom = (
        top + HEAD_HEIGHT - 4,
        top + HEAD_HEIGHT - 4 + ROW_HEIGHT * len(run.silences),
    )
    for partition in range(len(run.silences)):
        y = first_row + ROW_HEIGHT * partition
        yield _draw_small_text(LEFT - 6, y + 7, partition)
        reads = [each for each in run.reads if each[0] == partition]
        yield _draw_bar(y, reads[0][2], reads[-1][3], SILENCE_COLOUR)
        for _, member, begin, end in reads:
            yield _draw_bar(y, begin, end, COLOURS[member])
    for at, name in ((run.ended_at, "ends"), (run.joined_at, "joins")):
        if at is not None:
            x = _to_x(at)
            yield f'<path d="M{x} {first_row - 2}V{bottom}" stroke="#222" stroke-dasharray="2 2"/>'
            yield f'<text x="{x + 3}" y="{first_row - 3}" font-size="8" fill="#222">{name}</text>'


def _draw_bar(y: float, begin: float, end: float, colour: str) -> str:
    width = round(max(0.6, _to_x(end) - _to_x(begin)), 1)
    return (
        f'<rect x="{_to_x(begin)}" y="{y}" width="{width}" height="{ROW_HEIGHT - 2}" '
        f'fill="{colour}"/>'
    )


def _draw_axis(top: int) -> Iterator[str]:
    for second in range(int(-BEFORE_S), math.ceil(AFTER_S)):
        yield _draw_small_text(_to_x(second), top + 14, f"{second} s", anchor="middle")


def _draw_small_text(x: float, y: float, text: object, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" font-size="8" fill="#555" text-anchor="{anchor}">{text}</text>'
