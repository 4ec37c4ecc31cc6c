"""What the bench takes from the machine: a small disk for a broker, a clock that can be stepped.

Both need what not every machine has. Where it is missing, the attribute says so, and the faults
that need it are not possible. Only gateways have the clock: brokers do not elect a controller under
libfaketime (tried with Java 17, 40 s).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.kafka.local import LocalKafka

SMALL_DISK_NODE = 3
SMALL_DISK_BYTES = 256 << 20
_FAKETIME_PATTERN = "*/faketime/libfaketimeMT.so.1"


class FakeClock:
    """A wall clock that processes have by way of libfaketime; their monotonic clock stays.

    Args:
        file: Where the offset is written, which those processes read again and again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.library = next(Path("/usr/lib").glob(_FAKETIME_PATTERN), None)
        self.step(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process that is to have this clock."""
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, offset_s: float) -> None:
        """Set the clock to so many seconds ahead of the machine's."""
        self._file.write_text(f"{offset_s:+.0f}\n")


class FaultyKafka(LocalKafka):
    """A local cluster of three nodes, one of which may have a small disk.

    Attributes:
        small_disk: The log directory of that node, a tmpfs; None if there is none.
    """

    def __init__(self, *, has_small_disk: bool = False, **options: Any) -> None:
        super().__init__(3, **options)
        self.small_disk: Path | None = None
        self._has_small_disk = has_small_disk

    def close(self) -> None:
        """End every node, and unmount the small disk."""
        super().close()
        if self.small_disk is not None:
            subprocess.run(["umount", "--lazy", str(self.small_disk)], check=False)
            shutil.rmtree(self.small_disk.parent, ignore_errors=True)
            self.small_disk = None

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
