"""The configuration of model servers, and how they are told of a new one."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf import text_format

from recovery.models.index import ModelIndex
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.contract.errors import Refused, Unreachable, UserError
from supervisor.wire.tensorflow_serving_pb2 import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelConfig,
    ModelConfigList,
    ModelServerConfig,
    ModelSpec,
    ModelVersionStatus,
    ReloadConfigRequest,
    ReloadConfigResponse,
)

PLATFORM = "tensorflow"
CALL_S = 20.0
"""Seconds for one call. A server answers a reload once it has loaded what is new."""

POLL_S = 0.2
MAX_FILE_BYTES = 1 << 20
_SERVICE = "/tensorflow.serving.ModelService/"


def config_of(index: ModelIndex, base_path: str) -> ModelConfig:
    """The model's part of a server's configuration: all that is published, and the labels.

    A server then loads new versions as they come, and each labelled one stays loaded.
    """
    config = ModelConfig(name=index.model, base_path=base_path, model_platform=PLATFORM)
    config.model_version_policy.all.SetInParent()
    for label, version in sorted(index.labels.items()):
        config.version_labels[label] = version
    return config


def merged(path: Path | None, config: ModelConfig) -> ModelServerConfig:
    """The configuration in a file with this model in it; None, or no such file: this model alone.

    Raises UserError for a file with something else in it, which would be lost.
    """
    whole = ModelServerConfig()
    if path is not None and path.exists():
        try:
            text_format.Parse(path.read_bytes()[:MAX_FILE_BYTES].decode(), whole)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} is no model_config_list that can be written anew: {error}; name another file"
            ) from error
    others = [each for each in whole.model_config_list.config if each.name != config.name]
    return ModelServerConfig(model_config_list=ModelConfigList(config=[*others, config]))


def text_of(config: ModelServerConfig) -> str:
    """The configuration as model servers read it from a file."""
    return text_format.MessageToString(config)


def write_file(path: Path, text: str) -> None:
    """Give a file this content in one step: a reader sees the old one or the new one. Raises UserError."""
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        try:
            with part.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                part.chmod(path.stat().st_mode & 0o777)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; name a file in a directory of yours"
        ) from error


def credentials_of(ca: Path | None, cert: Path | None, key: Path | None) -> grpc.ChannelCredentials | None:
    """Credentials for servers whose certificates `ca` signs, as the files are now; None: without TLS.

    `cert` and `key`: shown to servers that ask for a client's certificate. Raises UserError.
    """
    if (cert is None) != (key is None) or (ca is None and cert is not None):
        raise UserError("a client's certificate needs --ca, --cert and --key")
    if ca is not None and cert is not None and key is not None:
        return TlsFiles(ca, cert, key).load().client_credentials()
    try:
        return grpc.ssl_channel_credentials(ca.read_bytes()) if ca is not None else None
    except OSError as error:
        raise UserError(f"cannot read {ca}: {error.strerror}") from error


async def tell_servers(
    addresses: Sequence[str],
    config: ModelServerConfig,
    model: str,
    most_s: float,
    credentials: grpc.ChannelCredentials | None = None,
) -> None:
    """Tell servers at the same time, so that one that is down keeps the others from nothing.

    Raises what `tell_server` raises, with the words of all that failed.
    """
    telling = (tell_server(address, config, model, most_s, credentials) for address in addresses)
    failed = [each for each in await asyncio.gather(*telling, return_exceptions=True) if each is not None]
    if not failed:
        return
    first = failed[0]
    if len(failed) == 1 or not isinstance(first, Refused | Unreachable):
        raise first
    raise type(first)("; ".join(str(each) for each in failed)) from first


async def tell_server(
    address: str,
    config: ModelServerConfig,
    model: str,
    most_s: float,
    credentials: grpc.ChannelCredentials | None,
) -> None:
    """Have a server serve this configuration, its labels last.

    A server refuses a label on a version that it has not loaded. So it is first told of those labels whose
    versions it has, then the new versions are waited for, then it is told of all.

    Raises Unreachable, Refused (it cannot load a version, or takes no such configuration).
    """
    opened = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials)
    )
    async with opened as channel:
        server = _Server(channel, address)
        wanted = next(each for each in config.model_config_list.config if each.name == model).version_labels
        deadline = time.monotonic() + most_s
        loaded = _available(await server.status(model))
        missing = set(wanted.values()) - loaded
        if missing:
            await server.reload(_without(config, model, missing))
        while missing:
            found = await server.status(model)
            _require_loadable(address, model, found, missing)
            missing -= _available(found)
            if missing and time.monotonic() > deadline:
                raise Unreachable(
                    f"{address} has not loaded version {min(missing)} of model {model} within {most_s:g} s; "
                    "it serves the labels of before: does it see the model's directory?"
                )
            if missing:
                await asyncio.sleep(POLL_S)
        await server.reload(config)


def _without(config: ModelServerConfig, model: str, missing: set[int]) -> ModelServerConfig:
    """The configuration without the labels of versions that a server has not loaded."""
    found = ModelServerConfig()
    found.CopyFrom(config)
    labels = next(each for each in found.model_config_list.config if each.name == model).version_labels
    for label in [name for name, version in labels.items() if version in missing]:
        del labels[label]
    return found


def _available(found: GetModelStatusResponse) -> set[int]:
    state = ModelVersionStatus.AVAILABLE
    return {each.version for each in found.model_version_status if each.state == state}


def _require_loadable(address: str, model: str, found: GetModelStatusResponse, wanted: set[int]) -> None:
    for each in found.model_version_status:
        if each.version in wanted and each.state == ModelVersionStatus.END and each.status.error_code:
            why = each.status.error_message[:300]
            raise Refused(f"{address} cannot load version {each.version} of model {model}: {why}")


class _Server:
    """Calls of one model server. Raises Unreachable, Refused."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self._address = address
        self._status = channel.unary_unary(
            f"{_SERVICE}GetModelStatus",
            request_serializer=GetModelStatusRequest.SerializeToString,
            response_deserializer=GetModelStatusResponse.FromString,
        )
        self._reload = channel.unary_unary(
            f"{_SERVICE}HandleReloadConfigRequest",
            request_serializer=ReloadConfigRequest.SerializeToString,
            response_deserializer=ReloadConfigResponse.FromString,
        )

    async def status(self, model: str) -> GetModelStatusResponse:
        """The versions of a model that it has; none if it does not know the model."""
        try:
            return await self._status(GetModelStatusRequest(model_spec=ModelSpec(name=model)), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return GetModelStatusResponse()
            raise self._mapped(error) from error

    async def reload(self, config: ModelServerConfig) -> None:
        """Replace its configuration."""
        try:
            answer = await self._reload(ReloadConfigRequest(config=config), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            raise self._mapped(error) from error
        if answer.status.error_code:
            raise Refused(f"{self._address} refuses the configuration: {answer.status.error_message[:300]}")

    def _mapped(self, error: grpc.aio.AioRpcError) -> Refused | Unreachable:
        text = f"model server {self._address}: {error.code().name}: {(error.details() or '')[:300]}"
        silent = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return Unreachable(text) if silent else Refused(text)
