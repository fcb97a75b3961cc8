"""A warm attempt is like `python prog.py`: each program runs both ways, and the outputs are compared."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.inside import protocol
from tests.launcher.harness import Agent, Rig, launcher

# name -> (source, arguments after the interpreter; PROG stands for the script)
PROGRAMS = {
    "argv": ("import sys; print(sys.argv)", ["PROG", "--x", "1", "-y"]),
    "main": ("print(__name__, __file__, sorted(globals()), __package__, __spec__, __doc__)", ["PROG"]),
    "main_module": ("import __main__; x = 5; print(__main__.x, __main__.__loader__.path)", ["PROG"]),
    "path": ("import sys, os; print(sys.path, os.getcwd())", ["PROG"]),
    "subdirectory": ("import sys, helper; print(sys.path[0], helper.__file__)", ["sub/prog.py"]),
    "orig_argv": ("import sys; print(sys.orig_argv[1:], sys.flags.optimize)", ["-B", "PROG", "z"]),
    "bytecode": ("import sys; print(sys.dont_write_bytecode)", ["-B", "PROG"]),
    "optimised": ("assert False", ["-O", "PROG"]),
    "module": ("import sys; print(sys.argv, sys.path[0], __name__, __spec__.name)", ["-m", "prog", "a"]),
    "module_traceback": ("def f():\n    raise KeyError('x')\nf()", ["-m", "prog"]),
    "missing_module": ("", ["-m", "nonesuch"]),
    "standard_module": ("", ["-m", "json.tool", "--help"]),
    "exit_int": ("import sys; sys.exit(7)", ["PROG"]),
    "exit_big": ("import sys; sys.exit(258)", ["PROG"]),
    "exit_none": ("import sys; sys.exit()", ["PROG"]),
    "exit_text": ("import sys; print('a'); sys.exit('bye')", ["PROG"]),
    "exit_tuple": ("raise SystemExit((1, 2))", ["PROG"]),
    "os_exit": ("import os; os._exit(9)", ["PROG"]),
    "traceback": ("def f(x):\n    return 1 / x\n\nprint('before')\nf(0)", ["PROG"]),
    "chained": ("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('v') from e", ["PROG"]),
    "no_context": (
        "try:\n    raise ValueError('v')\nexcept ValueError as e:\n    print(e.__context__)",
        ["PROG"],
    ),
    "syntax": ("def f(:\n    pass", ["PROG"]),
    "import_error": ("import nonesuch", ["PROG"]),
    "encoding": ("# -*- coding: latin-1 -*-\nprint('caf\u00e9')", ["PROG"]),
    "missing": ("", ["nonesuch.py"]),
    "directory": ("", ["sub"]),
    "interrupt": ("raise KeyboardInterrupt", ["PROG"]),
    "hook": ("import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0", ["PROG"]),
    "signal": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", ["PROG"]),
    "handlers": (
        "import signal\nprint([signal.getsignal(n) for n in (2, 10, 13, 15, 17, 25)], signal.pthread_sigmask(0, ()))",
        ["PROG"],
    ),
    "atexit": ("import atexit; atexit.register(print, 'last'); print('first')", ["PROG"]),
    "atexit_raises": (
        "import atexit\n@atexit.register\ndef f():\n    raise ValueError('late')\nprint('first')",
        ["PROG"],
    ),
    "threads": (
        "import threading, time\ndef f():\n    time.sleep(0.1); print('thread')\n"
        "threading.Thread(target=f).start(); print('main')",
        ["PROG"],
    ),
    "daemon_thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start(); print('main')",
        ["PROG"],
    ),
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor as T\nprint(T(2).submit(lambda: 5).result())",
        ["PROG"],
    ),
    "pickle": (
        "import pickle\nclass C:\n    pass\nprint(pickle.dumps(C()), type(pickle.loads(pickle.dumps(C()))))",
        ["PROG"],
    ),
    "multiprocessing_fork": (
        "import multiprocessing as m\ndef f(x):\n    return x * x\n"
        "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p:\n        print(p.map(f, [1, 2, 3]))",
        ["PROG"],
    ),
    "multiprocessing_spawn": (
        "import multiprocessing as m\ndef f(x):\n    return x * x\n"
        "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p:\n        print(p.map(f, [1, 2, 3]))",
        ["PROG"],
    ),
    "stdin": ("import sys; print(repr(sys.stdin.read()))", ["PROG"]),
    "streams": (
        "import sys; print(sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, end='')",
        ["PROG"],
    ),
    "stack": ("import traceback\ndef f():\n    traceback.print_stack(limit=2)\nf()", ["PROG"]),
    "ours": (
        "import sys\nprint([n for n in sys.modules if 'tfsup' in n], [p for p in sys.path if 'inside' in p])",
        ["PROG"],
    ),
    "descriptors": ("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])", ["PROG"]),
    "closed_stdout": ("import os; print('x', end=''); os.close(1)", ["PROG"]),
    "recursion": ("def f(n):\n    return n and f(n - 1)\nprint(f(900))", ["PROG"]),
}
# Where exec is the only faithful way, the launcher must know it.
COLD = {"optimised", "missing", "directory"}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Rig, Agent]]:
    with launcher(preload=["json"]) as rig, Agent(rig.socket_path) as agent:
        agent.expect(protocol.Warm)
        (rig.root / "sub").mkdir()
        rig.write("sub/helper.py", "")
        yield rig, agent


@pytest.mark.parametrize("name", PROGRAMS)
def test_warm_is_like_python(served: tuple[Rig, Agent], name: str) -> None:
    rig, agent = served
    source, arguments = PROGRAMS[name]
    script = "sub/prog.py" if name == "subdirectory" else "prog.py"
    (rig.root / script).write_bytes(source.encode("latin-1" if name == "encoding" else "utf-8"))
    command = [sys.executable, *(script if each == "PROG" else each for each in arguments)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(rig.root), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": ""}
    plain = subprocess.run(
        command,
        cwd=rig.root,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    exited = rig.run(agent, *command)
    code = -exited.signal if exited.signal else exited.code
    assert _without_addresses(rig.log()) == _without_addresses(plain.stdout)
    assert code == plain.returncode
    assert _started_warm(agent) == (name not in COLD)


def _without_addresses(output: bytes) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", output.decode())


def _started_warm(agent: Agent) -> bool:
    return agent.all(protocol.Started)[-1].warm
