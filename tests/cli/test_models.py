"""`supervisorctl models JOB`: versions are listed, rolled back, published and labelled in the job's store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format

from recovery.models.index import ModelIndex
from recovery.stores.local import LocalStore
from supervisor.cli.main import cli
from supervisor.cli.models import verbs
from supervisor.cli.models.servers import config_of, merged, tell_servers
from supervisor.contract.errors import NotFound, Unreachable, UserError
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


async def test_a_server_that_is_down_keeps_no_other_from_its_configuration() -> None:
    told: list[ReloadConfigRequest] = []

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
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = merged(None, config_of(ModelIndex(model=MODEL), "/models/digits"))
    try:
        addresses = ("127.0.0.1:1", f"127.0.0.1:{port}", "127.0.0.1:2")
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: .*; model server 127\.0\.0\.1:2: "):
            await tell_servers(addresses, config, MODEL, 5)
    finally:
        await server.stop(None)
    assert [each.config for each in told] == [config]
