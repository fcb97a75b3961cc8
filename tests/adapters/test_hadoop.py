"""The `hdfs` section of a configuration: read, refused with the field named, and handed on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.adapters.files.config.supervisor import load_supervisor
from supervisor.adapters.files.hadoop import (
    HadoopConf,
    HadoopSettings,
    Kerberos,
    NameNode,
    inherited_environment,
    read_conf,
)
from supervisor.contract.errors import UserError

DAEMON = """\
cluster: c
id: s0
etcd: {endpoints: ["127.0.0.1:2379"]}
listen: unix:/tmp/s0.sock
state_dir: state
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "supervisor.yaml"
    path.write_text(DAEMON + text)
    return path


def test_nothing_said_leaves_it_to_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_supervisor(write(tmp_path, "")).hadoop.settings()
    assert settings == HadoopSettings()
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert settings.directory() is None
    monkeypatch.setenv("HADOOP_HOME", "/opt/hadoop")
    assert settings.directory() == Path("/opt/hadoop/etc/hadoop")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert settings.directory() == Path("/etc/hadoop")
    assert HadoopSettings(conf_dir="/mine").directory() == Path("/mine")


def test_user_and_directory_reach_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "before")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/before")
    (tmp_path / "conf").mkdir()
    config = load_supervisor(write(tmp_path, "hadoop: {conf_dir: conf, user: training}\n"))
    config.hadoop.settings().put_into_environment()
    assert os.environ["HADOOP_USER_NAME"] == "training"
    assert os.environ["HADOOP_CONF_DIR"] == str(tmp_path / "conf")


def test_kerberos_by_keytab(tmp_path: Path) -> None:
    keytab = tmp_path / "tfsup.keytab"
    keytab.touch(mode=0o600)
    text = "hadoop:\n  kerberos: {principal: tfsup/a.example@EXAMPLE, keytab: tfsup.keytab}\n"
    settings = load_supervisor(write(tmp_path, text)).hadoop.settings()
    assert settings.kerberos == Kerberos("tfsup/a.example@EXAMPLE", str(keytab))
    keytab.chmod(0o640)
    with pytest.raises(UserError, match=r"supervisor\.yaml:7: hadoop\.kerberos\.keytab: .*chmod 600"):
        load_supervisor(write(tmp_path, text))
    keytab.unlink()
    with pytest.raises(UserError, match=r"hadoop\.kerberos\.keytab: .*No such file"):
        load_supervisor(write(tmp_path, text))


def test_proxy_users_need_an_hdfs_with_kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    text = "hadoop:\n  proxy_users: true\n  kerberos: {principal: tfsup/a@B}\n"
    with pytest.raises(UserError, match=r"supervisor\.yaml:7: hadoop\.proxy_users: .*anybody for any user"):
        load_supervisor(write(tmp_path, text))
    conf = tmp_path / "conf"
    conf.mkdir()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    for how, fine in (("simple", False), ("kerberos", True)):
        rows = f"<property><name>hadoop.security.authentication</name><value>{how}</value></property>"
        (conf / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
        if fine:
            assert load_supervisor(write(tmp_path, text)).hadoop.settings().proxy_users
            continue
        with pytest.raises(UserError, match=r"hadoop\.proxy_users: needs"):
            load_supervisor(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hadoop: {conf_dir: nowhere}", r":6: hadoop\.conf_dir: .*does not exist"),
        ("hadoop: {user: a, kerberos: {principal: a@B}}", r"hadoop\.user: contradicts"),
        ("hadoop: {kerberos: {keytab: x}}", "principal"),
        ("hadoop: {proxy_users: true}", r":6: hadoop\.proxy_users: needs hadoop\.kerberos"),
        ("hadoop: {proxy_users: 1, kerberos: {principal: a@B}}", r"hadoop\.proxy_users"),
        ("hadoop: {usr: a}", r"hadoop\.usr"),
    ],
)
def test_mistakes_are_named_with_field_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_supervisor(write(tmp_path, text + "\n"))


def test_a_process_elsewhere_finds_the_same_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HADOOP_CONF_DIR", "conf")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    assert inherited_environment()["HADOOP_CONF_DIR"] == str(tmp_path / "conf")
    assert "HADOOP_HOME" not in inherited_environment()


def test_the_later_file_wins_and_namenodes_keep_their_order(tmp_path: Path) -> None:
    def site(**properties: str) -> str:
        rows = (f"<property><name>{k}</name><value> {v} </value></property>" for k, v in properties.items())
        return f"<configuration>{''.join(rows)}</configuration>"

    (tmp_path / "core-site.xml").write_text(site(**{"dfs.replication": "1"}))
    (tmp_path / "hdfs-site.xml").write_text(
        site(
            **{
                "dfs.replication": "2",
                "dfs.ha.namenodes.ns": "b,a,without-address",
                "dfs.namenode.rpc-address.ns.a": "a:1",
                "dfs.namenode.rpc-address.ns.b": "b:2",
            }
        )
    )
    conf = read_conf(tmp_path)
    nodes = (NameNode("b", "b:2"), NameNode("a", "a:1"))
    assert conf.properties["dfs.replication"] == "2"
    assert conf.namenodes("ns") == nodes
    assert (conf.nameservice_of("A:1"), conf.nameservice_of("a:2")) == ("ns", None)
    assert HadoopConf.reordered("ns", nodes, 1) == {"dfs.ha.namenodes.ns": "a,b"}


@pytest.mark.parametrize(
    ("authority", "properties", "expected"),
    [
        ("nn:8020", {}, ("nn:9870",)),
        ("nn:8020", {"dfs.namenode.http-address": "web:50070"}, ("web:50070",)),
        ("nn:8020", {"dfs.namenode.http-address": "0.0.0.0:50070"}, ("nn:50070",)),
        ("nn:8020", {"dfs.namenode.http-address": "[::]:50070"}, ("nn:50070",)),
        ("nn:8020", {"dfs.http.policy": "HTTPS_ONLY"}, ()),
        ("nn:8020", {"dfs.http.policy": "HTTP_AND_HTTPS"}, ("nn:9870",)),
        ("nn:8020", {"hadoop.security.authentication": "Kerberos"}, ()),
        ("ns", {"dfs.namenode.http-address.ns.a": "web:1"}, ("web:1", "b:9870")),
    ],
)
def test_where_namenodes_speak_http(
    authority: str, properties: dict[str, str], expected: tuple[str, ...]
) -> None:
    two = {
        "dfs.ha.namenodes.ns": "a,b",
        "dfs.namenode.rpc-address.ns.a": "a:8020",
        "dfs.namenode.rpc-address.ns.b": "b:8020",
    }
    assert HadoopConf(two | properties).web_addresses(authority) == expected
