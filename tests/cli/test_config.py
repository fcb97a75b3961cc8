"""Configuration of the daemons: defaults, paths, and doors that stand open."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from supervisor.adapters.files.config.agent import load_agent
from supervisor.adapters.files.config.client import load_client
from supervisor.adapters.files.config.supervisor import load_supervisor
from supervisor.contract.access import Role, Standing
from supervisor.contract.errors import UserError
from supervisor.contract.incident import Topic
from supervisor.contract.secret import Source
from supervisor.main import load

SUPERVISOR: dict[str, object] = {
    "id": "s0",
    "cluster": "c",
    "etcd": {"endpoints": ["127.0.0.1:2379"]},
    "listen": "unix:/run/s0.sock",
    "state_dir": "state",
}
AGENT: dict[str, object] = {
    "node": "n0",
    "cluster": "c",
    "etcd": {"endpoints": ["unix:/run/etcd"]},
    "supervisors": ["unix:/run/s0.sock"],
    "listen": "unix:/run/n0.sock",
    "state_dir": "state",
    "checkpoint_parent": "/tasks",
    "lock_dir": "locks",
    "task_user": f"{os.geteuid()}:{os.getegid()}",
}
TLS = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}


def write(directory: Path, body: dict[str, object]) -> Path:
    (directory / "locks").mkdir(exist_ok=True)
    path = directory / "config.yaml"
    path.write_text(json.dumps(body))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load_agent(write(tmp_path, AGENT | {"tls": TLS, "memory": "2GiB"}))
    assert config.state_dir == str(tmp_path / "state")
    assert config.checkpoint_parent == "/tasks"
    files = config.tls_files()
    assert files is not None
    assert files.key == tmp_path / "key.pem"
    assert config.memory == 2 << 30
    assert config.timing.profile == "default"
    assert (config.port_low, config.port_high) == (20_000, 29_999)
    assert config.address == "unix:/run/n0.sock"


def test_control_plane_grace_is_d(tmp_path: Path) -> None:
    config = load_supervisor(write(tmp_path, SUPERVISOR | {"profile": "fast", "control_plane_grace": "20s"}))
    assert config.timing.d_ms == 20_000
    with pytest.raises(
        UserError, match=r"control_plane_grace: timing profile 'fast'.* is more than D = 500 ms"
    ):
        load_supervisor(write(tmp_path, SUPERVISOR | {"profile": "fast", "control_plane_grace": "500ms"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"listen": "0.0.0.0:7000"}, r"listen: 0.0.0.0:7000 can be reached from other machines"),
        ({"listen": "127.0.0.1:7000"}, r"listen: every user of this machine could connect; add `token_file"),
        (
            {"etcd": {"endpoints": ["10.0.0.1:2379"]}},
            r"etcd.endpoints: 10.0.0.1:2379 can be reached from other",
        ),
        ({"etcd": {"endpoints": ["127.0.0.1:1", "h:2"]}}, r"etcd.endpoints\[1\]: h:2 can be reached"),
        (
            {"listen": "nowhere"},
            r"listen: 'nowhere' is not an address; |listen: 'nowhere' is not an address:",
        ),
        ({"listen": "unix:x"}, r"listen: 'unix:x' is not an address; write unix:/absolute/path"),
        ({"listen": "unix:/" + "x" * 120}, r"listen: the socket's path is longer than 100 bytes"),
        (
            {"listen": "0.0.0.0:7000", "insecure": True},
            r"listen: 0.0.0.0:7000 is no address that others could connect to; add `advertise",
        ),
        (
            {"listen": "0.0.0.0:7000", "insecure": True, "advertise": "[::]:1"},
            "advertise: write the address that others connect to",
        ),
        ({"id": "a/b"}, r"id: the name 'a/b' is not a valid name"),
        ({"profil": "fast"}, r"profil: unknown key; did you mean 'profile'\?"),
        ({"profile": "slow"}, r"profile: input should be 'fast' or 'default'"),
        ({"etcd": {}}, r"etcd.endpoints: missing; add `endpoints: \[127.0.0.1:2379\]`"),
        ({"token_file": "/nowhere", "listen": "127.0.0.1:1"}, ""),
    ],
)
def test_mistakes(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write(tmp_path, SUPERVISOR | change)
    if not message:
        load_supervisor(path)
        return
    with pytest.raises(UserError, match=rf"^{path}:1: {message}"):
        load_supervisor(path)


def test_a_guarded_or_insecure_door_may_be_open(tmp_path: Path) -> None:
    open_door: dict[str, object] = {"listen": "0.0.0.0:7000", "advertise": "10.0.0.7:7000"}
    load_supervisor(write(tmp_path, SUPERVISOR | open_door | {"tls": TLS}))
    load_supervisor(write(tmp_path, SUPERVISOR | open_door | {"insecure": True}))


def test_a_token_is_kept_from_others(tmp_path: Path) -> None:
    body: dict[str, object] = {"cluster": "c", "supervisors": ["127.0.0.1:1"], "token_file": "token"}
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    config = load_client(write(tmp_path, body))
    with pytest.raises(UserError, match="others on this machine can read this token; run: chmod 600"):
        _ = config.token
    token.chmod(0o600)
    assert config.token == "0" * 64
    token.write_text("short")
    with pytest.raises(UserError, match="at least 32 characters"):
        _ = config.token


def test_an_agents_own_rules(tmp_path: Path) -> None:
    body = AGENT | {"port_low": 3000, "port_high": 2000, "host": "a", "interface": "b"}
    with pytest.raises(UserError) as caught:
        load_agent(write(tmp_path, body | {"lock_dir": "nowhere"}))
    assert f"lock_dir: {tmp_path}/nowhere is no directory; run: mkdir" in str(caught.value)
    assert "port_high: is below port_low (3000)" in str(caught.value)
    assert "interface: contradicts host" in str(caught.value)


def test_a_mistake_in_denied_is_told(tmp_path: Path) -> None:
    assert load_agent(write(tmp_path, AGENT | {"denied": ["supervisor:s9"]})).denied == ["supervisor:s9"]
    with pytest.raises(UserError, match="'bob' is nobody; write user:NAME, agent:NODE or supervisor:NAME"):
        load_supervisor(write(tmp_path, SUPERVISOR | {"denied": ["bob"]}))


def test_users_have_roles_and_no_user_has_one_by_default(tmp_path: Path) -> None:
    assert load_supervisor(write(tmp_path, SUPERVISOR)).users == {}
    users = {"alice@example.com": {"role": "admin"}, "*": {"role": "viewer", "group": "g"}}
    config = load_supervisor(write(tmp_path, SUPERVISOR | {"users": users}))
    assert {name: user.standing for name, user in config.users.items()} == {
        "alice@example.com": Standing(Role.ADMIN),
        "*": Standing(Role.VIEWER, "g"),
    }


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"a": {"role": "root"}}, "users.a.role"),
        ({"a": {}}, "add `role: viewer`"),
        ({"a b": {"role": "viewer"}}, "'a b' is no name of a user"),
        ({"a": {"role": "viewer", "groups": []}}, "groups"),
    ],
)
def test_a_mistake_in_users_is_told(tmp_path: Path, users: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_supervisor(write(tmp_path, SUPERVISOR | {"users": users}))


def test_secrets_have_a_source_and_say_who_may_use_them(tmp_path: Path) -> None:
    assert load_supervisor(write(tmp_path, SUPERVISOR)).secrets == {}
    secrets = {
        "hf": {"file": "secrets/hf", "allow": ["user:alice", "group:vision"]},
        "db": {"command": ["vault", "read", "db"], "allow": ["*"]},
    }
    config = load_supervisor(write(tmp_path, SUPERVISOR | {"secrets": secrets}))
    assert {name: each.source for name, each in config.secrets.items()} == {
        "hf": Source(frozenset({"user:alice", "group:vision"}), file=f"{tmp_path}/secrets/hf"),
        "db": Source(frozenset({"*"}), command=("vault", "read", "db")),
    }


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ({"file": "x"}, r"secrets.hf.allow: missing; add `allow: \[user:NAME, group:NAME\]`"),
        ({"file": "x", "allow": []}, r"secrets.hf.allow: must be a list of at least 1"),
        (
            {"file": "x", "allow": ["alice"]},
            r"secrets.hf.allow\[0\]: 'alice' is no owner of jobs; write user:NAME",
        ),
        ({"file": "x", "allow": ["agent:n1"]}, "'agent:n1' is no owner of jobs"),
        ({"file": "x", "allow": ["group:a b"]}, "'group:a b' is no owner of jobs"),
        ({"allow": ["*"]}, r"secrets.hf: needs `file: PATH` or `command: \[PROGRAM, ...\]`, one of the two"),
        ({"allow": ["*"], "file": "x", "command": ["y"]}, "one of the two"),
        ({"allow": ["*"], "value": "Abcdefgh"}, "secrets.hf.value: unknown key"),
    ],
)
def test_a_mistake_in_secrets_is_told(tmp_path: Path, secret: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        load_supervisor(write(tmp_path, SUPERVISOR | {"secrets": {"hf": secret}}))
    assert "Abcdefgh" not in str(raised.value)


def test_a_supervisor_without_a_guard_has_no_secrets(tmp_path: Path) -> None:
    secrets = {"hf": {"file": "x", "allow": ["*"]}}
    opened = SUPERVISOR | {"secrets": secrets, "listen": "127.0.0.1:7070", "insecure": True}
    with pytest.raises(UserError, match="secrets: whoever reaches `listen` would get them"):
        load_supervisor(write(tmp_path, opened))


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        ({"required": True}, r"audit.required: needs `audit.file: PATH` or `audit.journald: true`"),
        ({"file": "a.jsonl", "journald": True}, "audit.journald: contradicts audit.file"),
    ],
)
def test_a_mistake_in_audit_is_told(tmp_path: Path, audit: dict[str, object], message: str) -> None:
    assert (
        load_supervisor(write(tmp_path, SUPERVISOR | {"audit": {"file": "a"}})).audit.file == f"{tmp_path}/a"
    )
    with pytest.raises(UserError, match=message):
        load_supervisor(write(tmp_path, SUPERVISOR | {"audit": audit}))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://bucket/code", "code_store: .*its scheme is not understood"),
        ("hdfs://prod/../code", "code_store: .*must name an absolute directory"),
        ("hdfs://tfsup@prod/code", "code_store: names the user tfsup, which needs hadoop.proxy_users"),
        ("/" + "x" * 512, "code_store: "),
    ],
)
def test_a_mistake_in_the_store_of_code_is_told(tmp_path: Path, uri: str, message: str) -> None:
    good = load_supervisor(write(tmp_path, SUPERVISOR | {"code_store": "hdfs://prod/code"}))
    assert good.code_store == "hdfs://prod/code"
    with pytest.raises(UserError, match=message) as raised:
        load_supervisor(write(tmp_path, SUPERVISOR | {"code_store": uri}))
    assert "checkpoint.uri" not in str(raised.value)


def test_an_authority_of_users_is_taken_beside_that_of_machines(tmp_path: Path) -> None:
    config = load_supervisor(write(tmp_path, SUPERVISOR | {"tls": TLS, "user_ca": "users.pem"}))
    files = config.tls_files()
    assert files is not None
    assert (files.ca, files.user_ca) == (tmp_path / "ca.pem", tmp_path / "users.pem")
    with pytest.raises(UserError, match="user_ca: needs `tls:"):
        load_supervisor(write(tmp_path, SUPERVISOR | {"user_ca": "users.pem"}))


def test_the_http_door_is_guarded_as_the_other_one(tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("x" * 32)
    own = {"http": {"listen": "127.0.0.1:8080", "token_file": "token"}}
    config = load_supervisor(write(tmp_path, SUPERVISOR | own | {"tls": TLS}))
    assert (config.http_token, config.http_tls_files(), config.token) == ("x" * 32, None, "")
    agent = load_agent(
        write(
            tmp_path,
            AGENT | {"http": {"listen": "h:1"}, "tls": TLS, "user_ca": "users.pem", "token_file": "token"},
        )
    )
    files = agent.http_tls_files()
    assert files is not None
    assert (agent.http_token, files.user_ca) == ("", tmp_path / "users.pem")
    own_files = agent.tls_files()
    assert own_files is not None
    assert own_files.user_ca is None, "on gRPC an agent knows no users"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"http": {"listen": "127.0.0.1:1"}}, r"http.listen: every user of this machine could connect"),
        ({"http": {"listen": "h:1"}}, r"http.listen: h:1 can be reached from other machines"),
        ({"http": {"listen": "h:1", "token_file": "t"}, "tls": TLS}, r"http.listen: h:1 can be reached"),
        ({"http": {"listen": "unix:/run/x"}}, r"http.listen: browsers open no sockets"),
        ({"http": {"listen": "0.0.0.0:1"}, "tls": TLS}, r"http.listen: .* add `http.advertise"),
        ({"users": {"vera": {"role": "viewer"}}}, r"users: users call an agent by `http` alone"),
    ],
)
def test_an_open_http_door_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_agent(write(tmp_path, AGENT | change))


FENCE = {"command": ["true"], "options": {"plug": "1"}, "nodes": ["n0"]}


def test_fence_devices_have_defaults_and_paths_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "ipmi").touch(mode=0o600)
    body = SUPERVISOR | {"profile": "fast", "fence": {"devices": [FENCE | {"options_file": "ipmi"}]}}
    config = load_supervisor(write(tmp_path, body))
    assert config.fence_after_ms + config.timing.suspect_ms == config.timing.unread_ms
    (each,) = config.fence.devices
    assert each.device.options_file == str(tmp_path / "ipmi")
    assert each.device.serves("n0", {})
    assert load_supervisor(write(tmp_path, SUPERVISOR | {"fence": {"after": "0s"}})).fence_after_ms == 0


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([FENCE | {"labels": {"rack": "a"}}], r"fence\.devices\[0\].*one of the two"),
        ([FENCE | {"options": {"action": "off"}}], "is no option of a device"),
        ([FENCE | {"options_file": "/none/ipmi"}], "/none/ipmi: No such file"),
        ([FENCE | {"options_file": "/etc/passwd"}], "others on this machine can read /etc/passwd"),
        ([FENCE | {"nodes": ["n0", "n1"]}], "the same machine for every node; write {node}"),
        ([{"command": ["true"], "labels": {"rack": "a"}}], "the same machine for every node; write {node}"),
        ([FENCE, FENCE | {"options": {"plug": "2"}}], "n0 has a device already: number 1"),
        ([FENCE, FENCE | {"nodes": ["n1"]}], "would switch off the same machine for n0 and for n1"),
    ],
)
def test_a_fence_device_that_could_hit_another_machine_is_refused(
    tmp_path: Path, devices: list[object], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        load_supervisor(write(tmp_path, SUPERVISOR | {"fence": {"devices": devices}}))


@pytest.mark.parametrize(
    ("program", "why"), [("fence_none", "is not on this machine"), ("/etc/passwd", "is not executable")]
)
def test_a_supervisor_needs_the_programs_of_its_fence_devices(tmp_path: Path, program: str, why: str) -> None:
    path = write(tmp_path, SUPERVISOR | {"fence": {"devices": [FENCE | {"command": [program]}]}})
    with pytest.raises(UserError, match=rf"fence\.devices\[0\]\.command: {program} {why}"):
        load(path)
    load_supervisor(path)  # as commands do on other machines


@pytest.mark.parametrize(
    ("written", "read"),
    [("gpu-1", "gpu-1"), ("10.0.0.1", "10.0.0.1"), ("[fd00::1]", "fd00::1"), ("::1", "::1")],
)
def test_a_host_is_a_name_or_an_address(tmp_path: Path, written: str, read: str) -> None:
    assert load_agent(write(tmp_path, AGENT | {"host": written})).host == read


def test_a_host_with_a_port_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="host: 'gpu-1:80' is no host; write a name or an address"):
        load_agent(write(tmp_path, AGENT | {"host": "gpu-1:80"}))


def test_targets_of_notifications_are_read_with_paths_relative_to_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "pager.secret"
    secret.write_text("s")
    secret.chmod(0o600)
    targets = {
        "pager": {"webhook": "https://hooks.example/x", "secret_file": "pager.secret", "on": ["failed"]},
        "team": {"command": ["true"], "jobs": "named"},
    }
    body = SUPERVISOR | {"notify": {"targets": targets}, "brake": {"lost_fraction": 0.7, "window": "2m"}}
    config = load_supervisor(write(tmp_path, body))
    assert config.notify.targets["pager"].secret_file == str(secret)
    assert config.notify.targets["pager"].on == [Topic.FAILED]
    assert config.notify.targets["team"].on == list(Topic)
    assert (config.brake.lost_fraction, config.brake.window) == (0.7, 120_000)


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ({"command": ["true"], "on": ["fialed"]}, r"notify.targets.pager.on\[0\]: 'fialed' is nothing"),
        ({"command": ["true"], "on": []}, "notify.targets.pager.on"),
        ({}, "notify.targets.pager: needs `webhook: URL`"),
        ({"webhook": "https://a/b", "command": ["true"]}, "one of them"),
        ({"command": ["true"], "secret_file": "gone"}, "notify.targets.pager.secret_file"),
        ({"webhook": "http://hooks.example/x"}, "notify.targets.pager.webhook: is read by everybody"),
    ],
)
def test_a_target_that_cannot_be_told_is_an_error_that_names_its_field(
    tmp_path: Path, target: dict[str, object], wrong: str
) -> None:
    with pytest.raises(UserError, match=wrong):
        load_supervisor(write(tmp_path, SUPERVISOR | {"notify": {"targets": {"pager": target}}}))
