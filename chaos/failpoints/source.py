"""The effects in the product's source, and the failpoint of each: read from its syntax trees.

An effect is a call that changes something outside its process: etcd, a store, files and directories that a
successor will find, processes and their signals, mounts, containers. A call is known by its name, and by the
shape of its arguments where a name has other uses too. One lies in a failpoint when it is written inside its
`with`, or in a private function of the same module all of whose uses are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("supervisor", "agent", "recovery")
POINT = "effect"
"""The function of `supervisor.adapters.failpoints`, by the name that every module imports it by."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OS = _names(
    "chmod chown copy_file_range execv execve execvp execvpe fchmod fchown fdatasync fork forkpty fsync"
    " ftruncate kill killpg lchown link makedirs mkdir mkfifo mknod posix_spawn posix_spawnp pwrite pwritev"
    " remove removedirs rename renames replace rmdir symlink truncate unlink"
)
_SHUTIL = _names("chown copy copy2 copyfile copyfileobj copytree move rmtree")
_SUBPROCESS = _names("Popen call check_call check_output run")
_METHODS = _names(
    "chmod create_container_from_config create_subprocess_exec delete_tree download fence grant hardlink_to"
    " keep_alive kill mkdir mkdirs pidfd_send_signal prepare pull remove_container revoke rmdir send_signal"
    " symlink_to terminate touch txn umount2 unlink upload write_bytes write_small write_text"
)
_BY_OWNER = _names("append create delete remove spawn start")
_OWNERS = ("backend", "client", "runtime")
"""Methods with many uses, which are effects of what is called so."""
_HELPERS = _names(
    "copy_file fsync_directory link_or_copy move_directory new_file remove_tree rename_directory_no_replace"
    " write_small"
)
"""Functions of the product: a caller of one has its effect, and has to be in a failpoint."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One call in the source.

    Attributes:
        path: of the module, relative to the repository.
        within: the function that it is in, with its class.
        call: what is called, as it is written.
        covered: whether it lies in a failpoint.
    """

    path: str
    line: int
    within: str
    call: str
    covered: bool


@dataclass(frozen=True, slots=True)
class Point:
    """One `with effect(...)` in the source; `name` has `{}` where it depends on a value."""

    path: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Module:
    """The effects of a module on the outside, and its failpoints."""

    effects: tuple[Effect, ...]
    points: tuple[Point, ...]


def paths() -> Iterator[Path]:
    """Every module of the product."""
    for package in PRODUCT:
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def read(path: Path) -> Module:
    """Look through one module of the product, as it is now; it is read once."""
    return look_through(str(path.relative_to(ROOT)), path.read_text())


def look_through(path: str, text: str) -> Module:
    """Look through the source of a module that is called `path`."""
    walk = _Walk(path)
    walk.visit(ast.parse(text))
    covered = walk.covered()
    effects = (
        Effect(path, call.line, ".".join(call.scope), call.text, call.inside or bool(covered & {*call.scope}))
        for call in walk.calls
    )
    return Module(tuple(effects), tuple(walk.points))


@dataclass(frozen=True, slots=True)
class _Call:
    line: int
    scope: tuple[str, ...]
    text: str
    inside: bool


@dataclass(slots=True)
class _Uses:
    """The uses of a private function: the scopes where it is called outside of every failpoint."""

    bare: list[tuple[str, ...]] = field(default_factory=list)
    count: int = 0


class _Walk(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.calls: list[_Call] = []
        self.points: list[Point] = []
        self._functions: set[str] = set()
        self._uses: dict[str, _Uses] = {}
        self._scope: tuple[str, ...] = ()
        self._depth = 0

    def covered(self) -> frozenset[str]:
        """Private functions, or ones inside others, that are only ever used inside failpoints."""
        found: set[str] = set()
        while True:
            more = {
                name
                for name in self._functions - found
                if (uses := self._uses.get(name)) is not None
                and uses.count
                and all(found & {*scope} for scope in uses.bare)
            }
            if not more:
                return frozenset(found)
            found |= more

    def visit(self, node: ast.AST) -> None:
        """Note what this node is, and go on below it."""
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self._enter(node)
            case ast.With() | ast.AsyncWith():
                self._with(node)
            case _:
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    self._use(node.id if isinstance(node, ast.Name) else node.attr)
                if isinstance(node, ast.Call) and is_effect(node):
                    text = ast.unparse(node.func)
                    self.calls.append(_Call(node.lineno, self._scope, text, self._depth > 0))
                self.generic_visit(node)

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        nested = bool(self._scope) and not self._scope[-1][:1].isupper()
        if not isinstance(node, ast.ClassDef) and (nested or _is_private(node.name)):
            self._functions.add(node.name)
        # What is defined inside a `with` need not run inside it.
        depth, self._depth = self._depth, 0
        before, self._scope = self._scope, (*self._scope, node.name)
        for each in node.body:
            self.visit(each)
        self._scope, self._depth = before, depth

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        before = self._depth
        for item in node.items:
            name = _point(item.context_expr)
            self.visit(item)
            if name:
                self.points.append(Point(self.path, node.lineno, name))
                self._depth += 1
        for each in node.body:
            self.visit(each)
        self._depth = before

    def _use(self, name: str) -> None:
        uses = self._uses.setdefault(name, _Uses())
        uses.count += 1
        if not self._depth:
            uses.bare.append(self._scope)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _point(node: ast.expr) -> str:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == POINT):
        return ""
    name = node.args[0]
    if isinstance(name, ast.Constant):
        return str(name.value)
    if not isinstance(name, ast.JoinedStr):
        raise ValueError(f"line {node.lineno}: the name of a failpoint is written where it stands")
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in name.values)


def is_effect(node: ast.Call) -> bool:
    """Whether this call changes something outside its process."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in _HELPERS or (function.id == "open" and _opens_to_write(node.args[1:2]))
    if not isinstance(function, ast.Attribute):
        return False
    name, owner = function.attr, function.value
    modules = {"os": _OS, "shutil": _SHUTIL, "subprocess": _SUBPROCESS}
    module = owner.id if isinstance(owner, ast.Name) else ""
    if module in modules:
        return name in modules[module] or (module == "os" and name == "open" and _creates(node))
    match name:
        case "txn":
            return not _only_reads(node)
        case "replace":
            # Of a path; that of a text has two arguments, that of a dataclass keywords.
            return len(node.args) == 1 and not node.keywords
        case "open":
            return _opens_to_write(node.args[:1])
        case _ if name in _BY_OWNER:
            return ast.unparse(owner).endswith(_OWNERS)
        case _:
            return name == "rename" or name in _METHODS | _HELPERS


def _opens_to_write(mode: list[ast.expr]) -> bool:
    return bool(mode) and isinstance(mode[0], ast.Constant) and bool(set("wax+") & set(str(mode[0].value)))


def _creates(node: ast.Call) -> bool:
    return any("O_CREAT" in ast.unparse(each) or "O_TRUNC" in ast.unparse(each) for each in node.args[1:])


def _only_reads(node: ast.Call) -> bool:
    """A transaction whose second argument is empty, or a list of reads."""
    then = node.args[1] if len(node.args) > 1 else None
    return isinstance(then, ast.Tuple | ast.List) and all(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id.startswith("Get")
        for each in then.elts
    )
