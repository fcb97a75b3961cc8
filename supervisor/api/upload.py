"""Bringing an archive of code to the cluster, before the job that needs it is submitted."""

from __future__ import annotations

import base64

from supervisor.adapters.files.code_archive import CodeArchive
from supervisor.api.client import ControlClient
from supervisor.contract.code import CHUNK_BYTES, CodePart, chunk_count
from supervisor.contract.errors import Unreachable


async def upload_code(client: ControlClient, archive: CodeArchive) -> bool:
    """Upload an archive unless the cluster has it; returns whether it was sent.

    It is safe to repeat after any failure: the cluster uses no archive before all of it has arrived. Raises
    the error that the leader answers, and Unreachable if none does.
    """
    if (await client.find_code(archive.ref)).complete:
        return False
    for index in range(chunk_count(archive.ref.size)):
        piece = archive.data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        text = base64.b64encode(piece).decode()
        state = await client.put_code(CodePart(archive.ref.digest, archive.ref.size, index, text))
        if state.complete:
            return True
    raise Unreachable(
        "the cluster took every chunk of the program's code, but lacks a part of it; submit again"
    )
