"""Attacks on processes: the launcher, the agent, another job's."""

from __future__ import annotations

from tests.attacks.attack import NOT_SEPARATED, Attack, Failed, Harmless, Stopped, Where

OPEN = "**open**: the process outlives its job"
IN_A_CONTAINER = {Where.DOCKER: Harmless()}
"""There the launcher is process 1, to which the kernel takes no such signal from inside."""

_C = """
import ctypes
C = ctypes.CDLL(None, use_errno=True)
def checked(found):
    if found == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
"""
_ORPHAN = """
def orphan(do):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            do()
        os._exit(0)
    os.wait()
    time.sleep(0.3)
"""
_FIRST = """
if os.environ["TFSUP_RESTART_COUNT"] == "0":
    say("the first time")
"""
_READS = """
def reads(name):
    for file in ("mem", "environ", "maps", "root/etc/shadow", "fd/0", "auxv", "syscall"):
        each("read " + file, name, lambda pid: open("/proc/%d/%s" % (pid, file), "rb").read(1))
    for file in ("mem", "oom_score_adj", "clear_refs", "coredump_filter"):
        each("write " + file, name, lambda pid: put("/proc/%d/%s" % (pid, file), "15"))
    each("list its files", name, lambda pid: os.listdir("/proc/%d/fd" % pid))
    each("trace", name, lambda pid: checked(C.ptrace(16, pid, 0, 0)))
    each("take a file", name, lambda pid: checked(C.syscall(438, os.pidfd_open(pid), 0, 0)))
    each("lower its priority", name, lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
    each("move it to one processor", name, lambda pid: os.sched_setaffinity(pid, {0}))
    each("limit its files", name, lambda pid: __import__("resource").prlimit(pid, 7, (3, 3)))
"""
_ENDS = """
for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    each("signal %d" % number, NAME, lambda pid: os.kill(pid, number))
"""

