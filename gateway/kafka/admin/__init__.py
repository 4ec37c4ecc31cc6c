"""Administer a cluster: describe and change consumer groups, create topics, delete records.

`groups` lists and describes groups of both protocols and moves or deletes their offsets, `topics`
creates the topics that the gateway itself needs, and `delete_records` removes records. All get a
`Cluster`. The commands of the CLI and the admin API of the sidecar call this package. Start reading
with `groups`.
"""
