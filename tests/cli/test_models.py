"""`supervisorctl models`: versions are listed, rolled back, published and labelled in the stores of jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format

from chaos.cluster.certificates import Authority
from recovery.models.index import ModelIndex
from recovery.stores.local import LocalStore
from supervisor.cli.main import cli
from supervisor.cli.models import overview, verbs
from supervisor.cli.models.servers import config_of, credentials_of, merged, tell_servers
from supervisor.contract.errors import (
    Conflict,
    IncompatibleRecord,
    NewerRelease,
    NotFound,
    Unreachable,
    UserError,
)
from supervisor.wire.tensorflow_serving_pb2 import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelServerConfig,
    ReloadConfigRequest,
    ReloadConfigResponse,
)
from tests.models.exported import export
from tests.models.site import MODEL, Site, state


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    async def place(_given: object, _job: str) -> str:
        return f"file://{tmp_path}/store"

    monkeypatch.setattr(verbs, "_place", place)
    found = Site(tmp_path, LocalStore(tmp_path / "store"))
    asyncio.run(found.store.prepare())
    return found


def exported(site: Site, *numbers: int) -> None:
    for number in numbers:
        export(site.out, f"export/{number}", b"%d" % number, number)
    asyncio.run(site.publisher(state(keep=2)).look(final=True))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["models", *words], standalone_mode=False)


def seen(site: Site) -> list[int]:
    return sorted(asyncio.run(site.seen()))


def test_versions_are_listed_with_their_state(site: Site) -> None:
    exported(site, 1, 2, 3)
    (site.out / "export/4").mkdir()
    (site.out / "export/4/saved_model.pb").write_bytes(b"torn")
    exported(site)
    assert run("job", "label", "stable", "2").exception is None
    assert run("job", "rollback").exception is None
    lines = run("job").output.splitlines()
    assert lines[0] == f"model {MODEL}: file://{site.root}/store/models/{MODEL}"
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["2", "published", "stable"],
        ["3", "withdrawn", "-"],
    ]
    assert "new exports are held" in lines[4]
    assert lines[5].startswith("not published: export/4: variables/variables.index or one of its data")
    document = json.loads(run("job", "ls", "-o", "json").output)
    assert (document["visible"], document["index"]["labels"]) == ([2], {"stable": 2})


def test_without_a_job_all_models_are_listed_and_one_that_cannot_be_read_hides_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Site(site.root / "broken", LocalStore(site.root / "broken/store"))
    asyncio.run(broken.store.prepare())
    places = {f"file://{each.root}/store": name for each, name in ((site, "job"), (broken, "other"))}

    async def stores(_given: object) -> dict[str, str]:
        return {**places, "nowhere://x": "lost"}

    monkeypatch.setattr(overview, "stores", stores)
    done = run()
    assert done.stdout.startswith("this machine sees no model of any job; `serving:` in a job file says")
    assert done.stderr.startswith("not listed: job lost: ")
    exported(site, 1, 2, 3)
    exported(broken, 1)
    for path in (broken.root / "store/.models" / MODEL / "index").iterdir():
        path.chmod(0o600)
        path.write_bytes(b"\0")
    assert run("job", "label", "stable", "2").exception is None
    assert run("job", "rollback").exception is None
    exported(site, 4)
    assert run("job", "publish", "4").exception is None
    done = run()
    rows = [line.split("  ") for line in done.stdout.splitlines()]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["job", "model", "versions", "labels", "served"],
        ["job", MODEL, "2, 3 withdrawn, 4", "stable=2", "4"],
    ]
    held, lost, unread = done.stderr.splitlines()
    assert held == "new exports are held; `supervisorctl models job publish` publishes them"
    assert lost.startswith("not listed: job lost: ")
    assert unread.startswith(f"not listed: job other: model {MODEL}: .models/{MODEL}/index/")
    document = json.loads(run("-o", "json").stdout)
    (model,) = document["models"]
    assert (model["job"], model["visible"], model["served"]) == ("job", [2, 4], 4)
    assert model["place"] == f"file://{site.root}/store/models/{MODEL}"
    assert [each["job"] for each in document["unread"]] == ["lost", "other"]


def test_a_rollback_takes_newer_versions_from_servers_until_they_are_published_again(site: Site) -> None:
    exported(site, 1, 2)
    done = run("job", "rollback")
    assert done.output == f"model {MODEL}: versions 1; new exports are held until `publish`\n"
    assert seen(site) == [1]
    exported(site, 3)
    assert seen(site) == [1]
    assert run("job", "publish", "3").output == f"model {MODEL}: versions 1, 3\n"
    assert seen(site) == [1, 3]
    assert run("job", "publish").output == f"model {MODEL}: versions 2, 3\n"
    exported(site, 4)
    assert seen(site) == [3, 4]


def test_a_broken_index_is_repaired_and_servers_see_the_same(site: Site) -> None:
    exported(site, 1, 2)
    assert run("job", "label", "stable", "1").exception is None
    assert run("job", "rollback").exception is None
    index = sorted((site.root / "store/.models" / MODEL / "index").iterdir())
    index[-1].chmod(0o600)
    index[-1].write_bytes(index[-1].read_bytes()[:100])
    for words in ((), ("publish",)):
        error = run("job", *words).exception
        assert isinstance(error, IncompatibleRecord)
        assert "`supervisorctl models JOB repair` writes it anew" in str(error)
    with pytest.raises(IncompatibleRecord):
        exported(site, 3)
    done = run("job", "repair")
    held = "new exports are held: look at `models job`, then publish"
    assert done.output == f"model {MODEL}: the index is written anew: versions 1; {held}\n"
    assert seen(site) == [1], "version 2 was withdrawn by the index that is broken"
    assert asyncio.run(site.index()).labels == {"stable": 1}
    assert run("job", "publish").output == f"model {MODEL}: versions 1, 2\n"
    exported(site, 3)
    assert seen(site) == [1, 2, 4], "one number for each change that nobody can read"
    assert isinstance(run("job", "repair").exception, Conflict)


def test_without_any_index_that_can_be_read_all_that_servers_see_is_found(site: Site) -> None:
    exported(site, 1, 2)
    for path in (site.root / "store/.models" / MODEL / "index").iterdir():
        path.chmod(0o600)
        path.write_bytes(b"\0" * 10)
    (site.root / "store/models" / MODEL / "9").mkdir()
    before = asyncio.run(site.seen())
    assert "versions 1, 2" in run("job", "repair").output
    assert asyncio.run(site.seen()) == before
    exported(site, 1, 2, 3)
    assert seen(site) == [9, 11, 12], "taken anew, above all that is there; two of them are kept"


def test_an_index_of_a_newer_release_is_not_repaired(site: Site) -> None:
    exported(site, 1)
    newest = max((site.root / "store/.models" / MODEL / "index").iterdir())
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes().replace(b'"v":1', b'"v":999').replace(b'"v": 1', b'"v": 999'))
    assert isinstance(run("job", "repair").exception, NewerRelease)


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (("rollback", "9"), NotFound, "model digits has no version 9; it has 1"),
        (("rollback",), NotFound, "model digits has no published version before its newest"),
        (("publish", "9"), NotFound, "has no version 9"),
        (("label", "stable", "9"), NotFound, "has no version 9"),
        (("label", "so/so", "1"), UserError, "label 'so/so' is not a valid name"),
        (("label", "stable", "--remove"), NotFound, "model digits has no label stable"),
        (("ls", "--model", "other"), NotFound, "job job has published no model other; it has digits"),
    ],
)
def test_wrong_words_say_what_there_is(
    site: Site, words: tuple[str, ...], kind: type[Exception], text: str
) -> None:
    exported(site, 1)
    error = run("job", *words).exception
    assert isinstance(error, kind)
    assert text in str(error)


def test_a_job_without_models_says_how_to_get_some(site: Site) -> None:
    error = run("job").exception
    assert isinstance(error, NotFound)
    assert "`serving:` in its job file" in str(error)


def test_the_configuration_has_all_versions_and_the_labels(site: Site) -> None:
    exported(site, 1, 2)
    run("job", "label", "stable", "1")
    config = text_format.Parse(run("job", "reload").output, ModelServerConfig())
    (one,) = config.model_config_list.config
    assert (one.name, one.base_path) == (MODEL, f"{site.root}/store/models/{MODEL}")
    assert one.model_version_policy.WhichOneof("policy_choice") == "all"
    assert dict(one.version_labels) == {"stable": 1}


def test_the_configurations_file_keeps_other_models(site: Site) -> None:
    exported(site, 1)
    file = site.root / "models.config"
    file.write_text(
        'model_config_list { config { name: "old" base_path: "/old" }'
        ' config { name: "digits" base_path: "/x" } }'
    )
    file.chmod(0o640)
    done = run("job", "reload", "--to", str(file), "--base-path", "/models/digits")
    assert done.exception is None
    found = text_format.Parse(file.read_text(), ModelServerConfig()).model_config_list.config
    assert [(each.name, each.base_path) for each in found] == [("old", "/old"), ("digits", "/models/digits")]
    assert file.stat().st_mode & 0o777 == 0o640
    assert {each.name for each in site.root.iterdir()} == {"store", "out", "spool", "models.config"}


@pytest.mark.parametrize(
    "text", ["model_config_list { config { name: 'a' logging_config { } } }", "custom_model_config { }", "{"]
)
def test_a_file_with_more_in_it_is_not_written(site: Site, text: str) -> None:
    exported(site, 1)
    file = site.root / "models.config"
    file.write_text(text)
    error = run("job", "reload", "--to", str(file)).exception
    assert isinstance(error, UserError)
    assert "no model_config_list that can be written anew" in str(error)
    assert file.read_text() == text


def test_a_wrong_address_of_a_server_is_refused_before_anything_is_written(site: Site) -> None:
    exported(site, 10)
    file = site.out / "config"
    error = run("job", "reload", "--to", str(file), "--server", "unix:/run/x.sock").exception
    assert isinstance(error, UserError)
    assert not file.exists()


@asynccontextmanager
async def model_server(
    told: list[ReloadConfigRequest], credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[str]:
    """A server that knows no version; its address."""

    async def reload(request: ReloadConfigRequest, _context: object) -> ReloadConfigResponse:
        told.append(request)
        return ReloadConfigResponse()

    async def status(_request: GetModelStatusRequest, _context: object) -> GetModelStatusResponse:
        return GetModelStatusResponse()

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "HandleReloadConfigRequest": grpc.unary_unary_rpc_method_handler(
            reload, ReloadConfigRequest.FromString, ReloadConfigResponse.SerializeToString
        ),
        "GetModelStatus": grpc.unary_unary_rpc_method_handler(
            status, GetModelStatusRequest.FromString, GetModelStatusResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tensorflow.serving.ModelService", handlers),)
    )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_server_that_is_down_keeps_no_other_from_its_configuration() -> None:
    told: list[ReloadConfigRequest] = []
    config = merged(None, config_of(ModelIndex(model=MODEL), "/models/digits"))
    async with model_server(told) as address:
        addresses = ("127.0.0.1:1", address, "127.0.0.1:2")
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: .*; model server 127\.0\.0\.1:2: "):
            await tell_servers(addresses, config, MODEL, 5)
    assert [each.config for each in told] == [config]


async def test_a_server_with_tls_is_told_by_those_alone_whom_it_knows(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    cert, key = ours.issue("server", ["127.0.0.1"])
    serving = grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())], ours.certificate.read_bytes(), require_client_auth=True
    )
    told: list[ReloadConfigRequest] = []
    config = merged(None, config_of(ModelIndex(model=MODEL), "/models/digits"))
    async with model_server(told, serving) as address:
        for credentials in (
            None,
            credentials_of(ours.certificate, None, None),
            credentials_of(ours.certificate, *others.issue("client", [])),
            credentials_of(others.certificate, *ours.issue("client", [])),
        ):
            with pytest.raises(Unreachable, match=address):
                await tell_servers([address], config, MODEL, 5, credentials)
        assert told == []
        known = credentials_of(ours.certificate, *ours.issue("client", []))
        await tell_servers([address], config, MODEL, 5, known)
    assert [each.config for each in told] == [config]


def test_half_of_a_clients_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs --ca, --cert and --key"):
        credentials_of(tmp_path / "ca.pem", tmp_path / "cert.pem", None)
    with pytest.raises(UserError, match=r"cannot read .*ca\.pem: No such file"):
        credentials_of(tmp_path / "ca.pem", None, None)
