"""The entry point of the image for jobs: a driver or an executor of Spark, or else `gateway`.

On Kubernetes, Spark starts a pod by the word `driver` or `executor`, and by the variables that the
entry point of Spark's own image reads, too. A driver is run as by `gateway pipeline submit`, so
that its jobs end after the present batch when the pod is deleted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from gateway import cli


def main() -> None:
    match sys.argv[1:]:
        case ["driver", *arguments]:
            from gateway.pipeline.spark.session import run_command

            command = build_driver_command(os.environ, arguments)
            sys.exit(run_command(command, master="k8s"))
        case ["executor", *_]:
            command = build_executor_command(os.environ)
            os.execvp(command[0], command)
        case _:
            cli.main()


def build_driver_command(variables: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    return [
        f"{variables['SPARK_HOME']}/bin/spark-submit",
        *("--conf", f"spark.driver.bindAddress={variables['SPARK_DRIVER_BIND_ADDRESS']}"),
        *("--deploy-mode", "client", *arguments),
    ]


def build_executor_command(variables: Mapping[str, str]) -> list[str]:
    memory = variables["SPARK_EXECUTOR_MEMORY"]
    class_path = [variables.get("SPARK_CONF_DIR"), variables.get("SPARK_CLASSPATH")]
    return [
        *("java", *_list_java_options(variables), f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join([*filter(None, class_path), f"{variables['SPARK_HOME']}/jars/*"])),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", variables["SPARK_DRIVER_URL"]),
        *("--executor-id", variables["SPARK_EXECUTOR_ID"]),
        *("--cores", variables["SPARK_EXECUTOR_CORES"]),
        *("--app-id", variables["SPARK_APPLICATION_ID"]),
        *("--hostname", variables["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", variables["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", variables["SPARK_EXECUTOR_POD_NAME"]),
    ]


def _list_java_options(variables: Mapping[str, str]) -> list[str]:
    """Return the options of SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, in this order."""
    found = [(re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name), name) for name in variables]
    numbered = sorted((int(match[1]), name) for match, name in found if match)
    return [variables[name] for _, name in numbered]


if __name__ == "__main__":
    main()
