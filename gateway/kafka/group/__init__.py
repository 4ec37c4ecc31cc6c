"""Consume partitions as a member of a consumer group, or partitions that are assigned by hand.

The sidecar uses `GroupConsumer` (`consumer`). A `GroupMember` sends the requests that the state
machines of `gateway.core.group` decide on, `assignment` follows which partitions the member owns,
`prefetch_fetcher` fetches their records ahead, and `group_offsets` commits offsets.
`consumer_options` says how a consumer joins and reads. Start reading with `consumer`.
"""
