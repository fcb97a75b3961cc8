"""Attacks by the output of a program, and by the file that holds it."""

from __future__ import annotations

from tests.attacks.attack import Attack, Failed, Stopped

_LOG = """
import glob
log = "/proc/self/fd/1"
own = [path for path in glob.glob(SITE["state"] + "/attempts/*/*/output.log") if os.access(path, os.W_OK)]
base = os.path.dirname(SITE["state"] + "/attempts/x")
"""

ATTACKS = (
    Attack(
        name="digits",
        tries="steps of 400 digits, below 0, of 10^12 and more, in other scripts' digits",
        program="""
for step in ("9" * 400, "-5", "1" + "0" * 12, "1" + "0" * 18, "\\u0663", "0x10", "1e9", "nan", "1_000"):
    say("step", step)
    time.sleep(0.1)
""",
    ),
    Attack(
        name="forged-steps",
        tries="steps of another job's task, of a later step, that fall back, and 5,000 a second",
        program="""
for line in ("victim/worker:0 step 999999", "step 99999999", "step 1", "[worker:0@1.1] step 7"):
    say(line)
    time.sleep(0.2)
for step in range(5000):
    print("step", step)
""",
    ),
    Attack(
        name="escapes",
        tries="a terminal's title, clipboard and colours, and a cursor that overwrites what stood there",
        program=r"""
for text in ("\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J\x1b[1;1Hroot#", "\x9b31m", "\x1bP+q\x1b\\", "\u202eexe", "\x1b[?1049h"):
    say("step 1", text)
time.sleep(0.3)
""",
    ),
    Attack(
        name="no-utf8",
        tries="bytes that are no UTF-8, NUL, half characters, every byte there is",
        program=r"""
for data in (b"\xff\xfe step 3\n", b"\0" * 5000 + b"step 4\n", b"\xed\xa0\x80 step 5\n", bytes(range(256)) * 50, b"\xc3", b"\xf4\x90\x80\x80\n"):
    os.write(1, data)
    time.sleep(0.1)
""",
    ),
    Attack(
        name="long-line",
        tries="a line of 100 MB",
        program="""
for _ in range(100):
    os.write(1, b"step " * 200000)
os.write(1, b"\\n")
""",
    ),
    Attack(
        name="flood",
        tries="500,000 lines with steps, as fast as they go",
        program="""
for step in range(0, 500000, 1000):
    os.write(1, b"".join(b"step %d loss nan\\n" % each for each in range(step, step + 1000)))
""",
    ),
    Attack(
        name="returns",
        tries="a progress bar of 10 MB that never ends a line",
        program="""
for _ in range(1000):
    os.write(1, b"\\r 50% step 5 " * 1000)
""",
    ),
    Attack(
        name="json-lines",
        tries="JSON lines with NaN, numbers of 4,000 digits, 100,000 lists inside each other",
        program="""
for line in ('{"step": NaN}', '{"step": 1e999}', '{"step": %s}' % ("9" * 4000), "[" * 100000, '{"step": ' * 20000,
             '{"step": {"step": 5}}', '{"step": "5", "loss": Infinity}', '{"step": 5, "step": 6}', '{"a' * 30000):
    print(line, flush=True)
    time.sleep(0.1)
""",
    ),
    Attack(
        name="slow-pattern",
        tries="a pattern of its own that goes back and forth for hours on the lines that it prints",
        job={"progress": {"patterns": [r"(?:(?:a|aa)+)+b(\d+)", r"(?:\w*\w*\w*\w*)*!(\d+)"]}},
        program="""
until = time.monotonic() + 4
while time.monotonic() < until:
    say("a" * 299)
    time.sleep(0.01)
""",
    ),
    Attack(
        name="step-file",
        tries="a step file that is a pipe, a directory, a link to /etc/shadow, 100 MB, and noise",
        program="""
path = os.environ["TFSUP_STEP_FILE"]
def put(make):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    make()
    time.sleep(0.4)
done("noise", lambda: put(lambda: open(path, "wb").write(os.urandom(5000))))
done("long", lambda: put(lambda: open(path, "w").write("9" * 100_000_000)))
done("link", lambda: put(lambda: os.symlink("/etc/shadow", path)))
done("device", lambda: put(lambda: os.symlink("/dev/zero", path)))
done("pipe", lambda: put(lambda: os.mkfifo(path)))
done("directory", lambda: put(lambda: os.mkdir(path)))
""",
    ),
    Attack(
        name="log-is-a-link",
        tries="its output file becomes a link to a secret, a pipe, a directory: what does `tail` show?",
        program=_LOG
        + """
target = SITE["canary"] + "/root/secret"
def becomes(make):
    for directory in os.environ["HOME"], os.path.dirname(os.environ["TFSUP_STEP_FILE"]):
        path = directory + "/output.log"
        if os.path.lexists(path):
            os.rename(path, path + ".old-%d" % time.monotonic_ns())
            make(path)
            say("replaced", path)
            time.sleep(0.5)
done("link", lambda: becomes(lambda path: os.symlink(target, path)))
done("pipe", lambda: becomes(os.mkfifo))
done("directory", lambda: becomes(os.mkdir))
done("shadow", lambda: becomes(lambda path: os.symlink("/etc/shadow", path)))
say("replaced all")
time.sleep(3600)
""",
        ends=Stopped("replaced|"),
    ),
    Attack(
        name="sparse-log",
        tries="an output file of 4 TiB without content, then of none",
        program="""
path = os.path.dirname(os.environ["TFSUP_STEP_FILE"]) + "/output.log"
done("grow", lambda: os.truncate(path, 4 << 40))
time.sleep(1)
done("shrink", lambda: os.truncate(path, 0))
time.sleep(0.5)
say("step 2")
""",
    ),
    Attack(
        name="forged-causes",
        tries="output of GPU faults, lost nodes and full disks, so that its failures count for none of its own",
        program="""
for line in ("CUDA_ERROR_ECC_UNCORRECTABLE", "XID 79: GPU has fallen off the bus", "No space left on device",
             "UnavailableError: failed to connect to all addresses", "CUDA_ERROR_OUT_OF_MEMORY", "NCCL error"):
    say(line)
raise RuntimeError("CUDA error: an illegal memory access was encountered; ECC uncorrectable")
""",
        ends=Failed("."),
    ),
    Attack(
        name="many-attempts",
        tries="a program that fails at once, and is restarted as often as a job may ask for",
        job={"restart": {"max": 5, "backoff": "1ms", "backoff_max": "1ms"}},
        program="raise SystemExit(3)",
        ends=Failed("5 restarts|program faults"),
    ),
)
