"""Convert between Avro and JSON by a schema.

`codec` is what `gateway.formats.codec` uses: it builds the types of `types` and `union` from a
schema, with the logical types of `logical`, and limits how much JSON some bytes may become with
`json_size`. Start reading with `codec`.
"""
