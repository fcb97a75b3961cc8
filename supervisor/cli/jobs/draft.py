"""The job file that `init` writes: from the facts in a program's text to commented YAML.

Pure: facts in, text out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from supervisor.cli.jobs.program_facts import Facts, Flag, Place, PlaceKind, Use
from supervisor.contract.job.placeholders import known_words, problems
from supervisor.contract.job.written import scalar

CLUSTER_FLAGS: Mapping[str, tuple[str, ...]] = {
    "{ps_hosts}": ("ps_hosts", "ps", "ps_host", "ps_list", "pshosts", "parameter_servers", "ps_addresses"),
    "{worker_hosts}": ("worker_hosts", "workers", "worker", "worker_host", "worker_list", "workerhosts"),
    "{chief_hosts}": ("chief_hosts", "chief", "chief_host"),
    "{master_hosts}": ("master_hosts", "master_host"),
    "{job_name}": ("job_name", "job", "role", "task_type", "job_type", "type"),
    "{task_index}": ("task_index", "index", "task_id", "task", "worker_index", "task_number"),
    "{protocol}": ("protocol", "server_protocol"),
}
"""Placeholder -> names of flags that programs have for it, dashes as underscores."""

_DIRECTORIES = frozenset(
    {"CheckpointManager", "BackupAndRestore", "CheckpointSaverHook", "MonitoredTrainingSession", "Supervisor"}
)
"""Savers whose argument is a directory. For the others the last part of the path is a file."""

_OURS = frozenset({"CHECKPOINT_DIR", "TFSUP_OUTPUT_DIR"})
_FILE = re.compile(r"\.(?:ckpt|h5|hdf5|keras|npz|tf|weights)\b")


@dataclass(slots=True)
class Draft:
    """A job file in the making.

    Attributes:
        why: the reason for the strategy.
        counts: tasks of each role.
        adopt: the program's own path for saves; empty for none.
        notes: findings for a comment above the checkpoints.
        unknown: open questions, each with its remedy.
    """

    name: str
    command: list[str]
    strategy: str = "plain"
    why: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    adopt: str = ""
    imports_tensorflow: bool = True
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def draft(name: str, script: str, command: Sequence[str], facts: Facts | None) -> Draft:
    """The draft of a job file for this command. `facts` is None for a program that is not Python.

    `script` is the program's name in comments.
    """
    made = Draft(name, [_literal(word) for word in command])
    if facts is None:
        made.why = "nothing is known of a program that is not Python"
        made.counts = {"worker": 1}
        made.unknown.append(
            "how the program distributes its work, saves and prints its steps: it is not Python"
        )
        return made
    made.imports_tensorflow = bool({"tensorflow", "keras"} & facts.modules)
    flags = _cluster_flags(facts)
    _choose_strategy(made, facts, flags)
    _choose_roles(made, facts, flags)
    for flag, value in flags.items():
        _set_flag(made, flag, value)
    if facts.sets_tf_config:
        made.unknown.append(
            f"the cluster, as {facts.at(facts.sets_tf_config)} sets TF_CONFIG itself: let the program read it"
        )
    _place_saves(made, facts, script, set(flags))
    _place_writes(made, facts)
    _note_steps(made, facts, script)
    for flag in facts.flags:
        if flag.required and not _given(made.command, flag):
            made.unknown.append(
                f"the value of {flag.names[-1]}, which {script} requires: add it to the command"
            )
    return made


def _cluster_flags(facts: Facts) -> dict[Flag, str]:
    """Flag -> placeholder, for the flags by which a program gets the description of its cluster.

    Empty if there is no flag for the workers or for a task's number: `--workers` alone may have any meaning.
    """
    found: dict[Flag, str] = {}
    for placeholder, names in CLUSTER_FLAGS.items():
        hosts = placeholder.endswith("_hosts}")
        fitting = [f for f in facts.flags if f.word.lower() in names and not (hosts and f.number)]
        if fitting:
            found[min(fitting, key=lambda flag: names.index(flag.word.lower()))] = placeholder
    told = set(found.values())
    return found if {"{worker_hosts}", "{task_index}"} <= told else {}


def _choose_strategy(made: Draft, facts: Facts, flags: Mapping[Flag, str]) -> None:
    coordinator = facts.line_of("ClusterCoordinator", "ParameterServerStrategy", "ParameterServerStrategyV2")
    estimator = facts.line_of("train_and_evaluate")
    mirrored = facts.line_of("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
    sync = facts.line_of("SyncReplicasOptimizer", "SyncReplicasOptimizerV2")
    between = facts.line_of("replica_device_setter")
    server = facts.line_of("Server") if facts.line_of("ClusterSpec", "Server") else 0
    choices = (
        (coordinator and not estimator, coordinator, "coordinator", "{} uses a parameter server strategy"),
        (mirrored, mirrored, "multiworker", "{} uses a multi-worker mirrored strategy"),
        (sync, sync, "sync", "{} uses SyncReplicasOptimizer"),
        (estimator, estimator, "async", "{} trains and evaluates an Estimator"),
        (between, between, "async", "{} puts variables on parameter servers"),
        ("{ps_hosts}" in flags.values(), 0, "async", "there are flags for parameter servers and workers"),
        (
            server,
            server,
            "in_graph",
            "{} starts a server of TensorFlow's, and there are no parameter servers",
        ),
    )
    for holds, line, strategy, why in choices:
        if holds:
            made.strategy, made.why = strategy, why.format(facts.at(line))
            return
    made.why = "nothing was found that distributes the work"


def _choose_roles(made: Draft, facts: Facts, flags: Mapping[Flag, str]) -> None:
    told = set(flags.values())
    by_config = bool(facts.reads_tf_config) or made.strategy == "coordinator"
    workers = 1 if made.strategy == "plain" else 2
    if made.strategy in ("async", "sync", "coordinator"):
        chief = "master" if "master" in facts.texts and "chief" not in facts.texts else "chief"
        asks = by_config and (chief in facts.texts or bool(facts.line_of("train_and_evaluate")))
        if made.strategy == "coordinator" or (asks and not told) or f"{{{chief}_hosts}}" in told:
            made.counts["chief" if made.strategy == "coordinator" else chief] = 1
        made.counts["ps"] = 1
    made.counts["worker"] = workers
    evaluates = "evaluator" in facts.texts or facts.line_of("train_and_evaluate")
    if by_config and evaluates and made.strategy != "multiworker":
        made.counts["evaluator"] = 1
    for flag, placeholder in flags.items():
        role = placeholder.strip("{}").removesuffix("_hosts")
        given = _value(made.command, flag)
        if placeholder.endswith("_hosts}") and given and role in made.counts:
            made.counts[role] = given.count(",") + 1
    if facts.line_of("DispatchServer", "WorkerServer"):
        made.unknown.append(
            "the roles of tf.data's service: add dispatcher: and data_worker:, each with a command of its own"
        )
    if made.strategy == "in_graph":
        made.unknown.append("the names of the roles: `worker` stands for the tasks of the cluster")


def _place_saves(made: Draft, facts: Facts, script: str, taken: set[Flag]) -> None:
    if not facts.saves:
        made.unknown.append(
            f"where {script} saves: no saver of TensorFlow's was found. A program without one begins anew "
            "at each restart; other files than TensorFlow's are named by checkpoint.pattern"
        )
    for use in facts.saves:
        place, where = use.place, f"{facts.at(use.line)} ({use.what})"
        flag = _flag_of(facts, place)
        if flag is not None and flag not in taken:
            _set_flag(made, flag, "{checkpoint_dir}" + _file_part(use, flag.default or ""))
            taken.add(flag)
            made.notes.append(f"{where} saves to the directory of {flag.names[-1]}")
        elif place.kind is PlaceKind.VARIABLE and place.text not in _OURS:
            made.env[place.text] = "{checkpoint_dir}"
            made.notes.append(f"{where} saves to the directory that ${place.text} names")
        elif place.kind is PlaceKind.VARIABLE:
            made.notes.append(f"{where} saves to ${place.text}")
        elif place.kind is PlaceKind.TEMPORARY:
            made.unknown.append(
                f"how to restore what {where} saves to a directory that is new at each start: save to "
                "$CHECKPOINT_DIR"
            )
        elif place.kind is PlaceKind.PATH:
            _adopt(made, use, where)
        elif flag is None:
            made.unknown.append(f"where {where} saves: see that it is below $CHECKPOINT_DIR")


def _adopt(made: Draft, use: Use, where: str) -> None:
    """Adopt the program's own path as the job's checkpoint directory, if possible."""
    path = PurePosixPath(use.place.text)
    whole = use.what in _DIRECTORIES or use.what.endswith(("Estimator", "RunConfig"))
    directory = str(path if whole else path.parent)
    shallow = path.is_absolute() and len(PurePosixPath(directory).parts) < 3
    if directory in (".", "") or ".." in path.parts or shallow or "{" in directory:
        made.unknown.append(
            f"how a job could adopt {use.place.text}, to which {where} saves: save to $CHECKPOINT_DIR"
        )
    elif made.adopt in ("", directory):
        made.adopt = directory
        made.notes.append(f"{where} saves to {use.place.text} by itself")
    else:
        made.unknown.append(
            f"what to do about {use.place.text}, to which {where} saves too: a job adopts one path"
        )


def _place_writes(made: Draft, facts: Facts) -> None:
    """Lead summaries and exports to the output directory."""
    for use in facts.writes:
        flag, place = _flag_of(facts, use.place), use.place
        if flag is not None and not _has_placeholder(made.command, flag):
            _set_flag(made, flag, f"{{output_dir}}/{flag.word}")
        elif place.kind is PlaceKind.VARIABLE and place.text not in _OURS | made.env.keys():
            made.env[place.text] = "{output_dir}"
        elif place.kind is PlaceKind.PATH:
            made.unknown.append(
                f"whether what {facts.at(use.line)} ({use.what}) writes to {place.text} should stay: then "
                "write it to $TFSUP_OUTPUT_DIR"
            )


def _note_steps(made: Draft, facts: Facts, script: str) -> None:
    if facts.prints is not None:
        line, text = facts.prints
        made.notes.append(f"{facts.at(line)} prints its progress: {_shown(text)}")
    elif not facts.line_of(
        "fit", "LoggingTensorHook", "StepCounterHook", "MonitoredTrainingSession", "Estimator"
    ):
        made.unknown.append(
            f"how {script} tells its steps: print one in a line such as `step 100`, write it to "
            "$TFSUP_STEP_FILE, or say how it is read (progress.patterns)"
        )


def _flag_of(facts: Facts, place: Place) -> Flag | None:
    if place.kind is not PlaceKind.FLAG:
        return None
    return next((flag for flag in facts.flags if flag.word == place.text), None)


def _file_part(use: Use, default: str) -> str:
    """The file name for a flag that names a file; empty for a directory."""
    name = PurePosixPath(default).name
    return f"/{name}" if use.what not in _DIRECTORIES and _FILE.search(name) else ""


def _literal(word: str) -> str:
    """A word of the user's command, with braces doubled for the job file."""
    means = "{{" in word or any(problems(word, known_words(()))) or _has_words(word)
    return word.replace("{", "{{").replace("}", "}}") if means else word


