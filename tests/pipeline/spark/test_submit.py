"""The line that runs jobs on a cluster."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.config.sections.job import Spark
from gateway.pipeline.spark.session import build_command, build_environment, run_command

JARS = [Path("/jars/one.jar"), Path("/jars/two.jar")]


def line(**spark):
    arguments = ["all", "-c", "/gateway.yaml"]
    paths = {"driver": Path("/driver.py"), "package": Path("/package.zip")}
    return build_command(Spark(**spark), arguments, jars=JARS, **paths)


def after(found, option):
    return found[found.index(option) + 1]


@pytest.mark.needs("java17")
def test_it_has_master_memory_jars_package_and_settings_and_ends_with_what_to_run():
    found = line(master="spark://host:7077", memory="2GiB", conf={"spark.x": "a b"})
    assert found[0].endswith("/bin/spark-submit")
    assert after(found, "--master") == "spark://host:7077"
    assert after(found, "--executor-memory") == "2048m"
    assert after(found, "--jars") == "/jars/one.jar,/jars/two.jar"
    assert after(found, "--py-files") == "/package.zip"
    assert "spark.x=a b" in found
    assert "spark.sql.session.timeZone=UTC" in found
    assert found[-4:] == ["/driver.py", "all", "-c", "/gateway.yaml"]


@pytest.mark.needs("java17")
def test_what_has_an_option_of_its_own_is_not_said_twice():
    settings = [each for each in line() if each.startswith(("spark.master", "spark.jars"))]
    assert settings == []


def test_nodes_have_the_python_that_is_named_and_the_driver_has_ours():
    given = {"PYSPARK_PYTHON": "/opt/nodes/python", "HOME": "/home/me"}
    found = build_environment(given, master="spark://host:7077")
    assert found == {**given, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert build_environment({}, master="local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.needs("java17")
def test_its_exit_code_is_that_of_spark_submit():
    assert run_command([sys.executable, "-c", "raise SystemExit(3)"], master="local") == 3
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command([sys.executable, "-c", killed], master="local") == 128 + signal.SIGKILL


# What stands in for spark-submit: a driver below it, and the words of both when they end.
DRIVER = """
import os, pathlib, signal, sys, time
def end(*_): sys.exit(7)
signal.signal(signal.SIGTERM, end)
pathlib.Path(os.environ["GATEWAY_DRIVER_PID_FILE"]).write_text(str(os.getpid()))
os.kill(int(sys.argv[1]), signal.SIGTERM)
time.sleep(60)
"""
SUBMIT = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", *sys.argv[1:]]))
"""


@pytest.mark.needs("java17")
def test_a_signal_is_for_the_driver_and_spark_submit_ends_as_it_does():
    line = [sys.executable, "-c", SUBMIT, DRIVER, str(os.getpid())]
    before = signal.getsignal(signal.SIGTERM)
    assert run_command(line, master="local") == 7
    assert signal.getsignal(signal.SIGTERM) == before
