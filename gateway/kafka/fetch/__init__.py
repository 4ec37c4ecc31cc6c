"""Fetching: from the partitions that are wanted to entries in offset order.

`fetcher` drives a `core.log.partition_reader` for each partition over a `broker_lane` for each
broker; `batches` and `decoding` make entries of bytes. `scan` and `piece` read a bounded range
once. Start with `fetcher`.
"""
