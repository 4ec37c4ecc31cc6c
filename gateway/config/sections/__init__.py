"""The sections of the configuration, as pydantic models. Start with `settings`."""
