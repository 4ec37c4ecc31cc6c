"""Write what a tail publishes to clients: encode once per view, send to many.

A `Hub` has a `SharedTail` for each set of topics, and each tail has a `Channel` for each view. A
channel encodes what is published once; a `Client` is a cursor into its ring that writes to an
outlet. The `Broadcaster` writes new chunks to all attached clients of a channel, its `Audience`. A
`SharedCatchUp` reads once for many clients that resume from the same position. Start reading with
`hub`, then `client` and `broadcaster`.
"""
