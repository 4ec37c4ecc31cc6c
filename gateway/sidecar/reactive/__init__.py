"""Deliver batches of a group's records to a back end, by POST.

Start with `component`, which has the groups and lets operators see and steer them. A `group` is one
member of a consumer group; it spreads its partitions over lanes, and a `lane_runner` carries out
the decisions of `core.delivery` for a lane: send a batch (`batch_encoder`, `backend`), write dead
letters (`dead_letters`, `message`), commit (`offset_committer`). `state` describes a group.
`dead_letter_retry`, `replay` and `ksqldb` use the modules for the back end and for dead letters.
"""

from .component import ReactiveComponent

__all__ = ["ReactiveComponent"]
