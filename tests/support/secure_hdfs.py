"""A NameNode and a DataNode that believe Kerberos alone, and the KDC that they believe.

A YARN with Kerberos can be started beside them: `YarnCluster(Secured(hdfs.directory, ...))`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from hdfs_native import Client

from chaos.processes import DIES_WITH_US
from tests.support.ports import free_port

REALM = "TEST"
CLIENT = f"tfsup/localhost@{REALM}"
SERVER = f"hdfs/localhost@{REALM}"
YARN = f"yarn/localhost@{REALM}"
START_S = 90.0
_WEB = f"HTTP/localhost@{REALM}"
_ROOT = Path(__file__).resolve().parents[2]
_SERVERS = "org.apache.hadoop.hdfs.server"


class SecureHdfs:
    """A context manager that leaves nothing behind. RPC and data are encrypted; blocks need tokens.

    Its daemons end with this process, also when it is killed.

    `properties`: more of the NameNode's.
    """

    def __init__(self, properties: Mapping[str, str] = MappingProxyType({})) -> None:
        self._properties = properties
        self._temporary = tempfile.TemporaryDirectory(prefix="secure-hdfs-")
        self.directory = Path(self._temporary.name)
        self.keytab = self.keytab_of(CLIENT)
        self.conf_dir = self.directory / "client"
        self._port = free_port()
        self._kdc_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        tools = subprocess.run([_ROOT / "deploy" / "get-kdc.sh"], check=True, capture_output=True, text=True)
        path = f"{tools.stdout.strip()}:{os.environ['PATH']}:/usr/sbin"
        self.environment = {
            "PATH": path,
            "KRB5_CONFIG": str(self.directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
        }

    @property
    def uri(self) -> str:
        return f"hdfs://localhost:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start_kdc()
            self._start_hdfs()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def ticket(self, cache: str, principal: str = CLIENT, *, life: str = "1h") -> None:
        """Fetch a ticket into a cache."""
        self._run("kinit", "-k", "-t", str(self.keytab_of(principal)), "-c", cache, "-l", life, principal)

    def keytab_of(self, principal: str) -> Path:
        """The file with its key, which is named after its first part."""
        return self.directory / f"{re.split('[/@]', principal)[0]}.keytab"

    def add(self, *principals: str) -> None:
        """Make principals; those whose first part is the same share a keytab."""
        for principal in principals:
            self._admin(f"addprinc -randkey {principal}")
            self._admin(f"ktadd -k {self.keytab_of(principal)} {principal}")

    def superuser(self) -> Client:
        """HDFS, as its administrator."""
        keytab = str(self.keytab_of(SERVER))
        config, conf_dir = {"dfs.client.failover.max.attempts": "0"}, str(self.conf_dir)
        return Client(self.uri, config, conf_dir, kerberos_principal=SERVER, kerberos_keytab=keytab)

    def give(self, path: str, user: str, mode: int = 0o700) -> None:
        """Make a directory that belongs to a user, once the NameNode answers."""
        root, deadline = self.superuser(), time.monotonic() + START_S
        while True:
            try:
                root.mkdirs(path, create_parent=True)
                break
            except (OSError, RuntimeError):
                assert time.monotonic() < deadline, self.last_words()
                time.sleep(0.2)
        root.set_owner(path, user, user)
        root.set_permission(path, mode)

    def shorten_tickets(self, life: str) -> None:
        """Tickets of the client end so soon from now on."""
        self._admin(f'modprinc -maxlife "{life}" {CLIENT}')

    def _start_kdc(self) -> None:
        (self.directory / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._kdc_port}\n }}\n"
        )
        (self.directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._kdc_port}\n"
            f" kdc_tcp_listen = 127.0.0.1:{self._kdc_port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.directory}/principal\n"
            f"  key_stash_file = {self.directory}/stash\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-no-worth")
        self.add(SERVER, YARN, CLIENT, _WEB)
        self._spawn("kdc", "krb5kdc", "-n", "-P", f"{self.directory}/kdc.pid")

    def _start_hdfs(self) -> None:
        keytab, web_keytab = str(self.keytab_of(SERVER)), str(self.keytab_of(_WEB))
        client = {
            "fs.defaultFS": self.uri,
            "hadoop.security.authentication": "kerberos",
            "hadoop.rpc.protection": "privacy",
            "dfs.data.transfer.protection": "privacy",
            "dfs.namenode.kerberos.principal": SERVER,
            "dfs.replication": "1",
            # Pages of Hadoop show what this user may see.
            "hadoop.http.staticuser.user": re.split("[/@]", CLIENT)[0],
        }
        server = client | {
            "hadoop.security.authorization": "true",
            "hadoop.tmp.dir": f"{self.directory}/tmp",
            "hadoop.security.group.mapping": "org.apache.hadoop.security.ShellBasedUnixGroupsMapping",
            "dfs.permissions.enabled": "false",
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.keytab.file": keytab,
            "dfs.datanode.keytab.file": keytab,
            "dfs.datanode.kerberos.principal": SERVER,
            "dfs.web.authentication.kerberos.principal": _WEB,
            "dfs.web.authentication.kerberos.keytab": web_keytab,
            "dfs.namenode.kerberos.internal.spnego.principal": _WEB,
            "ignore.secure.ports.for.testing": "true",
            "dfs.namenode.http-address": f"localhost:{free_port()}",
            "dfs.datanode.address": f"localhost:{free_port()}",
            "dfs.datanode.http.address": f"localhost:{free_port()}",
            "dfs.datanode.ipc.address": f"localhost:{free_port()}",
            "dfs.datanode.hostname": "localhost",
            "dfs.namenode.name.dir": f"file://{self.directory}/name",
            "dfs.datanode.data.dir": f"file://{self.directory}/data",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.file.close.num-committed-allowed": "1",
            **self._properties,
        }
        for name, properties in (("client", client), ("server", server)):
            (self.directory / name).mkdir()
            rows = "".join(
                f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items()
            )
            for file in ("core-site.xml", "hdfs-site.xml"):
                (self.directory / name / file).write_text(f"<configuration>{rows}</configuration>")
        (self.directory / "data").mkdir(mode=0o700)
        format_it = ("-format", "-force", "-nonInteractive")
        subprocess.run(
            [*self._java(f"{_SERVERS}.namenode.NameNode"), *format_it],
            check=True,
            capture_output=True,
            env=self.environment,
            timeout=120,
        )
        self._spawn("namenode", *self._java(f"{_SERVERS}.namenode.NameNode"))
        self._spawn("datanode", *self._java(f"{_SERVERS}.datanode.DataNode"))

    def _java(self, main: str) -> list[str]:
        jars = next(_ROOT.glob("var/hadoop-*/lib")).parent
        return [
            *("java", "-Xmx256m", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"),
            f"-Djava.security.krb5.conf={self.directory}/krb5.conf",
            f"-Dlog4j.configuration=file:{_ROOT}/deploy/hdfs/conf/log4j.properties",
            *("-cp", f"{self.directory}/server:{jars}/web:{jars}/lib/*", main),
        ]

    def _spawn(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*DIES_WITH_US, *command],
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    start_new_session=True,
                )
            )

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=self.environment, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _admin(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=20)
        self._temporary.cleanup()

    def last_words(self) -> str:
        """The end of each log, for a failure's message."""
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in self.directory.glob("*.log")
        )


def wait_until(done_at: float) -> None:
    """Let the clock pass `done_at` (time.monotonic): what is waited for is time itself, a ticket's end."""
    while (left := done_at - time.monotonic()) > 0:
        time.sleep(left)
