"""The paths that a supervisor serves over HTTP: the pages, `/api/v1`, and the files of the pages.

Only the leader knows the cluster. Another supervisor sends callers there, or says which one leads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from supervisor.contract.errors import Conflict, NotFound, Unreachable, UserError
from supervisor.web.api import Api
from supervisor.web.openapi import openapi
from supervisor.web.pages import Pages, View
from supervisor.web.samples import Samples
from supervisor.web.source import Source
from supervisor.wire.failures import NotLeading
from supervisor.wire.http import Answer, Asked, Handler, Route

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def routes(source: Source) -> list[Route]:
    """Every path of a supervisor's HTTP door. It reads files, and so may take a moment."""
    api = Api(source)
    pages = Pages(source, Samples(source.snapshot))
    found = [
        Route(path, method, _page(source, pages, view)) for path, (method, view) in pages.views().items()
    ]
    found += api.routes(partial(_elsewhere, source), openapi(api.documents))
    for file in sorted(STATIC.rglob("*")):
        if file.suffix in KINDS:
            content = Answer(file.read_bytes(), KINDS[file.suffix])
            found.append(Route(f"/static/{file.name}", "Http.Static", _constant(content)))
    return found


def _constant(content: Answer) -> Handler:
    async def handler(_: Asked) -> Answer:
        return content

    return handler


def _page(source: Source, pages: Pages, view: View) -> Handler:
    async def show(asked: Asked) -> Answer:
        try:
            return await pages.show(view, asked)
        except NotLeading as error:
            return _elsewhere(source, asked) or pages.failure(Unreachable(_where(source, error)), asked, 503)
        except NotFound as error:
            return pages.failure(error, asked, 404)
        except (UserError, Conflict) as error:
            return pages.failure(error, asked, 400)

    return show


def _where(source: Source, error: NotLeading) -> str:
    leader = source.service.leader()
    return f"{error}; {leader.supervisor} leads, at {leader.address}" if leader is not None else str(error)


def _elsewhere(source: Source, asked: Asked) -> Answer | None:
    """The redirect to the leader; None if it has no HTTP door, or is not known.

    Through a tunnel all doors may have one address: then a redirect would lead back here.
    """
    leader = source.service.leader()
    if leader is None or not leader.http or leader.http.partition("://")[2] == asked.headers.get("host"):
        return None
    return Answer(status=307, headers={"Location": leader.http + asked.target})
