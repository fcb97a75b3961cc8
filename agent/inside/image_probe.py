"""A probe that `supervisorctl image check` runs in a container: it reports on the container's Python and
user.

`PYTHON .../image_probe.py DIRECTORY...` prints one line of JSON; the directories are those that must be
writable. Any Python since 2.7 can parse this file, so that a version that is too old is reported.
"""

import json
import os
import sys

if __name__ == "__main__":
    # As in `__main__.py`: our modules must not stand before those of the image.
    here = sys.path.pop(0)
    sys.dont_write_bytecode = True
    launcher = ""
    try:
        import importlib.util

        spec = importlib.util.spec_from_file_location(
            "_tfsup", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["_tfsup"] = package
        spec.loader.exec_module(package)
        importlib.import_module("_tfsup.launcher.loop")
    except (ImportError, SyntaxError, AttributeError, OSError) as error:
        launcher = "%s: %s" % (type(error).__name__, error)
    unwritable = []
    for directory in sys.argv[1:]:
        name = os.path.join(directory, ".tfsup-image-check")
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.unlink(name)
        except OSError:
            unwritable.append(directory)
    facts = {
        "version": list(sys.version_info[:3]),
        "executable": sys.executable or "",
        "machine": os.uname()[4],
        "uid": os.getuid(),
        "gid": os.getgid(),
        "launcher": launcher,
        "unwritable": unwritable,
    }
    print(json.dumps(facts))
