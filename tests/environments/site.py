"""A node that makes environments: its disk, a wheelhouse, and wheels that are made on the spot."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.environments.files import PlainFiles
from agent.environments.install import Installer, Interpreter
from agent.environments.store import NodeEnvironments
from recovery.stores.open import Stores
from supervisor.contract.errors import Unreachable
from supervisor.contract.job.environment import Requirement
from supervisor.contract.job.spec import EnvironmentRef
from tests.support.sinks import ListSink

LOCK = "requirements.lock"
LONGEST_S = 120.0


def make_wheel(
    directory: Path, name: str = "tiny", version: str = "1.0", needs: str = "", **files: str
) -> str:
    """Write a wheel with a module of its name, and other files; returns its line in a lock file."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    content = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-say = {name}:VERSION.title\n",
        **files,
    }
    record = "".join(f"{path},{_record(text)}\n" for path, text in content.items()) + f"{info}/RECORD,,\n"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(each, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _record(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(text.encode())}"


class QuickInstaller(Installer):
    """Makes environments of a few files without Python's own tools."""

    async def install(
        self,
        python: Interpreter,
        tree: Path,
        requirements: Sequence[Requirement],
        scratch: Path,
        wheels: Path | None,
    ) -> None:
        (tree / "bin").mkdir(parents=True)
        (tree / "bin" / "python").symlink_to(python.path)
        for each in requirements:
            (tree / f"{each.name}.py").write_text(each.version)


@dataclass
class Site:
    """`boot_id` may be changed before another life of the agent."""

    root: Path
    installer: Installer = field(default_factory=Installer)
    boot_id: str = "boot1"
    sink: ListSink = field(default_factory=ListSink)

    def __post_init__(self) -> None:
        self.wheels, self.work = self.root / "wheels", self.root / "work"
        self.directory = self.root / "environments"
        for each in (self.wheels, self.work):
            each.mkdir()
        self.node = self.again()

    def again(self) -> NodeEnvironments:
        """Another life of the agent."""
        files = PlainFiles(Stores())
        return NodeEnvironments(self.directory, files, self.installer, self.sink, self.boot_id)

    def lock(self, *lines: str, wheelhouse: bool = True) -> EnvironmentRef:
        """Write the lock file, as the job was submitted with it."""
        data = "".join(lines).encode()
        (self.work / LOCK).write_bytes(data)
        uri = self.wheels.as_uri() if wheelhouse else ""
        return EnvironmentRef(hashlib.sha256(data).hexdigest(), LOCK, wheelhouse=uri)

    async def make(self, ref: EnvironmentRef, node: NodeEnvironments | None = None) -> Path:
        """Ask until it is there, as the agent does."""
        until_s = time.monotonic() + LONGEST_S
        while True:
            try:
                return Path(await (node or self.node).ensure(ref, str(self.work)))
            except Unreachable as error:
                if "can take minutes" not in str(error) or time.monotonic() > until_s:
                    raise
                await asyncio.sleep(0)

    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()} if self.directory.exists() else set()


def is_writable(path: Path) -> bool:
    """Whether the mode lets anybody write."""
    return bool(path.stat().st_mode & 0o222)


def paths_below(tree: Path) -> list[Path]:
    return [Path(where, name) for where, _, names in os.walk(tree) for name in names]
