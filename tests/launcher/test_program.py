"""A warm attempt is like `python prog.py`: each program runs both ways, and the outputs are compared."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.inside import protocol
from tests.launcher.harness import Agent, Rig, launcher

# What each prints and how it ends is compared.
PROGRAMS = {
    "argv": "import sys; print(sys.argv)",
    "main": "print(__name__, __file__, sorted(globals()), __package__, __spec__, __doc__)",
    "main_module": "import __main__; x = 5; print(__main__.x, __main__.__loader__.path)",
    "path": "import sys, os; print(sys.path, os.getcwd())",
    "subdirectory": "import sys, helper; print(sys.path[0], helper.__file__)",
    "orig_argv": "import sys; print(sys.orig_argv[1:], sys.flags.optimize)",
    "bytecode": "import sys; print(sys.dont_write_bytecode)",
    "optimised": "assert False",
    "module": "import sys; print(sys.argv, sys.path[0], __name__, __spec__.name)",
    "module_traceback": """
def f():
    raise KeyError('x')
f()
""",
    "missing_module": "",
    "standard_module": "",
    "exit_int": "import sys; sys.exit(7)",
    "exit_big": "import sys; sys.exit(258)",
    "exit_none": "import sys; sys.exit()",
    "exit_text": "import sys; print('a'); sys.exit('bye')",
    "exit_tuple": "raise SystemExit((1, 2))",
    "os_exit": "import os; os._exit(9)",
    "traceback": """
def f(x):
    return 1 / x

print('before')
f(0)
""",
    "chained": """
try:
    {}['k']
except KeyError as e:
    raise ValueError('v') from e
""",
    "no_context": """
try:
    raise ValueError('v')
except ValueError as e:
    print(e.__context__)
""",
    "syntax": """
def f(:
    pass
""",
    "import_error": "import nonesuch",
    "encoding": """
# -*- coding: latin-1 -*-
print('café')
""",
    "missing": "",
    "directory": "",
    "interrupt": "raise KeyboardInterrupt",
    "hook": """
import sys
sys.excepthook = lambda *a: print('hook', a[0].__name__)
1/0
""",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handlers": """
import signal
print([signal.getsignal(n) for n in (2, 10, 13, 15, 17)], signal.pthread_sigmask(0, ()))
""",
    "atexit": "import atexit; atexit.register(print, 'last'); print('first')",
    "atexit_raises": """
import atexit
@atexit.register
def f():
    raise ValueError('late')
print('first')
""",
    "threads": """
import threading, time
def f():
    time.sleep(0.1); print('thread')
threading.Thread(target=f).start(); print('main')
""",
    "daemon_thread": """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start(); print('main')
""",
    "pool": """
from concurrent.futures import ThreadPoolExecutor as T
print(T(2).submit(lambda: 5).result())
""",
    "pickle": """
import pickle
class C:
    pass
print(pickle.dumps(C()), type(pickle.loads(pickle.dumps(C()))))
""",
    "multiprocessing_fork": """
import multiprocessing as m
def f(x):
    return x * x
if __name__ == '__main__':
    with m.get_context('fork').Pool(2) as p:
        print(p.map(f, [1, 2, 3]))
""",
    "multiprocessing_spawn": """
import multiprocessing as m
def f(x):
    return x * x
if __name__ == '__main__':
    with m.get_context('spawn').Pool(1) as p:
        print(p.map(f, [1, 2, 3]))
""",
    "stdin": "import sys; print(repr(sys.stdin.read()))",
    "streams": "import sys; print(sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, end='')",
    "stack": """
import traceback
def f():
    traceback.print_stack(limit=2)
f()
""",
    "ours": """
import sys
print([n for n in sys.modules if 'tfsup' in n], [p for p in sys.path if 'inside' in p])
""",
    "descriptors": """
import os
# But for the listing's own, and the high one that a warm program's stacks are dumped to.
print(sorted(n for n in map(int, os.listdir('/proc/self/fd')) if n < 900)[:-1])
""",
    "closed_stdout": "import os; print('x', end=''); os.close(1)",
    "recursion": """
def f(n):
    return n and f(n - 1)
print(f(900))
""",
}
# What follows the interpreter, where it is not just the script.
ARGUMENTS = {
    "argv": ["prog.py", "--x", "1", "-y"],
    "subdirectory": ["sub/prog.py"],
    "orig_argv": ["-B", "prog.py", "z"],
    "bytecode": ["-B", "prog.py"],
    "optimised": ["-O", "prog.py"],
    "module": ["-m", "prog", "a"],
    "module_traceback": ["-m", "prog"],
    "missing_module": ["-m", "nonesuch"],
    "standard_module": ["-m", "json.tool", "--help"],
    "missing": ["nonesuch.py"],
    "directory": ["sub"],
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
    source = PROGRAMS[name].lstrip()
    script = "sub/prog.py" if name == "subdirectory" else "prog.py"
    (rig.root / script).write_bytes(source.encode("latin-1" if name == "encoding" else "utf-8"))
    command = [sys.executable, *ARGUMENTS.get(name, [script])]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(rig.root), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": ""}
    plain = subprocess.run(
        command,
        cwd=rig.root,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
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
