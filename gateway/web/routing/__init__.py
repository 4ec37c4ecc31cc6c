"""Turn a request into a view: paths, queries, access and limits.

`routes` finds the route of a request and admits its client; `paths`, `query` and `views` say what
it asks for. `limits` bounds connections and requests by the `shared_counts` of all workers.
`open_streams` has all streams of the process, on any wire, to change and end them. The packages
`streams`, `websocket` and `exchange` call it. Start with `routes`.
"""
