"""Retry dead letters at the back end, and let programs read and write them.

A record becomes a dead letter in `reactive`: `core.delivery` decides that a batch is given up, and
`reactive.dead_letters` writes it.

Start with `component`, which has the routes. `queue` reads the dead letters of one group in one
topic and knows how far the group is with them; `retry` delivers them again, or copies them back, in
transactions; `counts` summarizes a topic. `app` creates the component; `gateway dlq` uses the other
modules without it.
"""

from .component import DeadLetterComponent

__all__ = ["DeadLetterComponent"]
