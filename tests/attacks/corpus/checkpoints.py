"""Paths that a job has tf-supervisor take, and what it puts into them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.attacks.attack import NOT_SEPARATED, SAME_USER, Attack, End, Failed, Harmless, Refused, Where

NOWHERE: Mapping[Where, str] = {}
_SAVE = """
open(os.environ["CHECKPOINT_DIR"] + "/state-1.json", "w").write("{}")
time.sleep(1)
"""


def _adopt(name: str, path: str, tries: str, ends: End, not_in: Mapping[Where, str] = NOWHERE) -> Attack:
    job = {"checkpoint": {"pattern": "state-{step}.json", "adopt": path}}
    return Attack(name=name, tries=tries, job=job, program=_SAVE, ends=ends, not_in=not_in)


ATTACKS = (
    _adopt("adopt-etc", "/etc", "`checkpoint.adopt: /etc`", ends=Refused("adopt")),
    _adopt("adopt-dots", "../../../../etc", "`checkpoint.adopt` with dots", ends=Refused("adopt")),
    _adopt("adopt-proc", "/proc/self/cwd", "`checkpoint.adopt` in /proc", ends=Refused("adopt")),
    _adopt(
        "adopt-canary",
        "/srv/canary/root",
        "`checkpoint.adopt` of another user's directory",
        ends=Failed("adopt"),
        not_in={Where.USER: SAME_USER, Where.DOCKER: "no directory of the node is there"},
    ),
    _adopt(
        "adopt-locks",
        "/srv/locks",
        "`checkpoint.adopt` of the directory of port locks",
        ends=Failed("adopt"),
        not_in={Where.USER: "no such directory"},
    ),
    Attack(
        name="adopt-link",
        tries="a link to another user's directory at the place that `checkpoint.adopt` names",
        job={"checkpoint": {"pattern": "state-{step}.json", "adopt": "/tmp/attack-adopt"}},
        program="""
done("leave", lambda: os.rename("/tmp/attack-adopt", "/tmp/attack-adopt-old"))
done("link", lambda: os.symlink(SITE["canary"] + "/root", "/tmp/attack-adopt"))
done("write", lambda: open("/tmp/attack-adopt/state-1.json", "w").write("{}"))
time.sleep(1)
for path in ("/tmp/attack-adopt", "/tmp/attack-adopt-old"):
    done("remove", lambda: (os.path.islink(path) and os.unlink(path)))
""",
        ends=Harmless(),
        not_in=NOT_SEPARATED,
    ),
    Attack(
        name="links-in-adopted",
        tries="links out of an adopted directory as saves",
        job={"checkpoint": {"pattern": "state-{step}.json", "adopt": "/tmp/attack-adopted"}},
        program="""
for number, target in enumerate((SITE["canary"] + "/root/secret", "/etc/shadow", SITE["state"] + "/marks.key")):
    done("link", lambda: os.symlink(target, "/tmp/attack-adopted/state-%d.json" % number))
open("/tmp/attack-adopted/state-9.json", "w").write("{}")
time.sleep(1)
""",
    ),
    Attack(
        name="uri-of-another",
        tries="`checkpoint.uri` in another user's place",
        job={"checkpoint": {"uri": "file:///ROOT/store/alice/victim"}},
        ends=Refused("checkpoint.uri"),
    ),
    Attack(
        name="uri-of-etc",
        tries="`checkpoint.uri: file:///etc`",
        job={"checkpoint": {"uri": "file:///etc/tf-supervisor"}},
        ends=Refused("checkpoint.uri"),
    ),
    Attack(
        name="uri-with-password",
        tries="`checkpoint.uri` with another scheme, a password, a query and a fragment",
        job={"checkpoint": {"uri": "http://a:b@127.0.0.1/x?y#z"}},
        ends=Refused("checkpoint.uri"),
    ),
)
