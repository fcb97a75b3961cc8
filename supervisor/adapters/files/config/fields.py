"""Types of values that several configurations have."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator

from supervisor.adapters.files.quantities import Text
from supervisor.contract.access import identify, valid_user
from supervisor.contract.addresses import bare, split_host_port
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.secret import EVERY_JOB, GROUP

MAX_UNIX_PATH = 100
"""Most bytes in the path of a Unix socket. The kernel takes 107, and temporary names need a few."""


def _address(value: str) -> str:
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError(f"{value!r} is not an address; write unix:/absolute/path")
        if len(path.encode()) > MAX_UNIX_PATH:
            raise ValueError(
                f"the socket's path is longer than {MAX_UNIX_PATH} bytes; use a shorter directory"
            )
        return value
    try:
        split_host_port(value.removeprefix("http://").removeprefix("https://"))
    except UserError as error:
        raise ValueError(str(error)) from error
    return value


def _host(value: str) -> str:
    literal = bare(value)
    try:
        if ":" in literal and ipaddress.ip_address(literal).version == 6:
            return literal
    except ValueError as error:
        raise ValueError(f"{value!r} is no host; write a name or an address, without a port") from error
    return value


def _identity(value: str) -> str:
    try:
        identify([value])
    except Refused as error:
        raise ValueError(f"{value!r} is nobody; write user:NAME, agent:NODE or supervisor:NAME") from error
    return value


def _user_name(value: str) -> str:
    if not valid_user(value):
        raise ValueError(
            f"{value!r} is no name of a user; write it as in `user:NAME` of the certificate, or '*'"
        )
    return value


def _beneficiary(value: str) -> str:
    kind, _, name = value.partition(":")
    try:
        good = value == EVERY_JOB or (kind == "user" and identify([value]) is not None)
        good = good or (kind + ":" == GROUP and check_name("group", name) == name)
    except (Refused, UserError):
        good = False
    if not good:
        raise ValueError(f"{value!r} is no owner of jobs; write user:NAME, group:NAME, or '*' for every job")
    return value


Beneficiary = Annotated[Text, AfterValidator(_beneficiary)]
UserName = Annotated[Text, AfterValidator(_user_name)]
Identity = Annotated[Text, AfterValidator(_identity)]
Address = Annotated[Text, AfterValidator(_address)]
Host = Annotated[Text, AfterValidator(_host)]
Profile = Literal["fast", "default"]
