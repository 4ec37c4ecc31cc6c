"""The part `consumer`: instances that are members of groups, asked over HTTP.

`consumers` has the operations, an `instance` is one member, `dialect` the two APIs that it is asked
by, `stateless` reads records without a group. Start with `consumers`.
"""
