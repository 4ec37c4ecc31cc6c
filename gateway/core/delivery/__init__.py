"""Bring records to a back end: batches, verdicts, dead letters, replays.

Start with `delivery_queue`, which decides on the next step; `verdict` judges the answers of the
back end. `claims` serves requests that must be done once, `replay` describes records that are read
once more. `gateway.sidecar` drives all of them.
"""
