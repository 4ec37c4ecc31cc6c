"""Encode events once for all clients of the same view.

Start with `channel`, which encodes each update of a tail as a chunk and keeps it in a `chunk_ring`;
a budget bounds the rings of all channels together. `dispatcher` hands an update to the channels
that it concerns; `filters` and `filter_index` decide which those are. `conflation` leaves only the
latest record of each key. `gateway.hub.fanout` creates the channels.
"""
