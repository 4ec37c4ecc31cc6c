"""What differs between the configuration in effect and its file, and never a secret."""

from __future__ import annotations

from gateway.config import Settings, loads
from gateway.errors import ConfigError
from gateway.web.admin.configuration import build_report, read_file_settings


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


def test_what_needs_a_restart_is_not_said_to_be_reloaded():
    """The page said that a reload applies it, and the reload then left it as it was."""
    running = build_settings()
    port = running.listen.port + 1
    moved = running.listen.model_copy(update={"port": port})
    file = read_file_settings(lambda: running.model_copy(update={"listen": moved}), running)
    report = build_report(running, file)
    assert (report["state"], report["kept"]) == ("restart", ["listen.port"])
    assert f"+  port: {port}" in report["diff"]
    other = build_settings("stock").model_copy(update={"listen": moved})
    report = build_report(running, read_file_settings(lambda: other, running))
    assert (report["state"], report["kept"]) == ("differs", ["listen.port"])


def test_a_file_that_a_reload_refuses_is_refused():
    def load() -> Settings:
        clusters = "{east: {servers: [a:9092], topics: [orders]}}"
        return loads(f"kafka: {clusters}", name="test")

    running = build_settings()
    report = build_report(running, read_file_settings(load, running))
    assert report["state"] == "refused" and "needs a restart" in report["problems"][0]


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
