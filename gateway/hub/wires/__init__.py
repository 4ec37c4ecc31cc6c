"""Encode entries as server-sent events, lines of JSON or WebSocket messages.

`wire` is the interface; `sse`, `ndjson` and `websocket` implement it. `wrapping` wraps another
wire: it compresses it, with or without a dictionary, or frames it for HTTP. `control_events` has
the names and the data of the events that are not records, for all wires, and joins runs of them.
`models` decodes and changes records before filters and encoders see them. Start reading with
`wire`.
"""
