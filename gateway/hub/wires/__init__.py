"""How entries are encoded: server-sent events, lines of JSON, WebSocket messages.

`wire` is the interface; `sse`, `lines` and `websocket` are its three kinds, `chunked` and `gzip`
wrap one. `control_events` has the events that are no records. Start with `wire`.
"""
