"""Facts from the text of a training program, without running it.

Pure: source text in, `Facts` out. It searches Python's syntax tree for names of TensorFlow. So it finds
plainly written calls, and misses those that a program constructs at run time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

MAX_NODES = 400_000
MOST_LOOKED = 100_000
"""Most expressions that the search for the origin of paths looks at, under a second. A program can assign a
name to itself so often that it would take minutes.
"""

_DEPTH = 8
_LINES = 10_000_000
"""More than the lines of a file. The number of a line is this times the number of its file, plus its number
there."""


class PlaceKind(Enum):
    """The origin of a path in the program."""

    FLAG = "flag"
    VARIABLE = "variable"
    PATH = "path"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Place:
    """A path that the program passes to TensorFlow: the name of a flag or variable, or its first part."""

    kind: PlaceKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that the program defines; `names` as on a command line, with dashes.

    `default` and `number`: a default that is a constant, and whether the flag is a number.
    """

    names: tuple[str, ...]
    line: int
    default: str | None = None
    number: bool = False
    required: bool = False

    @property
    def word(self) -> str:
        """Its longest name without dashes, in the form of an attribute."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Use:
    """A call of the program that saves or writes. `what` is the name of the class or method."""

    what: str
    line: int
    place: Place


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a program. Lines are numbered across all files; `at` gives the file.

    Attributes:
        files: names of the files, the main one first.
        names: last part of each used name -> line of its first use.
        texts: each constant text -> line of its first use.
        reads_tf_config, sets_tf_config: the line; 0 if it does not.
        saves: checkpoints; writes: summaries and exports.
        modules: top-level names of the modules that are imported.
        prints: the first line that prints a step, an iteration or an epoch, and the text.
    """

    files: tuple[str, ...]
    names: dict[str, int]
    texts: dict[str, int]
    flags: tuple[Flag, ...] = ()
    reads_tf_config: int = 0
    sets_tf_config: int = 0
    saves: tuple[Use, ...] = ()
    writes: tuple[Use, ...] = ()
    modules: frozenset[str] = frozenset()
    prints: tuple[int, str] | None = None

    def at(self, line: int) -> str:
        """`FILE:LINE` for people."""
        return f"{self.files[line // _LINES]}:{line % _LINES}"

    def line_of(self, *names: str) -> int:
        """The line of the first of these names that the program uses; 0 for none."""
        return next((self.names[name] for name in names if name in self.names), 0)


SAVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "CheckpointManager": (1, ("directory",)),
    "ModelCheckpoint": (0, ("filepath",)),
    "BackupAndRestore": (0, ("backup_dir",)),
    "CheckpointSaverHook": (0, ("checkpoint_dir",)),
    "MonitoredTrainingSession": (2, ("checkpoint_dir",)),
    "Supervisor": (9, ("logdir",)),
    "RunConfig": (0, ("model_dir",)),
    "Estimator": (1, ("model_dir",)),
    "save_weights": (0, ("filepath",)),
}
"""TensorFlow's name of a saver -> index of the argument with the path, and its keywords."""

WRITERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "FileWriter": (0, ("logdir",)),
    "SummaryWriter": (0, ("logdir", "log_dir")),
    "create_file_writer": (0, ("logdir",)),
    "TensorBoard": (0, ("log_dir",)),
    "export_saved_model": (0, ("export_dir_base", "export_dir")),
    "SavedModelBuilder": (0, ("export_dir",)),
    "export": (0, ("filepath",)),
}
"""Writer of summaries or exports -> position and names of its directory argument."""

_RESOLVERS = ("TFConfigClusterResolver", "train_and_evaluate")
_FLAG_OWNERS = re.compile(r"(?i)(?:.*_)?(?:args?|flags|opts?|options|params|hparams|config|cfg)_?")
_PATH_MAKERS = frozenset(
    {"join", "Path", "str", "abspath", "expanduser", "realpath", "normpath", "fspath", "PurePath"}
)
_STEP = re.compile(r"(?i)\b(?:global[_ ]?)?step|\biter(?:ation)?\b|\bepoch\b")
_BETWEEN = " \t\r\n:;,.-|"
"""Characters between a text and the values beside it in a formatted string."""

_PRINTERS = frozenset({"print", "info", "warning", "debug", "error", "log", "write", "echo", "log_every_n"})


