"""Retry dead letters at the back end, and let programs read and write them.

A record becomes a dead letter in `reactive`: `core.delivery` gives a batch up, and
`reactive.dead_letters` writes it. Start with `component`, which has the routes. `queue` reads the
dead letters of one group in one topic, knows the group's position in them, and counts those of a
topic; `retry` delivers them again, or copies them back, in transactions. `gateway dlq` uses these
modules without the component.
"""

from .component import DeadLetterComponent

__all__ = ["DeadLetterComponent"]
