"""Encode entries as server-sent events, lines of JSON or WebSocket messages.

`wire` is the interface; `sse`, `ndjson` and `websocket` implement it, and `chunked`, `gzip` and
`dictionary` wrap another wire (`wrapping`). `control_events` has the names and the data of the
events that are not records, for all wires, and `grouped` joins runs of them. `models` and
`transform` decode and change records before filters and encoders see them. Start reading with
`wire`.
"""
