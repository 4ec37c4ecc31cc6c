"""Decide where one client of a stream stands, and what it is sent next.

Start with `subscription`. It reads shared chunks by its `shared_cursor`, and partitions in which it
stands elsewhere by a `private_reader`, whose parts are its `PrivatePositions`, `read_buffer` (the
records that were read for it) and `catch_up` (those that it is sent). `snapshot` serves streams
that begin with the latest record of each key. `terms` has the client's wishes, why a stream ends,
and how it is sent less than all. `gateway.hub.fanout` creates the subscriptions.
"""
