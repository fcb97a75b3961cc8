"""The Java that speaks with YARN: compiled once against the cluster's own Hadoop, and kept as one process.

Hadoop's client libraries know Kerberos, several ResourceManagers and the tokens of NodeManagers. So
Client.java uses them, and this module asks it. It takes back what it has begun when this process ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path

from supervisor.adapters.neutral import one_line
from supervisor.contract.errors import NotFound, Refused, Unreachable
from supervisor.engines.installation.bootstrap import exchangeable

HERE = Path(__file__).resolve().parent
SOURCES = ("Client.java", "Master.java")
PATIENCE_S = 60.0
COMPILE_S = 180
_MOST_TOLD = 600


class Bridge:
    """A process of Client.java: a request and its reply are a line of JSON each."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._java: subprocess.Popen[bytes] | None = None
        self._said = os.memfd_create("java")
        self._one = threading.Lock()

    def ask(self, verb: str, *, within_s: float = PATIENCE_S, **fields: object) -> object:
        """The answer of a request. Raises NotFound, Unreachable, and Refused with YARN's reason."""
        with self._one:
            return self._answer(verb, within_s, fields)

    def _answer(self, verb: str, within_s: float, fields: Mapping[str, object]) -> object:
        java = self._java or self._start()
        assert java.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            java.stdin.write(json.dumps({"verb": verb, **fields}).encode() + b"\n")
        line = self._line(java, within_s)
        reply = json.loads(line) if line else {}
        if "ok" in reply:
            return reply["ok"]
        if not line:
            self.close()
            raise Unreachable(
                f"YARN does not answer within {within_s:g} s, or Java has failed: {self._last_words()}"
            )
        told = one_line(str(reply["error"])[:_MOST_TOLD])
        if reply["unreachable"]:
            raise Unreachable(f"YARN does not answer: {told}")
        if reply.get("no_ticket"):
            raise Refused(_no_ticket(self._environment))
        raise Refused(f"YARN says: {told}")

    def jar(self) -> Path:
        """The compiled classes. They are made anew for another Hadoop, and another version of the sources."""
        classpath = self._classpath()
        digest = hashlib.sha256(classpath.encode())
        for name in SOURCES:
            digest.update((HERE / name).read_bytes())
        cache = Path(self._environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf-supervisor"
        jar = cache / f"yarn-{digest.hexdigest()[:16]}.jar"
        # Whoever could change it would run programs as this user, here and in YARN.
        if (other := exchangeable(cache)) is not None:
            raise Refused(
                f"{other} belongs to another user, or every user may write to it: name another directory "
                f"than {cache.parent} by XDG_CACHE_HOME"
            )
        if jar.is_file():
            return jar
        javac = self._program("javac", "JAVA_HOME", "a JDK (Debian: openjdk-17-jdk-headless)")
        with tempfile.TemporaryDirectory() as made:
            sources = [str(HERE / name) for name in SOURCES]
            options = ("--release", "8", "-nowarn", "-proc:none", "-cp", classpath, "-d", made)
            try:
                self._run(javac, *options, *sources)
            except Refused as error:
                raise Refused(
                    f"the Hadoop that `yarn classpath` names does not fit, as 3.4 does: {error}"
                ) from error
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = jar.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(partial, "w") as archive:
                for path in sorted(Path(made).rglob("*.class")):
                    # The date is always the same, so that the file is, too.
                    archive.writestr(zipfile.ZipInfo(str(path.relative_to(made))), path.read_bytes())
            partial.replace(jar)
        return jar

    def close(self) -> None:
        """End the process."""
        if self._java is not None:
            with self._java:
                self._java.kill()
            self._java = None

    def _start(self) -> subprocess.Popen[bytes]:
        jar, java = self.jar(), self._program("java", "JAVA_HOME", "Java 8, 11 or 17")
        # Java itself looks for /etc/krb5.conf alone.
        kerberos = self._environment.get("KRB5_CONFIG")
        self._java = subprocess.Popen(
            [
                *(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
                *([f"-Djava.security.krb5.conf={kerberos}"] if kerberos else []),
                *(
                    "-Dhadoop.root.logger=WARN,console",
                    "-cp",
                    f"{jar}:{self._classpath()}",
                    "tfsup.yarn.Client",
                ),
            ],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # Ctrl-C ends this process, and Java takes back what it has begun.
            start_new_session=True,
            bufsize=0,
        )
        return self._java

    def _last_words(self) -> str:
        from_byte = max(0, os.fstat(self._said).st_size - _MOST_TOLD)
        return one_line(os.pread(self._said, _MOST_TOLD, from_byte).decode(errors="replace").strip())

    def _line(self, java: subprocess.Popen[bytes], within_s: float) -> bytes:
        """The next line that Java prints; empty if there is none in this time."""
        assert java.stdout is not None
        file, found = java.stdout.fileno(), b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([file], [], [], within_s)
            more = os.read(file, 1 << 16) if ready else b""
            if not more:
                return b""
            found += more
        return found

    def _classpath(self) -> str:
        yarn = self._program("yarn", "HADOOP_HOME", "Hadoop's commands (HADOOP_HOME names their directory)")
        return self._run(yarn, "classpath").strip()

    def _program(self, name: str, home: str, what: str) -> str:
        """A program of an installation that the environment names, else on PATH."""
        beside = [f"{self._environment[home]}/bin"] if self._environment.get(home) else []
        found = shutil.which(name, path=":".join([*beside, self._environment.get("PATH", "")]))
        if found is None:
            raise NotFound(f"there is no {name} below {home} and on PATH; install {what}")
        return found

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=COMPILE_S, check=False
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Unreachable(f"{command[0]} failed: {error}") from error
        if done.returncode != 0:
            told = one_line((done.stderr or done.stdout).strip()[:_MOST_TOLD])
            raise Refused(f"{command[0]} has failed: {told}")
        return done.stdout


def _no_ticket(environment: Mapping[str, str]) -> str:
    """The remedy where Java has found no ticket that is valid now."""
    default = f"FILE:/tmp/krb5cc_{os.getuid()}"
    named = environment.get("KRB5CCNAME") or default
    kind, _, path = named.rpartition(":")
    if kind not in ("", "FILE"):
        why = f"Java reads tickets from files, not from {named}: `export KRB5CCNAME={default}`, then `kinit`"
    elif not Path(path).exists():
        why = f"there is no ticket: there is no file {path}; `kinit -c {path}` fetches one"
    else:
        why = f"no ticket in {path} is valid now, as `klist -c {path}` shows; `kinit -c {path}` fetches one"
    return f"YARN has Kerberos, and {why}"
