"""What the bench takes from the machine: a small disk for a broker, a clock that can be stepped.

Both need what not every machine has. Where it is missing, the attribute says so, and the faults
that need it are not possible.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.local_kafka import RiggedKafka

from gateway.kafka.local.node import KafkaNode

SMALL_DISK_NODE = 3
SMALL_DISK_BYTES = 256 << 20
CLOCK_NODE = 2
_FAKETIME_PATTERN = "*/faketime/libfaketimeMT.so.1"


class FakeClock:
    """A wall clock that processes have by way of libfaketime; their monotonic clock stays.

    Args:
        file: Where the offset is written, which those processes read again and again.
        library: That of libfaketime.
    """

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self.step(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process that is to have this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds
            "DONT_FAKE_MONOTONIC": "1",
            # A JVM waits with timeouts on the monotonic clock. With libfaketime's own correction
            # of those a broker takes 20 s to start instead of 2, and elects no controller.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def step(self, offset_s: float) -> None:
        """Set the clock to so many seconds ahead of the machine's."""
        self._file.write_text(f"{offset_s:+.0f}\n")


def create_clock(file: Path) -> FakeClock | None:
    """Create a clock; None where libfaketime is not installed."""
    library = next(Path("/usr/lib").glob(_FAKETIME_PATTERN), None)
    return FakeClock(file, library) if library else None


class FaultyKafka(RiggedKafka):
    """A local cluster of three nodes: one may have a small disk, another a clock of its own.

    Attributes:
        small_disk: The log directory of the first of these, a tmpfs; None if there is none.
        clock: The clock of the other one; None if it has the machine's.
    """

    def __init__(
        self, *, has_small_disk: bool = False, clock: FakeClock | None = None, **options: Any
    ) -> None:
        super().__init__(3, **options)
        self.small_disk: Path | None = None
        self.clock = clock
        self._has_small_disk = has_small_disk

    def close(self) -> None:
        """End every node, and unmount the small disk."""
        super().close()
        if self.small_disk is not None:
            subprocess.run(["umount", "--lazy", str(self.small_disk)], check=False)
            shutil.rmtree(self.small_disk.parent, ignore_errors=True)
            self.small_disk = None

    def _build_node_command(self, node: KafkaNode, command: Sequence[str]) -> Sequence[str]:
        if self.clock is None or node.id != CLOCK_NODE:
            return command
        variables = (f"{name}={value}" for name, value in self.clock.environment.items())
        return ["env", *variables, *command]

    def _reserve_ports(self, directory: Path) -> None:
        super()._reserve_ports(directory)
        if self._has_small_disk:
            path = self.get_node(SMALL_DISK_NODE).directory
            path.mkdir(parents=True)
            options = f"size={SMALL_DISK_BYTES}"
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
                capture_output=True,
                check=False,
            )
            if mounted.returncode == 0:
                self.small_disk = path
