"""Attacks by files that a program leaves as a save, as an output, or in its own directories."""

from __future__ import annotations

from tests.attacks.attack import NOT_SEPARATED, Attack, Where

_PLACES = """
import shutil
CKPT, OUT = os.environ["CHECKPOINT_DIR"], os.environ["TFSUP_OUTPUT_DIR"]
SECRET = SITE["canary"] + "/root/secret"
def both(what, make):
    for directory in (CKPT, OUT):
        done(what + " in " + os.path.basename(directory), lambda: make(directory))
def saved(number=9):
    "A good save, after which its agent has looked at what is there."
    open("%s/state-%d.json" % (CKPT, number), "w").write(json.dumps({"step": number}))
    time.sleep(1)
"""

_DEEP_WRITE = """
def deep(top, count):
    os.chdir(top)
    for _ in range(count):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    open("file", "w").write("x")
    os.chdir("/")
"""

_INDEX = """
MAGIC = bytes.fromhex("57fb808b247547db")
def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
def index(offset, size):
    handles = varint(offset) + varint(size)
    return b"\\0" * 64 + (handles * 2).ljust(40, b"\\0")[:40] + MAGIC
"""

ATTACKS = (
    Attack(
        name="deep-directories",
        tries="1,100 directories inside each other as a save and as an output",
        program=_PLACES + _DEEP_WRITE + "both('deep', lambda top: deep(top, 1100))\nsaved()",
    ),
    Attack(
        name="pipes",
        tries="a pipe, a socket and a directory where a save and an output is expected",
        program=_PLACES
        + """
both("pipe", lambda top: os.mkfifo(top + "/state-1.json"))
both("directory", lambda top: os.mkdir(top + "/state-2.json"))
def bind(top):
    os.chdir(top)
    socket.socket(socket.AF_UNIX).bind("state-3.json")
both("socket", bind)
saved()
""",
    ),
    Attack(
        name="links-to-secrets",
        tries="saves and outputs that are links to /etc/shadow, another user's file and a running process",
        program=_PLACES
        + """
for number, target in enumerate((SECRET, "/etc/shadow", "/proc/1/environ", "/dev/zero", SITE["state"] + "/marks.key", ".", "..")):
    both("link to " + target, lambda top: os.symlink(target, "%s/state-%d.json" % (top, number + 1)))
both("link to a directory", lambda top: os.symlink(SITE["canary"], top + "/canary"))
both("link to itself", lambda top: os.symlink("loop", top + "/loop"))
saved()
""",
    ),
    Attack(
        name="hard-links",
        tries="saves and outputs that are hard links to another user's files",
        program=_PLACES
        + """
for number, target in enumerate((SECRET, SITE["canary"] + "/stranger/public", "/etc/shadow", SITE["state"] + "/marks.key")):
    both("hard link to " + target, lambda top: os.link(target, "%s/state-%d.json" % (top, number + 1)))
saved()
""",
    ),
    Attack(
        name="swapped-save",
        tries="a save that is a link to a secret each second time that somebody looks",
        program=_PLACES
        + """
until = time.monotonic() + 5
good, bad = CKPT + "/../good", CKPT + "/../bad"
good, bad = CKPT + "/good", CKPT + "/bad"
number = 0
while time.monotonic() < until:
    number += 1
    open(good, "w").write(json.dumps({"step": number}))
    if not os.path.lexists(bad):
        os.symlink(SECRET, bad)
    os.replace(good, CKPT + "/state-1.json")
    time.sleep(0.11)
    os.replace(bad, CKPT + "/state-1.json")
    time.sleep(0.001 * (number % 7))
""",
    ),
    Attack(
        name="swapped-directory",
        tries="directories of a save and of outputs that become links to another user's while they are read",
        job={"checkpoint": {"pattern": "sub/state-{step}.json"}},
        program=_PLACES
        + """
for top in (CKPT, OUT):
    os.mkdir(top + "/sub")
    open(top + "/sub/state-1.json", "w").write("{}")
    open(top + "/sub/secret", "w").write("mine")
until = time.monotonic() + 5
while time.monotonic() < until:
    for top in (CKPT, OUT):
        os.rename(top + "/sub", top + "/aside")
        os.symlink(SITE["canary"] + "/root", top + "/sub")
        time.sleep(0.002)
        os.unlink(top + "/sub")
        os.rename(top + "/aside", top + "/sub")
        open(top + "/sub/state-%d.json" % time.monotonic_ns(), "w").write("{}")
    time.sleep(0.06)
""",
    ),
    Attack(
        name="directory-is-a-link",
        tries="its checkpoint and output directories, and those beside them, become links to another job's",
        program=_PLACES
        + """
for path in (CKPT, OUT, os.path.dirname(CKPT) + "/summaries", os.path.dirname(CKPT)):
    for target in (SITE["canary"] + "/root", SITE["victim_checkpoints"]):
        def swap():
            os.rename(path, path + "-old")
            os.symlink(target, path)
        done("link at " + path, swap)
        done("back", lambda: (os.unlink(path), os.rename(path + "-old", path)))
done("write through it", lambda: open(SITE["canary"] + "/root/planted", "w"))
saved()
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="sparse",
        tries="a save and an output of 4 TiB without content",
        program=_PLACES
        + """
def sparse(top):
    with open(top + "/state-1.json", "w") as file:
        file.truncate(4 << 40)
both("4 TiB", sparse)
time.sleep(2)
for top in (CKPT, OUT):
    os.unlink(top + "/state-1.json")
""",
    ),
    Attack(
        name="many-files",
        tries="4,000 files as saves and as outputs",
        program=_PLACES
        + """
def many(top):
    os.mkdir(top + "/many")
    for number in range(4000):
        open("%s/many/state-%d.json" % (top, number), "w").close()
both("4,000 files", many)
for number in range(500):
    open("%s/state-%d.json" % (CKPT, number), "w").write("{}")
time.sleep(2)
for top in (CKPT, OUT):
    shutil.rmtree(top + "/many")
""",
    ),
    Attack(
        name="hostile-names",
        tries="names with newlines, NUL's neighbours, no UTF-8, options, braces, 255 bytes, stars and dots",
        program=_PLACES
        + """
for name in (b"a\\nb", b"\\xff\\xfe", b"-rf", b"{step}", b"x" * 255, b"*", b"...", b" ", b"\\x01\\x1b[2J", b"%s%n", "\\u202e".encode(),
             b"state-9999999999999999999999.json", b"state--1.json", b"state-\\xd9\\xa3.json", b"state-1.json.", b"manifest.json",
             b".staging", b".trash", b"commit.json"):
    both(repr(name)[:40], lambda top: open(os.fsencode(top) + b"/" + name, "w").write("{}"))
saved()
""",
    ),
    Attack(
        name="no-permissions",
        tries="directories of mode 000, files of mode 000, sticky and set-group-ID ones, as saves and outputs",
        program=_PLACES
        + """
def closed(top):
    os.makedirs(top + "/closed/inner")
    open(top + "/closed/inner/state-1.json", "w").write("{}")
    open(top + "/state-1.json", "w").write("{}")
    os.chmod(top + "/state-1.json", 0)
    os.chmod(top + "/closed/inner", 0)
    os.chmod(top + "/closed", 0o3000)
both("mode 000", closed)
saved()
both("its own directory", lambda top: os.chmod(top, 0))
time.sleep(1)
""",
    ),
    Attack(
        name="set-user-id",
        tries="a program with the set-user-ID bit as save and as output: does root own it later?",
        job={"checkpoint": {"pattern": "tool-{step}"}},
        program=_PLACES
        + """
def tool(top):
    shutil.copy("/bin/sleep", top + "/tool-1")
    os.chmod(top + "/tool-1", 0o6755)
both("set-user-ID", tool)
time.sleep(2)
""",
    ),
    Attack(
        name="devices",
        tries="device nodes, files that nobody may change, an owner that is root, a file system of its own",
        program=_PLACES
        + """
import fcntl
for kind, number in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    tried("device", lambda: os.mknod(OUT + "/device-%d" % kind, kind | 0o666, number))
open(OUT + "/fixed", "w").close()
tried("immutable", lambda: fcntl.ioctl(os.open(OUT + "/fixed", os.O_RDONLY), 0x40086602, b"\\x10\\0\\0\\0\\0\\0\\0\\0"))
tried("give to root", lambda: os.chown(OUT + "/fixed", 0, 0))
tried("a capability", lambda: os.setxattr(OUT + "/fixed", "security.capability", b"\\1\\0\\0\\2" + b"\\xff" * 16))
saved()
""",
        not_in={},
    ),
    Attack(
        name="absurd-index",
        tries="TensorFlow indexes with blocks at 2^60, sizes of 2^62, and noise before a good end",
        job={"checkpoint": {}},
        program=_PLACES
        + _INDEX
        + """
for number, data in enumerate((index(1 << 60, 1 << 62), index(0, 1 << 40), index(0, 10), os.urandom(5000) + MAGIC, MAGIC, b"", index(0, 64) * 1000)):
    name = "%s/model.ckpt-%d" % (CKPT, number)
    open(name + ".data-00000-of-00001", "wb").write(os.urandom(100))
    open(name + ".index", "wb").write(data)
    open(CKPT + "/checkpoint", "w").write('model_checkpoint_path: "model.ckpt-%d"\\n' % number)
    time.sleep(0.4)
name = CKPT + "/model.ckpt-50"
for shard in range(300):
    open("%s.data-%05d-of-99999" % (name, shard), "wb").write(b"x")
open(name + ".index", "wb").write(index(0, 0))
time.sleep(1)
""",
    ),
    Attack(
        name="checkpoint-elsewhere",
        tries="a `checkpoint` file that names /etc/shadow, another job's, dots, 100,000 names and no UTF-8",
        job={"checkpoint": {}},
        program=_PLACES
        + """
for path in ("/etc/shadow", SITE["victim_checkpoints"] + "/g1/state-5.json", "../../../../etc/passwd", "\\\\377\\\\376", "a\\nb"):
    open(CKPT + "/checkpoint", "w").write('model_checkpoint_path: "%s"\\nall_model_checkpoint_paths: "%s"\\n' % (path, path))
    time.sleep(0.3)
open(CKPT + "/checkpoint", "w").write('all_model_checkpoint_paths: "x"\\n' * 100000)
time.sleep(0.5)
open(CKPT + "/checkpoint", "wb").write(os.urandom(1 << 20))
time.sleep(0.5)
""",
    ),
    Attack(
        name="zip-bombs",
        tries="whole models (`.keras`) that unpack to 64 MiB from a thousandth, have 10,000 members, or members with dots",
        job={"checkpoint": {"pattern": "model-{step}.keras"}},
        program=_PLACES
        + """
import zipfile
with zipfile.ZipFile(CKPT + "/model-1.keras", "w", zipfile.ZIP_DEFLATED) as file:
    with file.open("../../../canary/planted", "w", force_zip64=True) as member:
        for _ in range(4):
            member.write(bytes(16 << 20))
with zipfile.ZipFile(CKPT + "/model-2.keras", "w") as file:
    for number in range(10000):
        file.writestr("/etc/%d" % number, "")
time.sleep(0.5)
end = b"PK\\5\\6" + b"\\0" * 4 + b"\\xff" * 12 + b"\\0\\0"
open(CKPT + "/model-3.keras", "wb").write(b"PK\\3\\4" + b"\\0" * 100 + end)
open(CKPT + "/model-4.keras", "wb").write(end * 5000)
time.sleep(1.5)
""",
    ),
    Attack(
        name="deep-json",
        tries="JSON saves with a million lists inside each other, numbers of 10^6 digits, half characters",
        program=_PLACES
        + """
for number, text in enumerate(("[" * 1000000, "[" * 100000 + "]" * 100000, "9" * 1000000, '{"a":' * 100000, '"\\\\ud800"', "NaN", "\\0", "")):
    open("%s/state-%d.json" % (CKPT, number), "w").write(text)
    time.sleep(0.4)
saved(50)
""",
    ),
    Attack(
        name="hostile-hdf5",
        tries="HDF5 saves with a signature and noise behind it, and sizes of 2^63",
        job={"checkpoint": {"pattern": "model-{step}.weights.h5"}},
        program=_PLACES
        + """
head = b"\\x89HDF\\r\\n\\x1a\\n"
for number, data in enumerate((head, head + os.urandom(5000), head + b"\\0" * 8 + b"\\xff" * 200, head + b"\\2\\x08\\x08\\0" + b"\\xff" * 32)):
    open("%s/model-%d.weights.h5" % (CKPT, number), "wb").write(data)
    time.sleep(0.4)
""",
    ),
    Attack(
        name="torn-forever",
        tries="a save that changes each 50 ms and is kept open for writing",
        program=_PLACES
        + """
file = open(CKPT + "/state-1.json", "w")
until = time.monotonic() + 4
while time.monotonic() < until:
    file.seek(0)
    file.write(json.dumps({"at": time.monotonic()}))
    file.flush()
    time.sleep(0.05)
""",
    ),
    Attack(
        name="full-disk",
        tries="a disk without room, which it shares with its agent and with others",
        program=_PLACES
        + """
def fill():
    file = os.open(CKPT + "/fill", os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(file, bytes(1 << 20))
    except OSError as error:
        say("denied:", error)
    time.sleep(3)
    os.close(file)
    os.unlink(CKPT + "/fill")
done("fill", fill)
time.sleep(1)
""",
        not_in={Where.USER: "the machine's own disk"},
    ),
    Attack(
        name="no-inode",
        tries="as many files as the disk has inodes for",
        program=_PLACES
        + """
os.mkdir(OUT + "/many")
def fill():
    for number in range(120000):
        open("%s/many/%d" % (OUT, number), "w").close()
done("fill", fill)
shutil.rmtree(OUT + "/many")
""",
        not_in={Where.USER: "the machine's own disk", Where.DOCKER: "as on a node without containers"},
    ),
    Attack(
        name="read-state",
        tries="the agent's key, state, audit log and configuration; other launchers; stores",
        program="""
OWN = {"launchers", "attempts", "code", "tasks", "inside"}
def others(path):
    "A container has directories above what is mounted, with nothing else in them."
    names = set(os.listdir(path)) - OWN
    return names if len(names) > 1 else 1 / 0
state, root = SITE["state"], SITE["root"]
for path in (state + "/agent.json", state + "/marks.key", state + "/../audit.jsonl", state + "/../run/agent.saved",
             root + "/tls/ca.pem", root + "/tls/operator.key", root + "/conf/client.yaml", "/etc/shadow"):
    tried("read " + path, lambda: open(path).read())
    tried("write " + path, lambda: open(path, "a"))
    tried("remove " + path, lambda: os.unlink(path))
for path in (state, state + "/launchers", state + "/attempts", state + "/code", state + "/outputs", root, SITE["store"], SITE["run"]):
    tried("list " + path, lambda: others(path))
    tried("write in " + path, lambda: open(path + "/planted", "w"))
    tried("rename " + path, lambda: os.rename(path, path + "-old"))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="read-victim-files",
        tries="another job's output, checkpoints, outputs and code",
        program="""
victim = SITE["victim_checkpoints"]
for path in (victim, victim + "/g1", SITE["state"] + "/attempts/" + SITE["victim_uuid"]):
    tried("list " + path, lambda: os.listdir(path))
    tried("write in " + path, lambda: open(path + "/planted", "w"))
tried("its save", lambda: open(victim + "/g1/state-5.json").read())
tried("change its save", lambda: open(victim + "/g1/state-5.json", "a"))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="write-code",
        tries="to change the shipped program, which other tasks of the node run too",
        program="""
here = os.getcwd()
tried("change it", lambda: open("attack.py", "a"))
tried("remove it", lambda: os.unlink("attack.py"))
tried("add to it", lambda: open("more.py", "w"))
tried("let me", lambda: os.chmod(here, 0o777))
done("a module that is compiled", lambda: open("__pycache__/json.cpython-311.pyc", "wb").write(b"x"))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="launcher-home",
        tries="files in its launcher's directory: exits that never were, links, pipes, 100 MB",
        program="""
import glob
found = [os.path.dirname(path) for path in glob.glob("/proc/%d/cmdline" % os.getppid())]
home = open("/proc/%d/cmdline" % os.getppid(), "rb").read().split(b"\\0")[-2].decode().rpartition("/")[0]
say("home", home)
def in_it(name, make):
    done(name, lambda: make(home + "/" + name))
in_it("link", lambda path: os.symlink(SITE["canary"] + "/root", path))
in_it("pipe", os.mkfifo)
for name in os.listdir(home) + ["exits", "attempt", "exits.json"]:
    path = home + "/" + name
    if os.path.isdir(path):
        done("noise in " + name, lambda: [open(path + "/%d.json" % n, "w").write("{" * n) for n in range(50)])
        done("pipe in " + name, lambda: os.mkfifo(path + "/x.json"))
        done("link in " + name, lambda: os.symlink("/etc/shadow", path + "/y.json"))
    elif not name.endswith("log"):
        done("link at " + name, lambda: (os.path.lexists(path) and os.unlink(path), os.symlink("/etc/shadow", path)))
in_it("deep", lambda path: [os.makedirs(path + "/a" * 500)])
in_it("closed", lambda path: (os.makedirs(path + "/x"), os.chmod(path, 0)))
""",
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="forged-manifest",
        tries="manifests and records of commits in its own directory that name other jobs' files",
        program=_PLACES
        + """
manifest = {"v": 1, "record": "Manifest", "job_uuid": SITE["victim_uuid"], "files": [{"path": "../../../etc/shadow", "size": 5}]}
for name in ("manifest.json", "MANIFEST", "state-1.json", "commit.json", ".commit", "index.json"):
    both(name, lambda top: open(top + "/" + name, "w").write(json.dumps(manifest)))
saved()
""",
    ),
)
