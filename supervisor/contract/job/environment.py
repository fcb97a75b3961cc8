"""The Python environment of a job: a lock file or an archive, made ready on each of its nodes. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from supervisor.contract.bounds import MAX_PATH_LENGTH
from supervisor.contract.code import is_digest
from supervisor.contract.errors import UserError
from supervisor.contract.job.container import Objection
from supervisor.contract.job.spec import EnvironmentRef, JobSpec

MAX_LOCK_BYTES = 4 << 20
"""Bytes of a lock file. One with all of TensorFlow and Jupyter has half a megabyte."""

MAX_REQUIREMENTS = 2000
"""Packages that a lock file names."""

_ZSTANDARD = (".tar.zst", ".tzst")

ARCHIVES = (".tar.gz", ".tgz", *_ZSTANDARD)
"""Endings of archives that agents unpack."""

OWN_VARIABLES = ("PATH", "VIRTUAL_ENV", "PYTHONHOME")
"""Variables that are the environment's own."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})(?P<extras>\[[A-Za-z0-9._, -]{{0,200}}\])? ?"
    r"== ?(?P<version>[A-Za-z0-9.!+_-]{1,100})"
    r"(?P<marker> ?;[\w .'\"<>=!~(),*-]{1,500})?",
    re.ASCII,
)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_PYTHON = re.compile(r"python[0-9.]{0,8}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of a lock file, in its normal form. `name` and `version` are those of its wheels."""

    name: str
    version: str
    text: str


def needs_zstd(environment: EnvironmentRef) -> bool:
    """Whether agents unpack it by their node's `zstd`."""
    return environment.archive.endswith(_ZSTANDARD)


def read_lock(data: bytes) -> tuple[Requirement, ...]:
    """The requirements of a lock file. Raises UserError with the line of the error.

    Only `NAME==VERSION --hash=sha256:...` is read, with extras and markers. Options, URLs, paths and other
    files are refused: pip would read them with the rights of the agent.
    """
    if len(data) > MAX_LOCK_BYTES:
        raise UserError(f"has more than {MAX_LOCK_BYTES >> 20} MiB, which is no lock file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8: {error.reason} at byte {error.start}") from error
    found = tuple(_requirement(number, line) for number, line in _logical_lines(text))
    if not found:
        raise UserError("names no package")
    if len(found) > MAX_REQUIREMENTS:
        raise UserError(f"names {len(found)} packages; at most {MAX_REQUIREMENTS} are possible")
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that a backslash continues are joined; comments and blanks are left out."""
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line and not parts:
            continue
        is_comment = line.lstrip().startswith("#")
        continues = line.endswith("\\") and not is_comment
        first = first if parts else number
        parts.append("" if is_comment else _without_comment(line[:-1] if continues else line))
        if continues:
            continue
        if joined := " ".join(" ".join(parts).split()):
            yield first, joined
        parts = []
    if joined := " ".join(" ".join(parts).split()):
        yield first, joined


def _without_comment(line: str) -> str:
    """A comment begins with a `#` after a blank. In linear time, whatever the line is."""
    at = line.find("#")
    while at > 0 and not line[at - 1].isspace():
        at = line.find("#", at + 1)
    return line if at < 0 else line[:at]


def _requirement(number: int, line: str) -> Requirement:
    shown = f"line {number}: {line[:60]!r}"
    if line.startswith("-"):
        raise UserError(
            f"{shown}: options are not read; pip's own configuration on the nodes names the index, and "
            "`wheelhouse` a directory of wheels"
        )
    named, hashed, hashes = line.partition(" --hash=")
    pinned = _REQUIREMENT.fullmatch(named)
    if pinned is None or " --" in named:
        raise UserError(f"{shown} is not pinned; each line is NAME==VERSION --hash=sha256:...")
    if not hashed:
        raise UserError(
            f"{shown} has no hash; make the file with `pip-compile --generate-hashes` or "
            "`uv pip compile --generate-hashes`"
        )
    given = f"--hash={hashes}".split()
    if wrong := next((each for each in given if not _HASH.fullmatch(each)), ""):
        raise UserError(f"{shown}: {wrong[:60]!r} is no sha256; write --hash=sha256: and 64 hex digits")
    text = f"{pinned['name']}{pinned['extras'] or ''}=={pinned['version']}{pinned['marker'] or ''}"
    return Requirement(normal_name(pinned["name"]), pinned["version"], " ".join((text, *given)))


def normal_name(name: str) -> str:
    """A package's name as its wheels spell it: lower case, with underscores."""
    return re.sub(r"[-_.]+", "_", name).lower()


def objections(spec: JobSpec) -> Iterator[Objection]:
    """Objections to a job's environment, and to what does not go with it."""
    if spec.environment is None:
        return
    yield from _form(spec.environment)
    if spec.container is not None:
        yield Objection(
            ("environment",), "a container has the environment of its image; remove one of the two"
        )
    for role in spec.roles:
        if role.command and _names_python(role.command[0]):
            text = f"{role.command[0][:60]!r} is not the environment's Python; write python"
            yield Objection(("roles", role.name, "command"), text)
    for where, names in _variables(spec):
        for name in OWN_VARIABLES:
            if name in names:
                text = "is set by the job's environment; remove this, or `environment`"
                yield Objection((*where, name), text)


def _form(given: EnvironmentRef) -> Iterator[Objection]:
    if bool(given.requirements) == bool(given.archive):
        yield Objection(("environment",), "needs `requirements` or `archive`, one of the two")
    if not is_digest(given.digest):
        yield Objection(("environment", "sha256"), "must be 64 hex digits, as `sha256sum` prints them")
    texts = {"requirements": given.requirements, "archive": given.archive}
    texts |= {"wheelhouse": given.wheelhouse, "python": given.python}
    for name, text in texts.items():
        if len(text) > MAX_PATH_LENGTH:
            yield Objection(("environment", name), f"has more than {MAX_PATH_LENGTH} characters")
    if given.requirements and (why := path_objection(given.requirements)):
        yield Objection(("environment", "requirements"), why)
    if given.archive and not given.archive.endswith(ARCHIVES):
        yield Objection(("environment", "archive"), archive_advice(given.archive))
    if given.archive and given.wheelhouse:
        yield Objection(("environment", "wheelhouse"), "an archive has all packages in it; remove this")
    if given.python:
        yield from _python(given.python)


def _names_python(word: str) -> bool:
    """Whether a command is an interpreter by its path."""
    return "/" in word and _PYTHON.fullmatch(posixpath.basename(word)) is not None


def _variables(spec: JobSpec) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    yield ("env",), frozenset((*spec.env, *spec.secrets))
    for role in spec.roles:
        yield ("roles", role.name, "env"), frozenset((*role.env, *role.secrets))


def path_objection(path: str) -> str:
    """Why this is no path of a lock file; empty if it is one."""
    if path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        return f"{path[:60]!r} must be a path below the program's directory, which all nodes have"
    return ""


def archive_advice(archive: str) -> str:
    """The advice about an archive of another kind."""
    what = f"{posixpath.basename(archive)[:60]!r} is no {' or '.join(ARCHIVES)} file"
    return f"{what}; pack it with `tar -C VENV --format=posix -czf FILE.tar.gz .`"


def check_python(name: str) -> str:
    """Return the name of an interpreter; raises UserError. A path would have agents execute any file."""
    if not _PYTHON.fullmatch(name):
        raise UserError(f"{name[:60]!r} is no name of an interpreter; write for example python3.12")
    return name


def _python(name: str) -> Iterator[Objection]:
    try:
        check_python(name)
    except UserError as error:
        yield Objection(("environment", "python"), str(error))
