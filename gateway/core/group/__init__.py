"""Decide what members of consumer groups send next, and what the answers do to them.

Start with `member`, which says how to drive a member of either protocol. `consumer_member` is
KIP-848 and `classic_member` KIP-429. `assignor` divides partitions among classic members.
`partition_state` is one partition that a consumer holds. `gateway.kafka.group` is the shell that
sends the requests.
"""
