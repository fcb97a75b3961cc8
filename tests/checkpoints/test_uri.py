"""Checkpoint URIs: what is refused, with which words, and one text for each place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.stores.local import LocalStore
from recovery.stores.open import Stores, normal_uri
from supervisor.adapters.files.hadoop import HadoopSettings, read_conf
from supervisor.adapters.files.store_uri import parse_record_uri
from supervisor.contract.errors import UserError

HDFS_SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>dfs.nameservices</name><value>ns1,ns2</value></property>
  <property><name>dfs.ha.namenodes.ns1</name><value>nn0, nn1</value></property>
  <property><name>dfs.namenode.rpc-address.ns1.nn0</name><value>a.example:8020</value></property>
  <property><name>dfs.namenode.rpc-address.ns1.nn1</name><value>b.example:8020</value></property>
  <property><name>dfs.ha.namenodes.ns2</name><value>only</value></property>
  <property><name>dfs.namenode.rpc-address.ns2.only</name><value>c.example:9000</value></property>
</configuration>
"""


@pytest.fixture
def hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HadoopSettings:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "hdfs-site.xml").write_text(HDFS_SITE)
    return HadoopSettings(conf_dir=str(tmp_path))


def test_a_local_directory_has_one_text() -> None:
    spelt = ("file:///a/b//c/.", "/a/b/c/", "file://localhost/a/b/c", "file:///a/%62/c")
    assert {normal_uri(uri) for uri in spelt} == {"file:///a/b/c"}
    assert isinstance(Stores().open("file:///tmp/nothing-is-touched"), LocalStore)


def test_a_directory_in_hdfs_has_one_text(hadoop: HadoopSettings) -> None:
    spelt = (
        "hdfs://ns1/jobs/x",
        "hdfs://ns1//jobs/./x/",
        "hdfs://a.example:8020/jobs/x",
        "hdfs://B.Example:08020/jobs/x",
    )
    assert {normal_uri(uri, hadoop) for uri in spelt} == {"hdfs://ns1/jobs/x"}
    assert normal_uri("hdfs://Other:8020/jobs/x", hadoop) == "hdfs://other:8020/jobs/x"


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "scheme"),
        ("relative", "scheme"),
        ("s3://bucket/x", "scheme"),
        ("HTTP://host/x", "scheme"),
        ("file://host/a", "three slashes"),
        ("file:///a/../b", "without '..'"),
        ("file:///a/%2e%2e/b", "without '..'"),
        ("file:///a%00", "without"),
        ("/", "names the root"),
        ("file:///", "names the root"),
        ("hdfs://ns1/", "names the root"),
        ("hdfs://ns1", "absolute directory"),
        ("hdfs:///jobs/x", "names no cluster"),
        ("hdfs:/jobs/x", "names no cluster"),
        ("hdfs://ns1/a/../b", "without '..'"),
        ("hdfs://ns1/a/%2e%2e/b", "escape"),
        ("hdfs://ns1/a/%2E/b", "escape"),
        ("hdfs://user@ns1/a", "names a user"),
        ("hdfs://user:secret@ns1/a", "names a user"),
        ("hdfs://ns1/a?x=1", "query"),
        ("hdfs://ns1/a#x", "fragment"),
        ("hdfs://ns1/a?", "query"),
        ("hdfs://host:0/a", "is no port"),
        ("hdfs://host:65536/a", "is no port"),
        ("hdfs://host:/a", "neither"),
        ("hdfs://host:port/a", "neither"),
        ("hdfs://-x/a", "neither"),
        ("hdfs://a b/a", "neither"),
        ("hdfs://[::1/a", "not understood"),
        ("hdfs://ns1/a/.snapshot/b", "keeps for itself"),
        ("hdfs://ns1/a\nb", "control character"),
    ],
)
def test_what_is_no_checkpoint_uri(hadoop: HadoopSettings, uri: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        normal_uri(uri, hadoop)
    assert repr(uri) in str(caught.value)


def test_a_jobs_record_may_name_a_user_of_hdfs(hadoop: HadoopSettings) -> None:
    for uri, user in (("hdfs://ann@ns1/jobs/x", "ann"), ("hdfs://ns1/jobs/x@y", ""), ("file:///a@b", "")):
        place = parse_record_uri(uri)
        assert (place.user, str(place)) == (user, uri.replace("ann@", ""))
    known = parse_record_uri("hdfs://ann@a.example:8020/jobs/x").known_to(read_conf(hadoop.directory()))
    assert (known.authority, known.user) == ("ns1", "ann")
    for odd in ("hdfs://a@b@ns1/x", "hdfs://-a@ns1/x", "hdfs://@ns1/x", "hdfs://a:b@ns1/x"):
        with pytest.raises(UserError, match="is no user of HDFS"):
            parse_record_uri(odd)


def test_an_unknown_nameservice_is_named_with_those_that_are_known(hadoop: HadoopSettings) -> None:
    with pytest.raises(
        UserError, match=r"(?s)no nameservice 'nsX' in .* knows: ns1, ns2; set HADOOP_CONF_DIR"
    ):
        Stores(hadoop).open("hdfs://nsX/jobs/x")
    with pytest.raises(UserError, match="HADOOP_CONF_DIR is not set"):
        Stores().open("hdfs://ns1/jobs/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<configuration><property>", "is no XML"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><configuration/>', "entities"),
        ("x" * (5 << 20), "larger than"),
    ],
)
def test_a_configuration_that_is_none(hadoop: HadoopSettings, text: str, words: str) -> None:
    assert hadoop.conf_dir is not None
    (Path(hadoop.conf_dir) / "core-site.xml").write_text(text)
    with pytest.raises(UserError, match=words):
        Stores(hadoop).open("hdfs://ns1/jobs/x")


def test_a_configuration_directory_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Stores(HadoopSettings(conf_dir=str(tmp_path / "none"))).open("hdfs://ns1/jobs/x")


@pytest.mark.parametrize("program", ["agent.main", "supervisor.main", "supervisor.cli.main"])
def test_a_cluster_without_hdfs_does_not_load_its_client(program: str) -> None:
    code = (
        "import importlib, sys\n"
        "from recovery.stores.open import Stores\n"
        f"importlib.import_module({program!r})\n"
        "Stores().open('file:///tmp/nothing-is-touched')\n"
        "sys.exit('hdfs_native' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("conf_dir", ["", "/etc/hadoop/conf"])
def test_a_daemon_loads_its_client_before_it_serves_where_hadoop_is_configured(conf_dir: str) -> None:
    code = (
        "import sys\n"
        "from recovery.stores.open import Stores\n"
        "from supervisor.adapters.files.hadoop import HadoopSettings\n"
        f"Stores(HadoopSettings(conf_dir={conf_dir!r})).preload()\n"
        f"sys.exit(('hdfs_native' in sys.modules) != {bool(conf_dir)})\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HADOOP_")}
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, env=clean).returncode == 0
