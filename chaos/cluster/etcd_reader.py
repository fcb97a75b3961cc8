"""Reads etcd through its JSON gateway, independent of the product's client."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from chaos.machine import kernel


@dataclass(frozen=True, slots=True)
class EtcdReader:
    """Reads from any member that answers.

    Attributes:
        endpoints: host:port of each member.
        network: the process whose network the members are reached in; None: ours.
    """

    endpoints: tuple[str, ...]
    ca: Path
    cert: Path
    key: Path
    network: int | None
    timeout_s: float = 1.0

    def read(self, prefix: str) -> dict[str, bytes]:
        """Every key with this prefix; OSError when no member answers, with what the last one said."""
        found = self.post("/v3/kv/range", span(prefix)).get("kvs", [])
        assert isinstance(found, list)
        return {
            base64.b64decode(each["key"]).decode(): base64.b64decode(each.get("value", "")) for each in found
        }

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """One call of the gateway, at the first member that answers; OSError when none does."""
        problem = "there are no members"
        for endpoint in self.endpoints:
            try:
                return self._post(endpoint, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = f"{endpoint}: {error}"
        raise OSError(problem)

    def _post(self, endpoint: str, path: str, body: dict[str, object]) -> dict[str, object]:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.cert, self.key)
        connection = http.client.HTTPSConnection(endpoint, context=context, timeout=self.timeout_s)
        try:
            with kernel.network_of(self.network):
                connection.connect()
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise OSError(f"{answer.status}: {raw.decode(errors='replace')[:300]}")
        reply = json.loads(raw)
        assert isinstance(reply, dict)
        return reply


def span(prefix: str) -> dict[str, object]:
    """All keys with this prefix, as the gateway's calls name them."""
    first = prefix.encode()
    return {"key": _base64(first), "range_end": _base64(first[:-1] + bytes([first[-1] + 1]))}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
