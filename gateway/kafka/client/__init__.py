"""The client of one cluster: connections, metadata, coordinators, offsets.

`cluster` is what everything else is given. `connections` are shared by all who talk to a broker,
`metadata` watches topics, `outages` says in the log what cannot be used. Start with `cluster`.
"""
