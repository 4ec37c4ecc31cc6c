"""Consumers: members of groups, what they own, and what they read ahead.

`consumer` is what the sidecar uses. A `group_member` does what `core.group` decides, `assignment`
follows what it owns, `prefetch` reads ahead, `commits` writes offsets. Start with `consumer`.
"""