ATTACKS = (
    Attack(
        name="kill-agent",
        tries="SIGTERM, SIGSTOP and SIGKILL to the agent",
        program="NAME = 'agent'" + _ENDS,
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="read-agent",
        tries="the agent's memory, environment and files; ptrace; its priority and limits",
        program=_C + _READS + "reads('agent')",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="kill-victim",
        tries="SIGTERM, SIGSTOP and SIGKILL to another job's task and to its launcher",
        program="NAME = 'victim'" + _ENDS + "NAME = 'launcher'" + _ENDS,
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="read-victim",
        tries="memory, environment and files of another job's task; ptrace; its priority and limits",
        program=_C + _READS + "reads('victim'); reads('launcher')",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="kill-all",
        tries="SIGKILL to -1: everything that it may signal, its launcher among it",
        program=_FIRST + "    done('kill', lambda: os.kill(-1, signal.SIGKILL))\n    time.sleep(5)",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="kill-launcher",
        tries="SIGKILL to its own launcher, with a daemon left behind",
        program=_ORPHAN
        + _FIRST
        + """
    orphan(lambda: time.sleep(3600))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)
""",
    ),
    Attack(
        name="kill-launcher-always",
        tries="SIGKILL to its own launcher, each time that it is started",
        program="""
say("ends it the", os.environ["TFSUP_RESTART_COUNT"], "th time")
time.sleep(0.5)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(5)
""",
        ends=Failed("a launcher was lost 3 times in a row"),
        ends_in=IN_A_CONTAINER,
    ),
    Attack(
        name="stop-launcher",
        tries="SIGSTOP to its own launcher, which then neither asks nor kills",
        program=_FIRST + "    os.kill(os.getppid(), signal.SIGSTOP)\n    time.sleep(20)",
    ),
    Attack(
        name="trace-launcher",
        tries="ptrace of its own launcher, which is held still",
        program=_C
        + _FIRST
        + """
    done("trace", lambda: checked(C.ptrace(16, os.getppid(), 0, 0)))
    time.sleep(20)
""",
    ),
    Attack(
        name="shed-mark",
        tries="a daemon without the mark in its environment, and SIGKILL to the launcher",
        program=_ORPHAN
        + _FIRST
        + """
    orphan(lambda: os.execve("/bin/sleep", ["sleep", "3600"], {}))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)
""",
        not_in={Where.USER: OPEN},
    ),
    Attack(
        name="forge-mark",
        tries="processes with marks of other launchers, of no launcher, and of 100 KB",
        program=_ORPHAN
        + """
agent = "chaos/%s@%s/launchers" % (SITE["node"], SITE["state"])
own = os.environ.get("TFSUP_MARKER", "")
for mark in (own, "0" * 32 + "-1#" + agent, "0" * 32 + "-1#" + agent + "#" + "0" * 64, "#", "x" * 100000):
    orphan(lambda: os.execve("/bin/sleep", ["sleep", "3600"], {"TFSUP_MARKER": mark}))
say("marks are forged")
""",
    ),
    Attack(
        name="daemonise",
        tries="a daemon: fork, setsid, fork again; it ignores every signal that can be ignored",
        program=_ORPHAN
        + """
def live():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    time.sleep(3600)
orphan(live)
""",
    ),
    Attack(
        name="ignore-signals",
        tries="a program that ignores every signal that can be ignored, and is to stop",
        program="""
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
say("deaf")
time.sleep(3600)
""",
        ends=Stopped("deaf"),
    ),
    Attack(
        name="stop-itself",
        tries="SIGSTOP to itself and to a child",
        program="""
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
say("stands")
os.kill(os.getpid(), signal.SIGSTOP)
""",
        ends=Stopped("stands"),
    ),
    Attack(
        name="subreaper",
        tries="a child that collects orphans itself, cannot be dumped, and has no parent's death signal",
        program=_C
        + """
if os.fork() == 0:
    C.prctl(36, 1, 0, 0, 0), C.prctl(4, 0, 0, 0, 0), C.prctl(1, 0, 0, 0, 0)
    os.setsid()
    for _ in range(5):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
    time.sleep(3600)
time.sleep(0.5)
""",
    ),
    Attack(
        name="dead-main-thread",
        tries="the main thread ends, others go on: /proc shows neither environment nor command",
        program=_C
        + """
def live():
    time.sleep(0.5)
    say("without a main thread")
    time.sleep(3600)
threading.Thread(target=live).start()
C.syscall(60, 0)
""",
        ends=Stopped("without a main thread"),
    ),
    Attack(
        name="hostile-name",
        tries="processes named `) R 1 1 1`, `\\n` and with bytes that are no UTF-8",
        program=_C
        + """
for name in (b") R 1 1 1", b"a\\nb", b"\\xff\\xfe", b"(((", b")))) Z 0", b""):
    if os.fork() == 0:
        C.prctl(15, name, 0, 0, 0)
        time.sleep(3600)
C.prctl(15, b") Z 1 1 1 1", 0, 0, 0)
time.sleep(1)
""",
    ),
    Attack(
        name="fork-bomb",
        tries="a tree of 250 processes, each in a session of its own, that fork on when they are killed",
        program="""
def grow(depth):
    os.setsid()
    for _ in range(6):
        try:
            if depth < 3 and os.fork() == 0:
                grow(depth + 1)
        except OSError:
            break
    while True:
        time.sleep(0.5)
        if os.getppid() == 1 and os.fork() == 0:
            os.setsid()
if os.fork() == 0:
    grow(0)
time.sleep(2)
say("grown")
time.sleep(3600)
""",
        ends=Stopped("grown"),
    ),
    Attack(
        name="fork-while-killed",
        tries="a chain of processes: each forks and ends, so that none lives longer than a millisecond",
        program="""
say("runs")
if os.fork() == 0:
    os.setsid()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork() != 0:
            os._exit(0)
        time.sleep(0.001)
    os._exit(0)
time.sleep(3600)
""",
        ends=Stopped("runs"),
    ),
    Attack(
        name="zombies",
        tries="500 children that have ended and are not waited for",
        program="""
for _ in range(500):
    if os.fork() == 0:
        os._exit(0)
time.sleep(1)
""",
    ),
    Attack(
        name="threads",
        tries="1,000 threads",
        program="""
threading.stack_size(65536)
def make():
    threads = [threading.Thread(target=time.sleep, args=(2,), daemon=True) for _ in range(1000)]
    [each.start() for each in threads]
done("start", make)
""",
    ),
    Attack(
        name="no-descriptor-left",
        tries="all descriptors that it may have, in 8 processes",
        program="""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000),) * 2)
for _ in range(8):
    if os.fork() == 0:
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            os.write(1, b"denied: one more\\n")
        time.sleep(2)
        os._exit(0)
time.sleep(2.5)
""",
    ),
    Attack(
        name="own-priority",
        tries="a nice value of -20, real-time priority, and to be spared by the OOM killer",
        program="""
tried("nice -20", lambda: os.nice(-40))
tried("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
tried("spare me", lambda: put("/proc/self/oom_score_adj", "-1000"))
tried("idle is for others", lambda: os.setpriority(os.PRIO_USER, 0, -20) if os.getuid() else 1 / 0)
""",
    ),
    Attack(
        name="namespaces",
        tries="namespaces of its own (user, pid, mount, net), and a daemon in them",
        program=_C
        + """
def enter():
    if os.fork() == 0:
        found = C.unshare(0x10000000 | 0x20000000 | 0x00020000 | 0x40000000)
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
        os._exit(0 if found == 0 else 1)
    return os.wait()[1]
done("a daemon in namespaces", enter)
tried("the namespace of process 1", lambda: checked(C.setns(os.open("/proc/1/ns/mnt", 0), 0)) if os.getppid() != 1 else 1 / 0)
tried("another root", lambda: os.chroot("/tmp"))
tried("a mount", lambda: checked(C.mount(b"/tmp", b"/mnt", b"", 4096, 0)))
tried("a name of the host", lambda: socket.sethostname("mine"))
""",
    ),
    Attack(
        name="kernel",
        tries="modules, reboot, the clock, sysctl, keyrings of others, swap, raw sockets, BPF",
        program=_C
        + """
tried("module", lambda: checked(C.syscall(175, b"", 0, b"")))
tried("reboot", lambda: checked(C.syscall(169, 1, 1, 0, 0)))
tried("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
tried("sysctl", lambda: put("/proc/sys/kernel/pid_max", "1000"))
tried("sysrq", lambda: put("/proc/sysrq-trigger", "h"))
tried("swap", lambda: checked(C.swapoff(b"/x")))
tried("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tried("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
tried("bpf", lambda: checked(C.syscall(321, 5, b"\\0" * 128, 128)))
tried("memory", lambda: open("/dev/mem", "rb").read(1))
tried("kernel's log", lambda: put("/dev/kmsg", "hello"))
tried("become root", lambda: os.setuid(0) if os.getuid() else 1 / 0)
tried("another group", lambda: os.setgroups([0]))
""",
    ),
    Attack(
        name="cgroups",
        tries="to leave its cgroup, freeze the node's, and make one of its own",
        program="""
top = "/sys/fs/cgroup"
own = open("/proc/self/cgroup").read().strip().rpartition(":")[2]
for path in (top, top + own, os.path.dirname(top + own)):
    tried("leave to " + path, lambda: put(path + "/cgroup.procs", "0"))
    tried("freeze " + path, lambda: put(path + "/cgroup.freeze", "1"))
    tried("kill " + path, lambda: put(path + "/cgroup.kill", "1"))
    tried("make in " + path, lambda: os.mkdir(path + "/mine"))
""",
    ),
    Attack(
        name="all-memory",
        tries="four times the memory that it was given",
        job={"roles": {"worker": {"count": 1, "resources": {"memory": "256MiB"}}}},
        program="""
held = []
for _ in range(16):
    held.append(bytearray(os.urandom(1 << 16) * 1024))
    say("has", len(held) * 64, "MiB")
""",
        ends=Failed("memory"),
        not_in={
            Where.USER: "memory is counted, not enforced",
            Where.ROOT: "memory is counted, not enforced",
        },
    ),
)
