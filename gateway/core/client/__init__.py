"""Decide where one client of a stream stands, and what it is sent next.

Start with `subscription`. It reads shared chunks by its `shared_cursor`, and partitions in which it
stands elsewhere by a `private_reader`, whose parts are `private_positions`, `read_buffer` (the
records that were read for it) and `catch_up` (those that it is sent). A `read_answer` was read from
Kafka once for many clients. `write_batch` collects the bytes of one turn. `snapshot`,
`snapshot_blocks` and `table_snapshot` serve streams that begin with the latest record of each key.
`terms` has the client's wishes, and `end_reason` why a stream ends; `slow_client_policy` and
`throttle` are how it is sent less than all. `gateway.hub.fanout` creates the subscriptions.
"""