def _has_words(word: str) -> bool:
    return any(f"{{{name}}}" in word for name in known_words(()))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line[:60]


def _place_in(command: Sequence[str], flag: Flag) -> tuple[int, bool] | None:
    """Index of a flag in a command, and whether its value is in the same word."""
    for index, word in enumerate(command):
        name, equals, _ = word.partition("=")
        same = word.startswith("-") and name.replace("-", "_").strip("_") == flag.word
        if same or name in flag.names:
            return index, bool(equals)
    return None


def _given(command: Sequence[str], flag: Flag) -> bool:
    return _place_in(command, flag) is not None


def _value(command: Sequence[str], flag: Flag) -> str:
    found = _place_in(command, flag)
    if found is None:
        return ""
    index, joined = found
    if joined:
        return command[index].partition("=")[2]
    return command[index + 1] if index + 1 < len(command) else ""


def _has_placeholder(command: Sequence[str], flag: Flag) -> bool:
    return _value(command, flag).startswith("{")


def _set_flag(made: Draft, flag: Flag, value: str) -> None:
    """Set the value of a flag, in its form in the command, or else at the end."""
    found = _place_in(made.command, flag)
    if found is None:
        name = max(flag.names, key=len)
        made.command += [f"{name}={value}"] if name.startswith("--") else [name, value]
        return
    index, joined = found
    if joined:
        made.command[index] = f"{made.command[index].partition('=')[0]}={value}"
    else:
        made.command[index + 1 : index + 2] = [value]


