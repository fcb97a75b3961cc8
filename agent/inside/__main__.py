"""`PYTHON /path/to/agent/inside CONFIG.json`: the launcher, invisible to the program's imports.

With `--beside` instead of the file: an operator's command beside a running attempt. With `--devices`: the
look at the GPUs that an attempt was given.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Python has put this directory first on the path; our modules must not stand before the user's.
    here = sys.path.pop(0)

    import importlib
    import importlib.util

    _spec = importlib.util.spec_from_file_location(
        "_tfsup", f"{here}/__init__.py", submodule_search_locations=[here]
    )
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules["_tfsup"] = _package
    _spec.loader.exec_module(_package)
    if sys.argv[1] == "--beside":
        importlib.import_module("_tfsup.beside").main(sys.argv[2:])
    elif sys.argv[1] == "--devices":
        importlib.import_module("_tfsup.launcher.devices").main(sys.argv[2:])
    else:
        importlib.import_module("_tfsup.launcher.loop").main(sys.argv[1])
