"""A module whose import never ends."""

import threading

threading.Event().wait()
