"""The servers that are compared, each behind the same few verbs."""
