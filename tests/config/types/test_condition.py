"""The filters of a route as the file has them."""

from __future__ import annotations

from typing import Any

from gateway.config import Condition, Template, loads

FILE = """\
kafka: {servers: [a:1], topics: [{name: orders}]}
routes:
  - when: [{path: "/e/{tenant}"}]
    with:
      topic: orders
      filters:
        - key: {in: [a, 7, true, "${params.tenant}"]}
          headers: {trace: {exists: false}, retries: 3, kind: {prefix: "${query.kind}-"}}
          value:
            /amount: {gte: 10, lt: "${query.max}"}
            /ratio: 1.50
            /big: {gt: "18446744073709551617"}
            /paid: true
      fields: [/id, /customer/name]
      clientFilters: true
      clientFields: ${env.FIELDS}
"""


def test_conditions_are_read_and_their_holes_filled_in():
    options = loads(FILE, environ={"FIELDS": "true"}).routes[0].with_
    assert options.fields == ("/id", "/customer/name")
    assert (options.client_filters, options.client_fields) == (True, True)
    given: dict[str, Any] = {
        "params": {"tenant": "${params.x}"},
        "query": {"kind": "new", "max": "20"},
    }
    (one,) = options.filters
    assert one.render(lambda template: template.render(**given)) == {
        "key": {"in": ["a", "7", "true", "${params.x}"]},
        "headers": {"trace": {"exists": False}, "retries": "3", "kind": {"prefix": "new-"}},
        "value": {
            "/amount": {"gte": "10", "lt": "20"},
            "/ratio": "1.5",
            "/big": {"gt": "18446744073709551617"},
            "/paid": "true",
        },
    }


def test_every_template_is_told_also_of_conditions():
    (one,) = loads(FILE, environ={"FIELDS": "false"}).routes[0].with_.filters
    holes = {hole.text for template in one.templates for hole in template.placeholders}
    assert holes == {"params.tenant", "query.kind", "query.max"}


def test_a_text_is_a_template_and_an_object_a_condition():
    (one,) = loads(FILE, environ={"FIELDS": "false"}).routes[0].with_.filters
    assert isinstance(one.key, Condition)
    assert isinstance(one.value["/ratio"], Template)


def test_what_is_not_said_leaves_clients_no_choice():
    text = "kafka: {servers: [a:1], topics: [{name: o}]}\n"
    options = loads(text + "routes: [{when: [{path: /e}], with: {topic: o}}]\n").routes[0].with_
    assert (options.allow, options.fields) == ((), ())
    assert (options.client_filters, options.client_fields) == (False, False)
