"""Make the gateway's decisions without I/O, as pure functions and small state machines.

Nothing here imports asyncio, opens a socket or reads a clock: callers pass the time and carry out
what they are handed. The layers above (`gateway.kafka`, `gateway.hub`, `gateway.sidecar`) call it.

To follow a record, read `log` (what a partition holds), then `channel` (what is encoded once for
many clients), then `client` (what one client is sent next). `token` has the format of resume
tokens, `produce` what clients write, and `group` and `delivery` serve the sidecar's consumers.
`error_code` names the errors that brokers answer, and `backoff` says when to try again.
"""
