"""Find the reactive group whose back end a request is about."""

from __future__ import annotations

from gateway.config.sections.sidecar import DeadLetter, Group, Sidecar
from gateway.config.source.substitution import suggest
from gateway.sidecar.http.status import StatusError


def get_group(section: Sidecar, name: str | None) -> Group:
    """Return the group of a name, or the only one for None; raises StatusError 400."""
    groups = (
        {}
        if section.reactive is None
        else {group.group: group for group in section.reactive.groups}
    )
    if not groups:
        problem = "no back end is configured; add sidecar.reactive with the group that has it"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    if name is None and len(groups) == 1:
        return next(iter(groups.values()))
    if name is None:
        problem = f"several groups are configured; name one of {', '.join(groups)}"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    if name not in groups:
        problem = f"no group {name[:80]} is configured; {suggest(name, list(groups), 'add it')}"
        raise StatusError(400, problem, code="UNKNOWN_GROUP")
    return groups[name]


def get_dead_letter_ext(section: Sidecar, group: str | None) -> str:
    """Return the suffix of dead letter topics: the group's own, or the general one."""
    configured = () if section.reactive is None else section.reactive.groups
    for group_settings in configured:
        if group_settings.group == group:
            return group_settings.dead_letter_topic_ext
    return (section.dead_letter or DeadLetter()).topic_ext
