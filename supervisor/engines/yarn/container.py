"""Runs an agent's command in a YARN container, by itself: the ApplicationMaster sends this file there.

| YARN says | the command hears |
|---|---|
| the signal SIGQUIT, which `pool scale` and `pool down` have it send | SIGUSR2: leave |
| a file `notice`, which our ApplicationMaster sends: the container is wanted back | SIGUSR2: leave |
| SIGTERM, or that this process or its directory is gone | SIGTERM |

The command has a session of its own: YARN kills a container's process group 250 ms after SIGTERM, and an
agent needs some seconds to end its tasks. After a notice alone the exit status asks for another container.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

AGAIN = 75
"""The exit status after which the ApplicationMaster asks for another container (`Master.java`)."""
ARCHIVE = "./archive"
"""The word of a command that stands for the agents' installation, which YARN has brought."""
TOKENS = "HADOOP_TOKEN_FILE_LOCATION"
RACK = "TFSUP_RACK"
"""The variable in which the ApplicationMaster names the machine's rack."""
LOOK_S = 1.0
PR_SET_PDEATHSIG = 1
HEARD = {signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD}


def main() -> int:
    """Run the command of order.json to its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    directory = Path.cwd()
    order = json.loads(Path("order.json").read_text(encoding="utf-8"))
    gpus = gpus_of(order["gpus"], os.environ)
    if len(gpus) != order["gpus"]:
        say(
            f"YARN gave this agent {order['gpus']} GPUs, and it can open {len(gpus)}: YARN keeps GPUs apart "
            "with LinuxContainerExecutor and control groups, or with Docker"
        )
        return 2
    if tokens := os.environ.get(TOKENS):
        # YARN has fetched the files by these. Tasks must not find them.
        try:
            Path(tokens).unlink(missing_ok=True)
        except OSError as error:
            say(f"tasks can read the tokens in {tokens}, which cannot be removed: {error.strerror}")
    ident = application_of(os.environ["CONTAINER_ID"])
    words = (str(directory / word) if word == ARCHIVE else word for word in order["command"])
    rack = os.environ.get(RACK, "")
    command = [*words, "--place", os.environ["NM_HOST"], "--id", ident]
    command += ["--label", f"rack={rack}"] if rack else []
    environment = environment_of(order["environment"], gpus)
    own = os.getpid()
    child = os.fork()
    if not child:
        run(command, environment, own)
    leaving = noticed = ended = False
    while (over := os.waitpid(child, os.WNOHANG)) == (0, 0):
        told = signal.sigtimedwait(HEARD, LOOK_S)
        number = told.si_signo if told is not None else 0
        # Each is passed on once: YARN may be asked to say it several times.
        if not ended and (number == signal.SIGTERM or not directory.exists()):
            say("YARN ends this container")
            ended = True
            os.kill(child, signal.SIGTERM)
        elif number == signal.SIGQUIT and not leaving:
            leaving = True
            os.kill(child, signal.SIGUSR2)
        elif not (noticed or leaving or ended) and (directory / "notice").is_symlink():
            say("YARN wants this container back")
            noticed = True
            os.kill(child, signal.SIGUSR2)
    code = os.waitstatus_to_exitcode(over[1])
    if code == 0 and noticed and not (leaving or ended):
        return AGAIN
    return code if code >= 0 else 128 - code


def run(command: list[str], environment: dict[str, str], parent: int) -> NoReturn:
    """In the child: become the command, which hears all signals, and SIGTERM when this program is killed."""
    os.setsid()
    # YARN removes the container's directory before the command has ended what it must.
    os.chdir("/")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)  # it was killed before this process could ask to be told
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        os._exit(2)


def environment_of(given: dict[str, str], gpus: list[str]) -> dict[str, str]:
    """The environment of the command. YARN's HOME is no user's, and an agent has its own way into HDFS."""
    found = {
        **os.environ,
        **given,
        "HOME": pwd.getpwuid(os.getuid()).pw_dir,
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    for each in (TOKENS, RACK):
        found.pop(each, None)
    return found


def gpus_of(wanted: int, environment: Mapping[str, str]) -> list[str]:
    """The GPUs that YARN gave this container.

    With Docker YARN names them. Without it YARN says nothing, and denies the container the devices of others.
    """
    if not wanted:
        return []
    if named := environment.get("NVIDIA_VISIBLE_DEVICES"):
        return named.split(",")
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    return [each.name.removeprefix("nvidia") for each in devices if opens(each)]


def opens(path: Path) -> bool:
    """Whether this process may open the device."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def application_of(container: str) -> str:
    """The application of `container_e17_1410901177871_0001_01_000005`; the part with e may be missing."""
    parts = container.split("_")
    return "_".join(("application", *parts[-4:-2]))


def say(text: str) -> None:
    """Print a line into the container's log."""
    sys.stderr.write(f"tfsup-container: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
