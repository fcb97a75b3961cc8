"""`init`: reads a training program without running it, and writes a first job file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.jobs.draft import Draft, draft, text_of
from supervisor.cli.jobs.program_facts import Facts, facts_of, modules_imported
from supervisor.cli.options import Globals, global_options
from supervisor.cli.render import emit_json
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import NotFound, UserError

MAX_SOURCE_BYTES = 1 << 20
MOST_FILES = 30
_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = ("-W", "-X")


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("job.yaml"),
    show_default=True,
    help="The job file to write. One that exists is not written over.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@global_options
def init(given: Globals, file: Path, command: tuple[str, ...]) -> None:
    """Write a job file for COMMAND, as it is run in this directory: init -- python train.py --steps 100."""
    if file.exists():
        raise UserError(f"{file} exists and is not written over; name another one with --file")
    if not file.parent.is_dir():
        raise NotFound(f"{file.parent}: no such directory")
    for word in command:
        if word.encode(errors="ignore").decode() != word:
            raise UserError(f"{word!a} is not UTF-8, and a job file can hold no other text; rename it")
    name, script, facts = _look_at(command)
    made = draft(name, script, command, facts)
    elsewhere = file.resolve().parent != Path.cwd().resolve()
    code = os.path.relpath(Path.cwd(), file.parent) if elsewhere else ""
    _write(file, text_of(made, script, str(file), code))
    _tell(given, file, made)


def _look_at(command: Sequence[str]) -> tuple[str, str, Facts | None]:
    """A name for the job, the program's name for people, and its facts; None for facts if it is not
    Python.
    """
    words = list(command)
    if not _PYTHON.fullmatch(Path(words[0]).name):
        path = Path(words[0])
        return _name(path.stem), words[0], _facts(path) if path.suffix == ".py" else None
    rest = iter(words[1:])
    for word in rest:
        if word == "-c":
            return "job", "the program after -c", _read_facts({"-c": next(rest, "")})
        if word == "-m":
            module = next(rest, "")
            path = _module(module)
            return _name(module.rpartition(".")[2]), str(path), _facts(path)
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return _name(Path(word).stem), word, _facts(Path(word))
    raise UserError(f"`{' '.join(words)}` names no program; write for example: init -- python train.py")


def _name(stem: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:63]
    return cleaned or "job"


def _module(name: str) -> Path:
    """The file that `python -m` would run."""
    path = Path(*name.split("."))
    found = [each for each in (path.with_suffix(".py"), path / "__main__.py") if each.is_file()]
    if not found:
        raise NotFound(
            f"there is no module {name!r} in this directory; run init where the program is started"
        )
    return found[0]


def _facts(path: Path) -> Facts:
    """The facts of a program and the modules beside it."""
    texts = {path: _text(path)}
    waiting = [path]
    while waiting and len(texts) < MOST_FILES:
        here = waiting.pop(0)
        try:
            names = modules_imported(texts[here])
        except SyntaxError:
            continue
        for name in names:
            for base in (path.parent, Path()):
                parts = base.joinpath(*name.split("."))
                for found in (parts.with_suffix(".py"), parts / "__init__.py"):
                    if found not in texts and found.is_file() and len(texts) < MOST_FILES:
                        texts[found] = _text(found)
                        waiting.append(found)
    return _read_facts({str(name): text for name, text in texts.items()})


def _read_facts(sources: dict[str, str]) -> Facts:
    try:
        return facts_of(sources)
    except SyntaxError as error:
        main = next(iter(sources))
        raise UserError(f"{main}:{error.lineno or 1}: this Python cannot read it: {error.msg}") from error


def _text(path: Path) -> str:
    try:
        with path.open("rb") as source:
            content = source.read(MAX_SOURCE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_SOURCE_BYTES:
        raise UserError(f"{path} is larger than {MAX_SOURCE_BYTES >> 20} MiB, which no program's source is")
    return content.decode(errors="replace")


def _write(file: Path, text: str) -> None:
    """Write the file whole, after it has passed `validate`, and never over an existing one."""
    from supervisor.cli.jobs.order import check_file

    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as draft_file:
            draft_file.write(text)
        check_file(Path(temporary), None)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        os.link(temporary, file)
    except FileExistsError:
        raise UserError(f"{file} exists and is not written over; name another one with --file") from None
    finally:
        Path(temporary).unlink()


def _tell(given: Globals, file: Path, made: Draft) -> None:
    if given.json:
        emit_json(
            {
                "file": str(file),
                "strategy": made.strategy,
                "roles": made.counts,
                "could_not_tell": made.unknown,
            }
        )
        return
    roles = ", ".join(f"{count} {role}" for role, count in made.counts.items())
    click.echo(neutralise(f"wrote {file}: strategy {made.strategy}, {roles}"))
    for each in made.unknown:
        click.echo(neutralise(f"could not tell {each}"), err=True)
