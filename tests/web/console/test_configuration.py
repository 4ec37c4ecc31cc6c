"""What differs between the configuration in effect and its file, and never a secret."""

from __future__ import annotations

from gateway.config import Settings, loads
from gateway.errors import ConfigError
from gateway.web.console.configuration import build_report, read_file_settings


def build_settings(topic: str = "orders", password: str = "hunter2") -> Settings:
    return loads(
        f"""
kafka:
  servers: [a:9092]
  topics: [{{name: {topic}}}]
  security: {{sasl: {{mechanism: plain, username: me, password: {password}}}}}
""",
        name="test",
    )


def test_an_unchanged_file_says_the_same():
    running = build_settings()
    report = build_report(running, read_file_settings(build_settings, running))
    assert (report["state"], report["diff"]) == ("same", [])
    assert "orders" in report["loaded"] and "hunter2" not in report["loaded"]


def test_a_changed_line_is_shown_as_a_difference():
    running = build_settings()
    report = build_report(running, read_file_settings(lambda: build_settings("stock"), running))
    assert report["state"] == "differs"
    changed = [
        line for line in report["diff"] if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert [(line[0], line[1:].split()[-1]) for line in changed] == [
        ("-", "orders"),
        ("+", "stock"),
    ]


def test_another_password_is_said_and_not_shown():
    running = build_settings()
    file = read_file_settings(lambda: build_settings(password="hunter3"), running)
    report = build_report(running, file)
    assert report["state"] == "secrets"
    assert "hunter" not in str(report)


def test_a_file_with_mistakes_has_them_listed():
    def load() -> Settings:
        raise ConfigError(["gateway.yaml:1:1: unknown key 'kafk'"])

    running = build_settings()
    report = build_report(running, read_file_settings(load, running))
    assert report["state"] == "refused" and "unknown key" in report["problems"][0]


def test_a_gateway_without_a_file_says_so():
    running = build_settings()
    assert build_report(running, read_file_settings(None, running))["state"] == "no-file"
