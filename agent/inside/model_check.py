"""A process that loads the SavedModel in its working directory once; `call` calls its signature, too.

`PYTHON .../model_check.py load|call`; it exits with 0 if that works. Its last line of output says what does
not.
"""

import importlib
import os
import sys
from types import ModuleType, TracebackType
from typing import Any, Dict, Optional, Type

_SIGNATURE = "serving_default"


def _say(kind: Type[BaseException], error: BaseException, _trace: Optional[TracebackType]) -> None:
    print("%s: %s" % (kind.__name__, " ".join(str(error).split())[:1000]), flush=True)


def _call(tf: ModuleType, signatures: Dict[str, Any]) -> None:
    """Call the default signature with zeros of the shapes that it asks for, 1 where any size will do."""
    if not signatures:
        raise ValueError("it has no signature to call")
    call = signatures[_SIGNATURE if _SIGNATURE in signatures else min(signatures)]
    inputs = {}
    for key, spec in call.structured_input_signature[1].items():
        shape = [size or 1 for size in spec.shape] if spec.shape.rank is not None else [1]
        inputs[key] = tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    call(**inputs)


if __name__ == "__main__":
    # Python has put our directory first on the path; our modules must not stand before the user's.
    sys.path.pop(0)
    sys.excepthook = _say
    tensorflow = importlib.import_module("tensorflow")
    model = tensorflow.saved_model.load(".")
    if sys.argv[1] == "call":
        _call(tensorflow, dict(model.signatures))
    sys.stdout.flush()
    os._exit(0)