def facts_of(sources: Mapping[str, str]) -> Facts:
    """Read a program: file name -> text, its main file first, then modules that it imports from beside it.

    Raises SyntaxError (with its line) for the main file; another file that cannot be read is left out.
    """
    trees: list[ast.Module] = []
    for number, text in enumerate(sources.values()):
        try:
            tree = _parse(text)
        except SyntaxError:
            if not number:
                raise
            tree = ast.Module([], [])
        ast.increment_lineno(tree, number * _LINES)
        trees.append(tree)
    return _Reader(trees).facts(tuple(sources))


def modules_imported(source: str) -> tuple[str, ...]:
    """Dotted names of the modules that a file imports, each with its parents, as they are written."""
    found: dict[str, None] = {}
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found[node.module] = None
            found |= dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found |= dict.fromkeys(alias.name for alias in node.names)
    return tuple(found)


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is nested too deeply", ("", 1, 1, "")) from error


class _Reader:
    """One look at all nodes of all files."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)][:MAX_NODES]
        self._assigned: dict[str, list[ast.expr]] = {}
        self._flags = tuple(_flags(self._nodes))
        self._words = {flag.word for flag in self._flags}
        self._looked = 0
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)

    def facts(self, files: tuple[str, ...]) -> Facts:
        names: dict[str, int] = {}
        texts: dict[str, int] = {}
        for node in self._nodes:
            if isinstance(node, ast.Name | ast.Attribute):
                names.setdefault(_last(node), node.lineno)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names.setdefault(alias.name, node.lineno)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.setdefault(node.value, node.lineno)
        sets = next((_line(node) for node in self._nodes if _sets_tf_config(node)), 0)
        reads = next((_line(node) for node in self._nodes if _reads_tf_config(node)), 0)
        resolved = min((names[name] for name in _RESOLVERS if name in names), default=0)
        calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        return Facts(
            files=files,
            names=names,
            texts=texts,
            flags=self._flags,
            reads_tf_config=reads or resolved,
            sets_tf_config=sets,
            saves=tuple(self._uses(calls, SAVERS, self._saver_save)),
            writes=tuple(self._uses(calls, WRITERS, self._model_save)),
            modules=frozenset(_modules(self._nodes)),
            prints=_printed(calls),
        )

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name | ast.Attribute):
            self._assigned.setdefault(_last(target), []).append(value)

    def _uses(
        self,
        calls: list[ast.Call],
        table: dict[str, tuple[int, tuple[str, ...]]],
        special: Callable[[ast.Call], ast.expr | None],
    ) -> Iterator[Use]:
        for call in calls:
            what = _last(call.func)
            if what.endswith("Estimator") and table is SAVERS:
                where = _argument(call, 99, ("model_dir",))
            elif what in table:
                where = _argument(call, *table[what])
            else:
                where = special(call)
            if where is not None:
                yield Use(what, call.lineno, self.place(where))

    def _saver_save(self, call: ast.Call) -> ast.expr | None:
        """`Saver.save(session, path)`, and `Checkpoint.save(prefix)` where its receiver's name says so."""
        if _last(call.func) != "save" or not isinstance(call.func, ast.Attribute):
            return None
        receiver = call.func.value
        if self._is(receiver, "Saver"):
            return _argument(call, 1, ("save_path",))
        return _argument(call, 0, ("file_prefix",)) if self._is(receiver, "Checkpoint") else None

    def _model_save(self, call: ast.Call) -> ast.expr | None:
        """`model.save(path)` and `tf.saved_model.save(model, path)`."""
        if _last(call.func) != "save" or not isinstance(call.func, ast.Attribute):
            return None
        receiver = call.func.value
        if _last(receiver) == "saved_model":
            return _argument(call, 1, ("export_dir",))
        if (
            self._is(receiver, "Saver")
            or self._is(receiver, "Checkpoint")
            or self._is(receiver, "CheckpointManager")
        ):
            return None
        return _argument(call, 0, ("filepath", "file"))

    def _is(self, receiver: ast.expr, kind: str) -> bool:
        """Whether an expression is an object of this class of TensorFlow's, judged by its name."""
        values = [receiver, *self._assigned.get(_last(receiver), ())]
        made = [_last(value.func) for value in values if isinstance(value, ast.Call)]
        if made:
            return kind in made
        name = _last(receiver).lower()
        return {"Saver": "saver" in name, "Checkpoint": name in ("checkpoint", "ckpt")}.get(
            kind, "manager" in name
        )

    def place(self, expr: ast.expr, depth: int = 0) -> Place:
        """The origin of a path, followed through joins, formats and assignments."""
        unknown = Place(PlaceKind.UNKNOWN)
        self._looked += 1
        if depth > _DEPTH or self._looked > MOST_LOOKED:
            return unknown
        match expr:
            case ast.Constant(value=str(text)):
                return Place(PlaceKind.PATH, text)
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(name))) if _last(owner) == "environ":
                return Place(PlaceKind.VARIABLE, name)
            case ast.Attribute(value=owner, attr=name) if name in self._words and _FLAG_OWNERS.fullmatch(
                _last(owner)
            ):
                return Place(PlaceKind.FLAG, name)
            case ast.Call():
                return self._place_of_call(expr, depth)
            case ast.BinOp(left=left):
                return self.place(left, depth + 1)
            case ast.JoinedStr(values=[first, *_]):
                return self.place(first.value if isinstance(first, ast.FormattedValue) else first, depth + 1)
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second, *_]):
                return self._first_known((first, second), depth)
            case ast.Name() | ast.Attribute():
                return self._first_known(self._assigned.get(_last(expr), ()), depth)
            case _:
                return unknown

    def _place_of_call(self, call: ast.Call, depth: int) -> Place:
        name = _last(call.func)
        if name in ("mkdtemp", "gettempdir", "TemporaryDirectory"):
            return Place(PlaceKind.TEMPORARY)
        if name in ("getenv", "get") and call.args and isinstance(call.args[0], ast.Constant):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if name == "getenv" or (owner is not None and _last(owner) == "environ"):
                return Place(PlaceKind.VARIABLE, str(call.args[0].value))
        if name in _PATH_MAKERS and call.args:
            return self.place(call.args[0], depth + 1)
        if name == "format" and isinstance(call.func, ast.Attribute):
            head = self.place(call.func.value, depth + 1)
            return self.place(call.args[0], depth + 1) if head.text.startswith("{") and call.args else head
        return Place(PlaceKind.UNKNOWN)

    def _first_known(self, exprs: Iterable[ast.expr], depth: int) -> Place:
        places = (self.place(expr, depth + 1) for expr in exprs)
        return next(
            (place for place in places if place.kind is not PlaceKind.UNKNOWN), Place(PlaceKind.UNKNOWN)
        )


