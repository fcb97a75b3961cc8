"""The archive of an installation: a virtual environment without its Python, as a compressed tar.

It has this program, what it needs, and further packages that are asked for, as `importlib.metadata` finds
them here. The same files give the same archive. Python's compiled files are not in it: each machine's own
Python writes them where it first needs them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import sys
import sysconfig
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import supervisor
from supervisor.contract.errors import NotFound, Refused, UserError
from supervisor.contract.job.environment import normal_name

OWN = "tf-supervisor"
MANIFEST = "tfsup.json"
"""The first member. It says what the archive holds, and which Python it is for."""

_PARTS = ("agent", "recovery", "supervisor", "tfsup.py")
_OF_OWN = ("METADATA", "entry_points.txt")
_PLACE = "direct_url.json"
"""The file of a package that says where it was installed from."""

_LEVEL = 4
"""Half the time of level 6 for 5 % more bytes."""
_MOST_MANIFEST = 1 << 20
_REQUIREMENT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) *(?:\[([A-Za-z0-9._, -]*)\])?")
_EXTRA = re.compile(r"\bextra *== *['\"]([^'\"]+)['\"]")
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SCRIPT = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
import sys
from {module} import {first}
sys.exit({attribute}())
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that was found good. `python` is a version as MAJOR.MINOR; `abi` names the platform, too."""

    version: str
    sha256: str
    python: str
    abi: str


@dataclass(frozen=True, slots=True)
class _File:
    """A file of this machine, or the bytes of one."""

    content: Path | bytes
    executable: bool = False


def pack(directory: Path, more: Sequence[str]) -> Path:
    """Write the archive of this installation with `more` packages, and return its file.

    Raises UserError for a package that is not installed here, and Refused.
    """
    wanted = _closure([OWN, *more])
    version = metadata.version(OWN)
    manifest = {
        "version": version,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "abi": sysconfig.get_config_var("SOABI"),
        "packages": {name: each.version for name, each in sorted(wanted.items())},
    }
    files = _own_files()
    for each in wanted.values():
        files.update(_scripts(each))
        if normal_name(each.name) != normal_name(OWN):
            files.update(_files_of(each))
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".tfsup-", delete=False) as file:
            fresh = Path(file.name)
            try:
                _write(file, json.dumps(manifest, indent=1).encode(), files)
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                path = directory / f"tfsup-{version}-{digest[:12]}.tar.gz"
                os.fchmod(file.fileno(), 0o644)
                return fresh.rename(path)
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"cannot write an archive in {directory}: {error.strerror}") from error


def read(path: Path) -> Archive:
    """Identify an archive. Raises NotFound, Refused, and UserError for any other file."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r|gz") as tar:
                first = tar.next()
                content = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
                manifest = json.loads(content.read(_MOST_MANIFEST)) if content is not None else {}
        version, python, abi = (str(manifest[name]) for name in ("version", "python", "abi"))
        if not re.fullmatch(r"3\.\d{1,3}", python) or not re.fullmatch(r"[a-z0-9_.-]{1,100}", abi):
            raise ValueError
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such file; `supervisorctl pool pack` makes one") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    except (tarfile.TarError, zlib.error, EOFError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no archive that `supervisorctl pool pack` makes") from error
    return Archive(version, sha256, python, abi)


def _closure(names: Sequence[str]) -> dict[str, metadata.Distribution]:
    """These packages and what they need, by their names. A name may have extras, as in `a[b]`."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [_asked(each) for each in names]
    given = len(left)
    while left:
        name, extras = left.pop(0)
        given -= 1
        key = normal_name(name)
        try:
            each = found[key] if key in found else metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if given >= 0:
                raise UserError(
                    f"--with {name}: no such package is installed for {sys.executable}"
                ) from error
            continue  # for another platform, or another Python
        found[key] = each
        for extra in {"", *extras} - {had for of, had in seen if of == key}:
            seen.add((key, extra))
            left += [
                _asked(text)
                for text in each.requires or ()
                if extra == (match[1] if (match := _EXTRA.search(text)) else "")
            ]
    return found


def _asked(text: str) -> tuple[str, frozenset[str]]:
    match = _REQUIREMENT.match(text)
    if match is None:
        raise UserError(f"{text!r} is not the name of a package")
    return match[1], frozenset(each.strip() for each in (match[2] or "").split(",") if each.strip())


def _own_files() -> dict[str, _File]:
    """This program's own files, wherever it is installed, be it from its sources."""
    root = Path(supervisor.__file__).parent.parent
    own = metadata.distribution(OWN)
    files: dict[str, _File] = {}
    for part in _PARTS:
        for path in [root / part, *sorted((root / part).rglob("*"))]:
            if path.is_file() and path.suffix != ".pyc":
                files[f"{_packages()}/{path.relative_to(root).as_posix()}"] = _of(path)
    for name in _OF_OWN:
        text = (own.read_text(name) or "").encode()
        files[f"{_packages()}/{OWN.replace('-', '_')}-{own.version}.dist-info/{name}"] = _File(text)
    return files


def _files_of(package: metadata.Distribution) -> dict[str, _File]:
    """The files of a package that another one has written, without its programs."""
    place = json.loads(package.read_text(_PLACE) or "{}")
    if package.files is None or place.get("dir_info", {}).get("editable"):
        raise UserError(
            f"{package.name} is installed from its sources, or not by pip, so nothing says which files it "
            "has; install it with `pip install`"
        )
    files: dict[str, _File] = {}
    for each in package.files:
        path = Path(os.fspath(each.locate()))
        if ".." in each.parts or each.is_absolute() or each.name == _PLACE or each.suffix == ".pyc":
            continue
        if path.is_file():
            files[f"{_packages()}/{each.as_posix()}"] = _of(path)
    return files


def _of(path: Path) -> _File:
    return _File(path, os.access(path, os.X_OK))


def _scripts(package: metadata.Distribution) -> dict[str, _File]:
    """The package's programs, which run with the Python beside them, wherever that is."""
    found = {}
    for each in package.entry_points:
        if each.group == "console_scripts" and _PROGRAM.fullmatch(each.name):
            first = each.attr.partition(".")[0]
            text = _SCRIPT.format(module=each.module, first=first, attribute=each.attr)
            found[f"bin/{each.name}"] = _File(text.encode(), executable=True)
    return found


def _packages() -> str:
    return f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _write(
    file: io.BufferedIOBase | tempfile._TemporaryFileWrapper[bytes],
    manifest: bytes,
    files: Mapping[str, _File],
) -> None:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, MANIFEST, _File(manifest))
        for name in sorted(files):
            _add(tar, name, files[name])


def _add(tar: tarfile.TarFile, name: str, file: _File) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o755 if file.executable else 0o644
    if isinstance(file.content, bytes):
        member.size = len(file.content)
        tar.addfile(member, io.BytesIO(file.content))
        return
    with file.content.open("rb") as content:
        member.size = os.fstat(content.fileno()).st_size
        tar.addfile(member, content)
