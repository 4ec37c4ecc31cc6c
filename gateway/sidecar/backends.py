"""Whose back end: the reactive groups of the configuration, by their names."""

from __future__ import annotations

from gateway.config.sections.sidecar import DeadLetter, Group, Sidecar
from gateway.config.source.expression import suggest
from gateway.sidecar.http.status import StatusError


def get_group(section: Sidecar, name: str | None) -> Group:
    """None: the only one. Raises Refusal 400."""
    groups = (
        {} if section.reactive is None else {each.group: each for each in section.reactive.groups}
    )
    if not groups:
        what = "no back end is configured; add sidecar.reactive with the group that has it"
        raise StatusError(400, what, code="UNKNOWN_GROUP")
    if name is None and len(groups) == 1:
        return next(iter(groups.values()))
    if name is None:
        raise StatusError(
            400, f"which group?; name one of {', '.join(groups)}", code="UNKNOWN_GROUP"
        )
    if name not in groups:
        what = f"no group {name[:80]} is configured; {suggest(name, list(groups), 'add it')}"
        raise StatusError(400, what, code="UNKNOWN_GROUP")
    return groups[name]


def get_dead_letter_ext(section: Sidecar, group: str | None) -> str:
    """What topics of dead letters end in: those of a group, or in general."""
    configured = () if section.reactive is None else section.reactive.groups
    for each in configured:
        if each.group == group:
            return each.dead_letter_topic_ext
    return (section.dead_letter or DeadLetter()).topic_ext