def _line(node: ast.AST) -> int:
    return node.lineno if isinstance(node, ast.expr | ast.stmt) else 0


def _last(node: ast.expr) -> str:
    """The last part of a dotted name, or of a call's function; empty for any other expression."""
    while isinstance(node, ast.Call):
        node = node.func
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _argument(call: ast.Call, index: int, keywords: tuple[str, ...]) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg in keywords:
            return keyword.value
    return call.args[index] if index < len(call.args) else None


def _flags(nodes: list[ast.AST]) -> Iterator[Flag]:
    """The flags of argparse, absl, tf.app.flags and click."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        what = _last(node.func)
        texts = [
            arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        if what in ("add_argument", "option"):
            names = tuple(text for text in texts if text.startswith("-"))
            default = _argument(node, 99, ("default",))
            kind = _argument(node, 99, ("type",))
            number = _last(kind) in ("int", "float") if kind is not None else False
            required = _argument(node, 99, ("required",))
        elif what.startswith("DEFINE_") and texts:
            names, default = (f"--{texts[0]}",), _argument(node, 1, ("default",))
            number, required = what in ("DEFINE_integer", "DEFINE_float"), _argument(node, 99, ("required",))
        else:
            continue
        if names:
            value = default.value if isinstance(default, ast.Constant) else None
            yield Flag(
                names,
                node.lineno,
                default=str(value) if value is not None else None,
                number=number or isinstance(value, int | float),
                required=isinstance(required, ast.Constant) and required.value is True,
            )


def _modules(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _sets_tf_config(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Subscript) and _is_tf_config(target) for target in targets)


def _reads_tf_config(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and _is_tf_config(node)
    if not isinstance(node, ast.Call) or not node.args or _last(node.func) not in ("get", "getenv", "loads"):
        return False
    first = node.args[0]
    return isinstance(first, ast.Constant) and first.value == "TF_CONFIG"


def _is_tf_config(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value == "TF_CONFIG"


def _printed(calls: list[ast.Call]) -> tuple[int, str] | None:
    """The first call that prints a step, by a text among its arguments."""
    found = [
        (call.lineno, node.value.strip(_BETWEEN))
        for call in calls
        if _last(call.func) in _PRINTERS
        for arg in call.args
        for node in ast.walk(arg)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _STEP.search(node.value)
    ]
    return min(found, default=None)
