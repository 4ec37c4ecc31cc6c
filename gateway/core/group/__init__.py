"""Members of consumer groups: what they send next, and what answers do to them.

`member` is the interface of both protocols: `classic_member` (KIP-429) and `consumer_member`
(KIP-848). `assignor` divides partitions among classic members; `partition_state` is one partition
that a consumer holds. Start with `member`.
"""
