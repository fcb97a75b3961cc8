"""docker's SDK for all parts of the product: the connection to dockerd, its errors, the progress of a pull.

Calls block. The SDK's deadline is for each answer of dockerd, so a stream has no limit while it makes
progress.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import requests
from docker import APIClient, errors
from urllib3.exceptions import HTTPError

from supervisor.contract.errors import Conflict, NotFound, Refused, Unreachable

_FIRST_VERSION = "1.40"
_CONFLICT = 409
_UNIX = "unix://"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def architecture(machine: str) -> str:
    """The name of an architecture in images, for the kernel's name."""
    return _ARCHITECTURES.get(machine, machine)


def connect(address: str, timeout_s: int) -> APIClient:
    """A client with dockerd's own version of the API. Raises Unreachable, Refused."""
    if address.startswith(_UNIX):
        _knock(address, timeout_s)
    # A client that negotiates while it is made leaves its socket open when nobody answers.
    with mapped_errors(address), APIClient(address, version=_FIRST_VERSION, timeout=timeout_s) as first:
        version = str(first.version(api_version=False)["ApiVersion"])
    return APIClient(address, version=version, timeout=timeout_s)


def another(client: APIClient, address: str, timeout_s: int) -> APIClient:
    """A client like this one with another deadline."""
    return APIClient(address, version=client.api_version, timeout=timeout_s)


def pull(
    client: APIClient, name: str, moved: Callable[[int, int], None], given_up: Callable[[], bool] = bool
) -> None:
    """Fetch an image. `moved` is called with (bytes done, bytes known so far).

    The pull ends early when `given_up()` is true.

    Call it inside `mapped_errors`.
    """
    layers: dict[str, tuple[int, int]] = {}
    for event in client.pull(name, stream=True, decode=True):
        if given_up():
            return
        if "error" in event:
            raise Refused(f"image {name}: {event['error']}")
        layer, amount = str(event.get("id")), event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and amount.get("total"):
            layers[layer] = (int(amount["current"]), int(amount["total"]))
        elif event.get("status") == "Download complete" and layer in layers:
            layers[layer] = (layers[layer][1], layers[layer][1])
        moved(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))


@contextmanager
def mapped_errors(address: str) -> Iterator[None]:
    """Turn errors of the SDK into Unreachable, NotFound, Conflict, Refused."""
    try:
        yield
    except errors.NotFound as error:
        raise NotFound(_said(error)) from error
    except errors.APIError as error:
        kind = Conflict if error.status_code == _CONFLICT else Refused
        raise kind(_said(error)) from error
    except requests.Timeout as error:
        raise Unreachable(f"dockerd at {address} does not answer: timed out") from error
    except (errors.DockerException, errors.StreamParseError, HTTPError, OSError) as error:
        # requests' errors are OSErrors; a stream that breaks off in the middle has other names.
        raise Unreachable(f"dockerd at {address} does not answer: {error}") from error


def _knock(address: str, timeout_s: int) -> None:
    """Connect once without the SDK, which hides the system's reason and does not close a socket that failed
    to connect.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(address.removeprefix(_UNIX))
    except PermissionError as error:
        raise Refused(
            f"this user may not use dockerd at {address}; be root, or a member of the socket's group"
        ) from error
    except OSError as error:
        raise Unreachable(f"no dockerd at {address}: {error.strerror or error}") from error


def _said(error: errors.APIError) -> str:
    return str(error.explanation or error).strip()
