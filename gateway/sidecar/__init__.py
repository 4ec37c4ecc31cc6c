"""Serve Kafka over HTTP to back ends in any language: writing, reading, and calls with batches.

Start with `app`: `SidecarApplication` creates one component (`context.Component`) for each section
of the YAML's `sidecar`, gives all of them the same `context.Context`, and serves their routes as
one ASGI application. `gateway.web` mounts it beside the streams, or serves it alone (`gateway
sidecar`). `http` has what all components need of HTTP; `producer`, `consumer`, `reactive`,
`ksqldb`, `dead_letter_retry`, `replay`, `audit`, `admin` and `health` are the components.
"""
