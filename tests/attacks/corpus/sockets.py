"""Attacks on the sockets of daemons."""

from __future__ import annotations

from tests.attacks.attack import NOT_SEPARATED, Attack, Failed, Stopped, Where

_TCP = """
import ssl
def address(name):
    host, _, port = SITE[name].rpartition(":")
    return host, int(port)
def plain(name):
    return socket.create_connection(address(name), 3)
def secure(name, alpn=("h2",)):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(list(alpn))
    return context.wrap_socket(plain(name))
PREFACE = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
DAEMONS = ("supervisor", "agent", "etcd")
"""
_UNIX = """
PATHS = [SITE["run"] + "/tasks/agent.sock", SITE["run"] + "/agent.sock"] + \\
    [os.path.join(SITE["run"] + "/tasks", name) for name in (os.listdir(SITE["run"] + "/tasks") if os.access(SITE["run"] + "/tasks", os.R_OK) else ())]
def parent_config():
    words = open("/proc/%d/cmdline" % os.getppid(), "rb").read().split(b"\\0")
    return json.load(open(words[-2].decode()))
CONFIG = parent_config()
def connected():
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(3)
    link.connect(CONFIG["socket"])
    return link
def answer(data):
    link = connected()
    link.sendall(data)
    try:
        return link.recv(5000)
    except socket.timeout:
        return b""
HELLO = {"type": "hello", "protocol": 1, "launcher_id": CONFIG["launcher_id"], "job": "x", "pid": os.getpid(), "start_ticks": 1,
         "boot_id": "", "warm": True}
"""

ATTACKS = (
    Attack(
        name="garbage-to-agent",
        tries="noise, JSON that is none, 100,000 lists, 5 MB without an end at the agent's socket of launchers",
        program=_UNIX
        + """
for data in (os.urandom(5000) + b"\\n", b"{}\\n", b"[" * 100000 + b"\\n", b"x" * (5 << 20), b"\\n" * 10000, b'{"type": "hello"}\\n',
             json.dumps({**HELLO, "protocol": 10**300}).encode() + b"\\n", json.dumps({**HELLO, "reservations": "x"}).encode() + b"\\n"):
    done(repr(data[:20]), lambda: answer(data))
""",
    ),
    Attack(
        name="half-messages",
        tries="300 connections to the agent's socket that say half a hello, and nothing more",
        program=_UNIX
        + """
def open_them():
    links = []
    for number in range(300):
        link = connected()
        link.sendall(b'{"type": "hel')
        links.append(link)
    time.sleep(4)
done("300 halves", open_them)
""",
    ),
    Attack(
        name="many-connections-to-agent",
        tries="10,000 connections to the agent's socket, 2,000 of them at a time",
        program=_UNIX
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 8000),) * 2)
def many():
    count = 0
    for _ in range(5):
        links = []
        until = time.monotonic() + 10
        while len(links) < 2000 and time.monotonic() < until:
            try:
                links.append(connected())
            except BlockingIOError:
                time.sleep(0.001)
        count += len(links)
    assert count == 10000, count
    return count
say("made", many())
""",
    ),
    Attack(
        name="hello-of-another",
        tries="a hello as another launcher, and as its own launcher from another process; then lies",
        program=_UNIX
        + """
