"""Define the sections `routes` and `admin`.

A route has paths, and the records that they stream, show or write. The admin API is a route on a
port of its own, for operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from gateway.config.capabilities import WITH_KINDS, AnyWith, StreamWith
from gateway.config.types.address import Host
from gateway.config.types.fields import Number, in_range, validate_text
from gateway.config.types.forms import Guarded
from gateway.config.types.path import PathPattern
from gateway.config.types.section import (
    Problem,
    Section,
    WrittenForm,
    as_list,
    as_mapping,
    create_value_error,
)
from gateway.config.types.substitution import find_closest

from .listen import AccessControl


def _validate_path(value: object) -> str:
    path = validate_text(value)
    try:
        PathPattern.parse(path)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    return path


RoutePath = Annotated[str, BeforeValidator(_validate_path)]


class When(Section):
    """A path of a route, and the method that it answers to."""

    path: RoutePath = Field(
        description="Path such as /events/{customer}; a `*` at the end matches the rest."
    )
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = Field(
        default=None, description="HTTP method; default GET, or POST with `capability: produce`."
    )

    @property
    def pattern(self) -> PathPattern:
        return PathPattern.parse(self.path)


class Route(Section):
    """Paths, what they do, and who may use them.

    A route with one path may have `path` and `method` instead of `when`, and the options of `with`
    beside them.
    """

    short_keys: ClassVar[tuple[str, ...]] = ("path", "topic", "topics")

    @classmethod
    def expand_written(cls, value: Any) -> WrittenForm | None:
        """Return a route with `when` and `with`, if it has their options itself."""
        form = super().expand_written(value)
        written = value if form is None else form.value
        if not isinstance(written, Mapping):
            return form
        route = dict(written)
        moves = {} if form is None else dict(form.moves)
        if "path" in route and "when" not in route:
            route["when"] = [{key: route.pop(key) for key in ("path", "method") if key in route}]
            moves |= {("when",): (), ("when", 0): ()}
        if "with" not in route:
            options = set(WITH_KINDS.list_options()) - {"method", "path"}
            shown = {key: route.pop(key) for key in list(written) if key in options}
            if shown:
                route["with"] = shown
                moves[("with",)] = ()
        old_spellings = {} if form is None else form.old_spellings
        return form if route == written else WrittenForm(route, moves, old_spellings)

    when: tuple[When, ...] = Field(
        description="The paths of a route with several.", json_schema_extra={"minItems": 1}
    )
    guarded: Guarded = Field(
        default={},
        description="Guards, each with the roles that it must grant; all must admit the request.",
        json_schema_extra={"not": {"enum": [[], {}]}},  # it would open the route to everybody
    )
    access_control: AccessControl | None = Field(
        default=None,
        alias="access-control",
        description="CORS of the route; default `listen.access-control`.",
    )
    with_: AnyWith = Field(alias="with", description="What the route does, and with which topics.")

    @classmethod
    def suggest_option(cls, key: str, value: object) -> str | None:
        own = (*cls.list_options(), *cls.short_keys)
        near = find_closest(key, [*own, *WITH_KINDS.list_options()])
        return f"did you mean '{near}'?" if near else None

    @classmethod
    def describe_unknown_key(cls, key: str) -> str | None:
        if key in ("path", "method"):
            return f"'{key}' belongs in `when`, which this route has; move it there"
        if key in WITH_KINDS.list_options():
            return f"'{key}' belongs in `with`, which this route has; move it there"
        return None

    shares_path: ClassVar[bool] = False
    """Whether another route has the same first path. `Settings` says so of a route. It is no field:
    routes are equal whatever others there are."""

    @property
    def path(self) -> str:
        return self.when[0].path

    @property
    def name(self) -> str:
        """Its name in metrics, logs, reports and the admin API: its first path as configured.

        If routes share it, those with another method than GET have the method before the path.
        """
        method = self.get_method(self.when[0])
        return f"{method} {self.path}" if self.shares_path and method != "GET" else self.path

    @property
    def stream(self) -> StreamWith:
        """The options of a route that is known to be a stream."""
        assert isinstance(self.with_, StreamWith)
        return self.with_

    @property
    def is_stream(self) -> bool:
        return isinstance(self.with_, StreamWith)

    def get_method(self, when: When) -> str:
        return when.method or self.with_.methods[0]

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if raw.get("when") in ([], ()):
            yield Problem(("when",), "is empty; list at least one path")
        options = as_mapping(raw.get("with"))
        kind = WITH_KINDS.find(options)
        for index, when in enumerate(as_list(raw.get("when"))):
            method = as_mapping(when).get("method")
            # Without options, nobody said yet what the method is for: that alone is reported.
            if options and kind is not None and isinstance(method, str):
                refusal = kind.check_method(method, options)
                if refusal is not None:
                    yield Problem(("when", index, "method"), refusal)


class Admin(Section):
    """A separate port with the admin API, where streams are listed and ended."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to bind. One that other machines can reach needs `guarded`.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=9901, description="Port to bind; 0 binds a free port."
    )
    guarded: Guarded = Field(
        default={},
        description="Guards, each with the roles that it must grant; all must admit the request.",
    )
    records: Guarded | None = Field(
        default=None,
        description="Guards of `guarded`, with the roles of operators who may look at records in "
        "the console; {} means all, default nobody.",
    )

    @property
    def route(self) -> Route:
        """The admin API as a route, because guards check requests to routes."""
        raw = {"when": [{"path": "/admin"}], "guarded": self.guarded, "with": {"topic": "admin"}}
        return Route.model_validate(raw)
