"""Channels: events that are encoded once for all clients of the same view.

`dispatcher` hands a turn of the tail to the channels that it concerns, `filters` and `filter_index`
decide which those are, `channel` encodes and keeps chunks, `rings` bounds what all channels keep,
`conflation` leaves only the latest record of each key. Start with `channel`.
"""
