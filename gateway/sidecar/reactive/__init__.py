"""Deliver batches of a group's records to a back end, by POST.

Start with `component`, which has the groups and lets operators see and steer them. A `group` is one
member of a consumer group; it spreads its partitions over `lanes`, which carry out the decisions of
`core.delivery`: send a batch (`backend`), write `dead_letters`, commit. `dead_letter_retry`,
`replay` and `ksqldb` use the modules for the back end and for dead letters.
"""

from .component import ReactiveComponent

__all__ = ["ReactiveComponent"]
