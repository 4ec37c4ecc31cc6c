"""Encode events once for all clients of the same view.

The `tail` merges the partitions of a topic set into one order. Start with `channel`, which encodes
each update of a tail as a chunk and keeps it in a `chunk_ring`; a budget bounds the rings of all
channels together. `dispatcher` hands an update to the channels that it concerns; `filters` and
`filter_index` decide which those are. `conflation` leaves only the latest record of each key.
`gateway.hub` creates tails and channels.
"""
