"""Requests with a submitter's certificate, by a client that checks nothing (`tests/attacks/calls.py`)."""

from __future__ import annotations

from tests.attacks.attack import Attack, Failed


def _calls(name: str, tries: str, calls: str) -> Attack:
    return Attack(name=name, tries=tries, calls=calls)


def _ships(kind: str, tries: str) -> Attack:
    return Attack(
        name=f"code-{kind}", tries=f"an archive of code {tries}", calls=f"ship:{kind}", ends=Failed("archive")
    )


ATTACKS = (
    _calls("stop-other", "to stop, restart, release and signal another user's job", "act_on_it"),
    _calls("exec-other", "to run a command in another user's task", "run_in_it"),
    _calls("delete-other", "to delete another user's job, and to submit one of its name", "delete_it"),
    _calls(
        "checkpoints-of-other",
        "to pin, collect, import and rebuild another user's checkpoints",
        "take_its_checkpoints",
    ),
    _calls("import-elsewhere", "to import into its own job from other directories", "import_from_elsewhere"),
    _calls(
        "directory-of-other",
        "a job in another user's directory, by dots, escapes, hosts and prefixes",
        "use_its_directory",
    ),
    _calls("drain-node", "to cordon and drain a node", "drain_its_node"),
    _calls("as-agent", "beats and requests for promises of a node", "speak_as_the_agent"),
    _calls(
        "as-supervisor",
        "an agent's own methods: exec, signal, read, list",
        "speak_as_a_supervisor",
    ),
    _calls("etcd-keys", "to write and read etcd with its certificate", "write_to_etcd"),
    _calls(
        "hostile-paths",
        "names of jobs and tasks that are paths, empty, long, with NUL, in other letters",
        "names_of_paths",
    ),
    _calls(
        "no-records",
        "bodies that are no JSON, deep, of another record, of a newer release, with NaN",
        "no_json",
    ),
    _calls("huge-messages", "messages of 2 and 32 MiB", "large_messages"),
    _calls("many-streams", "300 streams of events at once", "many_streams"),
    _calls("idle-connections", "2,000 connections to a supervisor that say nothing", "many_connections"),
    _calls(
        "out-of-bounds", "jobs beyond each bound, past the checks of `supervisorctl`", "beyond_the_bounds"
    ),
    _calls(
        "greedy-containers",
        "containers with what is not theirs, past the checks of `supervisorctl`",
        "ask_for_the_machine",
    ),
    _calls(
        "wrong-digest",
        "an archive under another one's digest; parts that do not fit",
        "code_under_a_wrong_name",
    ),
    _ships("dots", "with a member ../../../canary/planted"),
    _ships("absolute", "with an absolute member"),
    _ships("pax", "whose pax header gives a member another path"),
    _ships("link", "with a link to /etc/shadow"),
    _ships("through", "with a member below a link"),
    _ships("hard", "with a hard link to /etc/shadow"),
    _ships("device", "with a device"),
    _ships("fifo", "with a pipe"),
    _ships("bomb", "that unpacks to 400 MiB"),
    _ships("noise", "that is no tar"),
    _ships("cut", "that is cut off"),
)
