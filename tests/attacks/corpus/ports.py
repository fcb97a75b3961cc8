"""Attacks on ports, and on the locks that say whose they are."""

from __future__ import annotations

from tests.attacks.attack import NOT_SEPARATED, Attack, Stopped

ATTACKS = (
    Attack(
        name="take-ports-first",
        tries="to listen at 1,000 ports of the range before other tasks get them",
        program="""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4000),) * 2)
low, held = SITE["ports"][0], []
for port in range(low, low + 1000):
    link = socket.socket(socket.AF_INET6)
    try:
        link.bind(("::", port))
        link.listen()
        held.append(link)
    except OSError:
        pass
say("listens at", len(held))
time.sleep(3600)
""",
        ends=Stopped("listens at"),
        starts_another=True,
    ),
    Attack(
        name="victims-port",
        tries="to listen at another job's port, with SO_REUSEPORT, SO_REUSEADDR, one address alone, IPv4",
        program="""
port = SITE["victim_port"]
def listen(family, host, *options):
    link = socket.socket(family)
    for option in options:
        link.setsockopt(socket.SOL_SOCKET, option, 1)
    link.bind((host, port))
    link.listen()
    time.sleep(0.5)
    return link
for family, hosts in ((socket.AF_INET6, ("::", "::1")), (socket.AF_INET, ("0.0.0.0", "127.0.0.1"))):
    for host in hosts:
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            tried("%s %s" % (host, options), lambda: listen(family, host, *options))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="connect-to-victim",
        tries="to connect to another job's port, through each address of the node",
        program="""
port = SITE["victim_port"]
for host in ("127.0.0.1", "127.0.0.2", "::1", SITE["agent"].rpartition(":")[0], "::ffff:127.0.0.1"):
    tried(host, lambda: socket.create_connection((host, port), 3))
def from_a_port():
    link = socket.socket()
    link.bind(("127.0.0.1", SITE["ports"][0] + 500))
    link.settimeout(3)
    link.connect(("127.0.0.1", port))
tried("from a port of tasks", from_a_port)
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="daemons-ports",
        tries="to listen at the ports of supervisor, agent and etcd",
        program="""
for name in ("supervisor", "agent", "etcd"):
    host, _, port = SITE[name].rpartition(":")
    for address in (host, "0.0.0.0") if name == "agent" else ():
        def listen():
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            link.bind((address, int(port)))
            link.listen()
        tried("%s at %s" % (name, address), listen)
""",
    ),
    Attack(
        name="planted-locks",
        tries="directories, pipes and links where locks of ports, and the place of the next one, are kept",
        program="""
locks, (low, high) = SITE["locks"], SITE["ports"]
names = ["cursor-%d-%d" % (low, high)] + ["port-%d.lock" % port for port in range(low, low + 300)]
planted = []
for number, name in enumerate(names):
    path = locks + "/" + name
    def plant():
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        (os.mkdir, os.mkfifo, lambda each: os.symlink("/etc/passwd", each))[number % 3](path)
        planted.append(path)
    done("plant " + name, plant)
say("planted", len(planted))
def remove(*_):
    for path in planted:
        (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
time.sleep(3600)
""",
        ends=Stopped("planted"),
        starts_another=True,
    ),
    Attack(
        name="hostile-cursor",
        tries="digits without end, noise and 1 GiB where the place of the next port is kept",
        program="""
path = SITE["locks"] + "/cursor-%d-%d" % tuple(SITE["ports"])
for data in (b"9" * 16, os.urandom(100), b"-1", b"\\xd9\\xa3" * 8):
    done("write", lambda: open(path, "wb").write(data))
done("grow", lambda: os.truncate(path, 1 << 30))
say("written")
time.sleep(3600)
""",
        ends=Stopped("written"),
        starts_another=True,
    ),
    Attack(
        name="hold-locks",
        tries="to hold the locks of 2,000 ports",
        program="""
import fcntl, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4000),) * 2)
held = []
for port in range(SITE["ports"][0], SITE["ports"][0] + 2000):
    try:
        file = os.open(SITE["locks"] + "/port-%d.lock" % port, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
    except OSError:
        pass
say("holds", len(held))
time.sleep(3600)
""",
        ends=Stopped("holds"),
        starts_another=True,
    ),
)
