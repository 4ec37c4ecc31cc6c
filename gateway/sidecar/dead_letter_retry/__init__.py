"""Retry dead letters at the back end, and let programs read and write them.

A record becomes a dead letter in `reactive`: `core.delivery` gives a batch up, and
`reactive.dead_letters` writes it. Start with `component`, which has the routes. `queue` reads the
dead letters of one group in one topic, knows the group's position in them, and delivers them again,
in transactions; `watches` lets requests wait for them.
"""

from .component import DeadLetterComponent

__all__ = ["DeadLetterComponent"]
