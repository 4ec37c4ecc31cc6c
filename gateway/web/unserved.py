"""What can be configured, and is not served by this version."""

from __future__ import annotations

from ..config import Settings
from ..errors import ConfigError


def refuse_unserved(settings: Settings) -> None:
    """What is configured but not built is refused, never ignored. Raises ConfigError."""
    problems: list[str] = []
    for cluster, kafka in settings.clusters.items():
        way = f"kafka.{cluster}" if cluster else "kafka"
        for n, topic in enumerate(kafka.topics):
            for name, model in (("key", topic.key), ("value", topic.value)):
                if model.model not in ("bytes", "string", "json"):
                    what = f"model {model.model} is not served by this version"
                    problems.append(f"{way}.topics[{n}].{name}: {what}")
    if problems:
        raise ConfigError([f"{problem}; remove it" for problem in problems])
