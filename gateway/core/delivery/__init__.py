"""Bring records to a back end: batches, verdicts, dead letters, replays.

Start with `delivery_queue`, which decides what is sent next; the types of its steps and rules are
in `batch`, and `verdict` says what an answer of the back end means. `claims` serves requests that
must be done once, `replay` describes records that are read once more. `gateway.sidecar` drives all
of them.
"""
