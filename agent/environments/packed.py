"""A packed environment: unpacked as hostile input, and led to a Python of this node if it is a virtual one.

Blocking; meant to run in a thread.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from pathlib import Path

from agent.code import tar
from agent.code.unpack import Limits, Manifest, Unpacked, unpack_file
from agent.environments.install import MOST_BYTES, MOST_FILES, Interpreter
from supervisor.contract.errors import BadArchive, Refused

_CONFIG = "pyvenv.cfg"
_MOST_CONFIG = 64 << 10
_INTERPRETER = re.compile(r"bin/python[\d.]*")
_VERSION = re.compile(r"^version(?:_info)? *= *(\d+\.\d+)", re.MULTILINE)
_ADVICE = "an environment is packed with `tar -C VENV --format=posix -czf FILE.tar.gz .`"
_LIMITS = Limits(MOST_BYTES, MOST_FILES)


def unpack(archive: Path, tree: Path, python: Interpreter, *, plain: bool) -> Manifest:
    """Unpack into the new directory `tree`, and make it read-only. `plain`: it is decompressed already.

    A virtual environment has a Python of the machine that packed it; here it gets `python`. One without
    `pyvenv.cfg`, as conda packs it, has an interpreter of its own.

    Raises BadArchive; Refused where `python` has another version; OSError for what is this node's fault.
    """
    try:
        with archive.open("rb") as file:
            manifest = unpack_file(file, tree, _LIMITS, _chosen, plain=plain)
    except BadArchive as error:
        raise BadArchive(f"{error}; {_ADVICE}") from error
    if _CONFIG in manifest:
        _lead_to(tree, manifest, python)
    elif not os.access(tree / "bin" / "python", os.X_OK):
        raise BadArchive(f"the archive has neither {_CONFIG} nor bin/python at its top; {_ADVICE}")
    return manifest


def _chosen(member: tar.Member) -> tar.Member | None:
    """Members as `tar -C VENV .` names them, without links to a Python of another machine."""
    if member.path in (".", "./"):
        return None
    path = member.path.removeprefix("./")
    if member.kind == "link" and member.target.startswith("/") and _INTERPRETER.fullmatch(path):
        return None
    return replace(member, path=path)


def _lead_to(tree: Path, manifest: Manifest, python: Interpreter) -> None:
    config, bin_directory = tree / _CONFIG, tree / "bin"
    if config.is_symlink() or not config.is_file() or config.stat().st_size > _MOST_CONFIG:
        raise BadArchive(f"the archive has a {_CONFIG} that is no small file")
    if bin_directory.is_symlink() or not bin_directory.is_dir():
        raise BadArchive("the archive has no directory bin")
    found = _VERSION.search(config.read_text(errors="replace"))
    if found is None or found[1] != python.version:
        made = f"Python {found[1]}" if found is not None else "an unknown Python"
        raise Refused(
            f"the environment was made with {made}, and this node's {python.path} is {python.version}; "
            "name the right one as `environment.python`"
        )
    for each in (tree, bin_directory):
        each.chmod(0o755)
    text = (
        f"home = {Path(python.path).parent}\ninclude-system-site-packages = false\n"
        f"version = {python.version}\nexecutable = {python.path}\n"
    )
    config.unlink()
    config.write_text(text)
    config.chmod(0o444)
    manifest[_CONFIG] = Unpacked("file", hashlib.sha256(text.encode()).hexdigest())
    targets = {"python": python.path, "python3": "python", f"python{python.version}": "python"}
    for name, target in targets.items():
        link = bin_directory / name
        if link.is_dir() and not link.is_symlink():
            raise BadArchive(f"the archive has a directory bin/{name}")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        manifest[f"bin/{name}"] = Unpacked("link", target)
    for each in (bin_directory, tree):
        each.chmod(0o555)