uuid = SITE["victim_uuid"]
if os.environ["TFSUP_RESTART_COUNT"] == "0":
    for launcher in ("0" * 32 + "-1", CONFIG["launcher_id"], CONFIG["launcher_id"].rpartition("-")[0] + "-1", "", "../x", "x" * 90000):
        link = connected()
        link.sendall(json.dumps({**HELLO, "launcher_id": launcher}).encode() + b"\\n")
        for message in ({"type": "exited", "attempt": "victim/worker:0@1.1", "code": 0, "signal": None, "at_ms": 1, "reason": "exit", "confirmed_dead": True},
                        {"type": "reserved", "reservation": "x", "port": SITE["victim_port"]},
                        {"type": "started", "attempt": "victim/worker:0@1.1", "pid": 1, "start_ticks": 1, "at_ms": 1}):
            try:
                link.sendall(json.dumps(message).encode() + b"\\n")
            except OSError:
                break
        def said():
            try:
                return link.recv(500)
            except OSError as error:
                return error
        done("hello as " + launcher[:20], said)
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="descriptors-to-agent",
        tries="250 open files in each of 40 messages at the agent's socket",
        program=_UNIX
        + """
import array
def send():
    for _ in range(40):
        link = connected()
        null = [os.open("/dev/null", os.O_RDONLY) for _ in range(250)]
        link.sendmsg([b'{"type": "hello"}\\n'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", null))])
        [os.close(each) for each in null]
done("files", send)
""",
    ),
    Attack(
        name="without-certificate",
        tries="gRPC calls at supervisor, agent and etcd with TLS and no certificate, and without TLS",
        program=_TCP
        + """
def ask(link, data):
    link.sendall(data)
    found = link.recv(1000)
    while found and not (b"\\x00\\x00\\x08\\x06" in found or len(found) > 900):
        more = link.recv(1000)
        if not more:
            break
        found += more
    if not found:
        raise ConnectionResetError("closed")
    return found
for name in DAEMONS:
    tried("TLS at the " + name, lambda: ask(secure(name), PREFACE))
    tried("HTTP at the " + name, lambda: ask(secure(name, ("http/1.1",)), b"GET /v3/kv/range HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"))
    tried("no TLS at the " + name, lambda: (lambda found: found if b"\\x04" in found[:10] and found[:4] != b"HTTP" else 1 / 0)(ask(plain(name), PREFACE)))
""",
    ),
    Attack(
        name="garbage-to-daemons",
        tries="noise, half a TLS greeting, 5 MB of one record at supervisor, agent and etcd",
        program=_TCP
        + """
for name in DAEMONS:
    for data in (os.urandom(5000), b"\\x16\\x03\\x01\\xff\\xff" + b"\\1" * 100, b"\\x16\\x03\\x01\\x40\\x00" + b"x" * (5 << 20), b"GET / HTTP/1.0\\r\\n\\r\\n"):
        def send():
            link = plain(name)
            link.settimeout(2)
            link.sendall(data)
            return len(link.recv(100))
        done("noise at the " + name, send)
""",
    ),
    Attack(
        name="many-connections-to-daemons",
        tries="1,000 connections to each of supervisor, agent and etcd that say nothing for 5 seconds",
        program=_TCP
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 8000),) * 2)
links = []
def many(name):
    for _ in range(1000):
        links.append(plain(name))
    return len(links)
for name in DAEMONS:
    done("connections to the " + name, lambda: many(name))
time.sleep(5)
""",
    ),
    Attack(
        name="docker-socket",
        tries="docker's socket",
        program="""
def ask():
    link = socket.socket(socket.AF_UNIX)
    link.connect(SITE["docker"])
    link.sendall(b"GET /version HTTP/1.0\\r\\n\\r\\n")
    return link.recv(100)
tried("docker", ask)
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    tried(path, lambda: socket.socket(socket.AF_UNIX).connect(path))
""",
        not_in={Where.USER: "it has the machine's own", Where.ROOT: "a node without dockerd"},
    ),
    Attack(
        name="mounted-docker-socket",
        tries="a container with docker's socket mounted, from where only its agent knows that it is",
        job={"container": {"mounts": [{"source": "/srv/run/docker.sock", "target": "/docker.sock"}]}},
        ends=Failed("mounts"),
        not_in={Where.USER: "it has the machine's own", Where.ROOT: "a node without dockerd"},
    ),
    Attack(
        name="abstract-sockets",
        tries="abstract sockets by daemons' names, and all of a thousand others",
        program="""
held = []
def take(name):
    link = socket.socket(socket.AF_UNIX)
    link.bind("\\0" + name)
    link.listen()
    held.append(link)
for name in ("tfsup", "agent.sock", "/run/systemd/notify", SITE["run"] + "/tasks/agent.sock", "containerd-shim"):
    done(name, lambda: take(name))
done("a thousand", lambda: [take("x%d" % n) for n in range(900)])
time.sleep(1)
""",
    ),
    Attack(
        name="socket-replaced",
        tries="to remove the agent's socket, and to listen in its place",
        program=_UNIX
        + """
path = CONFIG["socket"]
tried("remove it", lambda: os.unlink(path))
tried("rename it", lambda: os.rename(path, path + "-old"))
tried("rename its directory", lambda: os.rename(os.path.dirname(path), os.path.dirname(path) + "-old"))
tried("another beside it", lambda: socket.socket(socket.AF_UNIX).bind(os.path.dirname(path) + "/x"))
tried("its mode", lambda: os.chmod(path, 0o777))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="pulls-of-strangers",
        tries="200 connections that ask the agent in a launcher's place whether it may go on",
        program=_UNIX
        + """
def ask():
    link = connected()
    link.sendall(json.dumps({"type": "pull", "stamp_ms": 2**52}).encode() + b"\\n")
    return link
links = []
for number in range(200):
    done("pull", lambda: links.append(ask()))
say("asked")
time.sleep(3600)
""",
        ends=Stopped("asked"),
    ),
)
