"""Encode events once for all clients of the same view.

Start with `channel`, which encodes each update of a tail as a `chunk` and keeps it in a
`chunk_ring`. `dispatcher` hands an update to the channels that it concerns; `filters`, `conditions`
and `filter_index` decide which those are. `ring_budget` bounds the rings of all channels together,
`conflation` leaves only the latest record of each key, and `byte_counts` sums up each client's
bytes. `gateway.hub.fanout` creates the channels.
"""
