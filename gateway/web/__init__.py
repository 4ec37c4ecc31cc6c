"""HTTP and WebSocket: from requests to streams, and errors as problem details.

Sees the exceptions of `gateway.errors`, never Kafka's error codes. A request enters at
`http.transport`, finds its route in `routing`, and is answered by `streams`, `websocket` or
`exchange`; `app` puts all of it together. Start with `app.app`.
"""