def text_of(made: Draft, source: str, file: str, code: str = "") -> str:
    """The text of the job file.

    `source`: the command it is made from; `file`: its own name; `code`: the directory to ship.
    """
    lines = [
        f"# Written by `supervisorctl init` from {source}. Read it through, then run",
        f"#   supervisorctl validate {file} && supervisorctl run {file}",
        f"name: {scalar(made.name)}",
        "",
        f"# {_sentence(made.why)} The strategy says how much a failure restarts.",
        f"strategy: {made.strategy}",
        "",
        "# Words in braces, such as {task_index}, are filled in when a task starts; {{ is a brace.",
        "command:",
        *(f"- {scalar(word)}" for word in made.command),
        "",
        "# What one task needs: resources: {cpus: 2, memory: 4GiB, gpus: 1}",
        "roles:",
        *(f"  {role}: {{count: {count}}}" for role, count in made.counts.items()),
        "",
    ]
    if made.env:
        lines += ["env:", *(f"  {name}: {scalar(value)}" for name, value in made.env.items()), ""]
    if not made.imports_tensorflow:
        lines += [
            "# The program does not import TensorFlow, so nothing is imported before it starts.",
            "preload: []",
            "",
        ]
    lines += [f"# {_sentence(note)}" for note in made.notes]
    lines += [
        "checkpoint:",
        "  # uri: hdfs://NAMESERVICE/jobs/NAME  # where commits go; else below the cluster's own directory",
        "  keep: 5",
        *([f"  adopt: {scalar(made.adopt)}"] if made.adopt else []),
        "",
    ]
    if code:
        lines += [
            "# The directory that the program runs in is shipped to the nodes.",
            f"code: {{dir: {scalar(code)}}}",
        ]
    else:
        lines += [
            "# Ships this directory to the nodes; without it they must share it.",
            "# code: {dir: ., exclude: [data/]}",
        ]
    if made.unknown:
        lines += ["", "# Could not be told:", *(f"# - {each}" for each in made.unknown)]
    return "\n".join(_printable(line) for line in lines) + "\n"


def _sentence(text: str) -> str:
    """The text with a full stop, and with a capital letter unless it begins with a file's name."""
    first = text.partition(" ")[0]
    return f"{text}." if ":" in first else f"{text[:1].upper()}{text[1:]}."


def _printable(line: str) -> str:
    """A comment in a safe form: text from the program in it can neither end the line nor steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in line)
