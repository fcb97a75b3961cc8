"""A libnvidia-ml.so.1 whose GPUs a test scripts (`fake_nvml.c`)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
XID, DOUBLE_BIT_ECC, RECOVERY_ACTION = 0x8, 0x2, 0x8000
GIB = 1 << 30


def build(directory: Path, *, old: bool = False) -> Path:
    """Compile it; with `old`, as of a driver of 2017. Takes half a second."""
    library = directory / LIBRARY
    compile_library(SOURCE, library, f"-Wl,-soname,{LIBRARY}", *(["-DOLD_NVML"] if old else []))
    return library


def compile_library(source: Path, library: Path, *options: str) -> None:
    """Make a shared library of a C program."""
    command = ["gcc", "-O1", "-shared", "-fPIC", *options]
    subprocess.run([*command, "-o", str(library), str(source), "-ldl"], check=True)


def uuid_of(number: int) -> str:
    """A UUID as GPUs have them."""
    return f"GPU-{number:08d}-0000-4000-8000-{number:012d}"


@dataclass
class FakeGpu:
    """One GPU; `facts` are the keys of the state file."""

    uuid: str
    facts: dict[str, str] = field(default_factory=dict)


class FakeNvml:
    """The library in `directory`, and the state that it answers from. Every change is seen at once, whole.

    Its GPUs are numbered from `first` in their UUIDs. `built` is a library that was compiled before.
    """

    def __init__(
        self,
        directory: Path,
        count: int = 2,
        *,
        first: int = 0,
        old: bool = False,
        built: Path | None = None,
    ) -> None:
        self.library = build(directory, old=old) if built is None else _copied(built, directory)
        self.state = directory / "state"
        self.driver = "570.86.15"
        self.gpus = [_healthy(first + index) for index in range(count)]
        self.rules: list[str] = []
        self._events: list[str] = []
        self.write()

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs, by index."""
        return tuple(each.uuid for each in self.gpus)

    def write(self) -> None:
        """Make it so."""
        lines = [f"driver {self.driver}"]
        lines += [" ".join(["gpu", each.uuid, *map("=".join, each.facts.items())]) for each in self.gpus]
        draft = self.state.with_name("state.new")
        draft.write_text("\n".join([*lines, *self.rules, *self._events, ""]))
        draft.replace(self.state)

    def set(self, index: int, **facts: object) -> None:
        """Change what is told of a GPU; None takes a fact away, as if it were not supported."""
        known = self.gpus[index].facts
        for key, value in facts.items():
            known.pop(key, None) if value is None else known.update({key: str(value)})
        self.write()

    def event(self, index: int, data: int, kind: int = XID) -> None:
        """Something happens on a GPU."""
        serial = len(self._events) + 1
        self._events.append(f"event {serial} {self.gpus[index].uuid} {kind:x} {data}")
        self.write()

    def rule(self, *lines: str) -> None:
        """`hang SYMBOL`, `crash SYMBOL`, `fail SYMBOL CODE`; without any, all is well again."""
        self.rules = list(lines)
        self.write()


def _copied(built: Path, directory: Path) -> Path:
    """The library looks for its state beside itself."""
    return Path(shutil.copy(built, directory / LIBRARY))


def _healthy(number: int) -> FakeGpu:
    facts = {
        "name": "NVIDIA_H200",
        "memory": str(141 * GIB),
        "used": "0",
        "reserved": str(615 << 20),
        "pci": f"{number >> 8:04x}:{number & 0xFF:02x}:00",
        "numa": str(number % 2),
        "temp": "41",
        "power": "78000",
        "util": "0",
        "ecc_vol": "0",
        "ecc_agg": "0",
        "remap_pending": "0",
        "remap_failed": "0",
        "recovery": "0",
        "mig": "0",
        "throttle": "0",
    }
    return FakeGpu(uuid_of(number), facts)
