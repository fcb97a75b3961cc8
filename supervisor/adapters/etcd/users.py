"""Users and roles of etcd: reading them, comparing them with the wanted ones, and making these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import grpc
from aetcd import rpc

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.client import map_error, namespaces
from supervisor.adapters.etcd.endpoints import EndpointPool
from supervisor.contract.boundaries import BULK
from supervisor.contract.errors import CoordinationUnreachable, Refused
from supervisor.contract.etcd_roles import Grant, roles_of

ROOT = "root"
"""etcd's own administrator: a user and a role of this name must exist before authentication can be
enabled."""
CONNECT_S, CALL_S = 5.0, 10.0
READ, READWRITE = rpc.Permission.READ, rpc.Permission.READWRITE
Right = tuple[bytes, bytes, int]
"""The first key, the key after the last one (empty: one key alone), and etcd's type of permission."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Users with their roles, and roles with their rights. `enabled`: etcd authenticates callers."""

    users: Mapping[str, frozenset[str]]
    roles: Mapping[str, frozenset[Right]]
    enabled: bool = False

    def missing(self, found: Auth) -> list[str]:
        """Each difference between `found` and this, as a sentence."""
        told = []
        for role, rights in self.roles.items():
            if role not in found.roles:
                told.append(f"role {role} is missing")
                continue
            have = found.roles[role]
            told += [f"role {role} lacks the right to {_shown(each)}" for each in sorted(rights - have)]
            told += [f"role {role} has a right too many: to {_shown(each)}" for each in sorted(have - rights)]
        for user, roles in self.users.items():
            if user not in found.users:
                told.append(f"user {user} is missing")
                continue
            told += [f"user {user} lacks role {each}" for each in sorted(roles - found.users[user])]
            told += [f"user {user} has a role too many: {each}" for each in sorted(found.users[user] - roles)]
        return told


def wanted(cluster: str, holders: Iterable[str], admin: str) -> Auth:
    """The users and roles for these daemons and for the administrator. Raises UserError."""
    users = {ROOT: frozenset({ROOT}), admin: frozenset({ROOT})}
    roles: dict[str, frozenset[Right]] = {}
    for holder in holders:
        named = {f"tfsup-{cluster}-{role}": grants for role, grants in roles_of(holder).items()}
        users[holder] = frozenset(named)
        roles |= {name: frozenset(_right(cluster, each) for each in grants) for name, grants in named.items()}
    return Auth(users, roles)


class EtcdAuth:
    """An administrator's access to etcd's authentication. Errors: Refused, CoordinationUnreachable."""

    def __init__(self, stub: rpc.AuthStub) -> None:
        self._stub = stub

    async def found(self) -> Auth:
        """The present users and roles."""
        users, roles = {}, {}
        with _mapped():
            enabled = await self.is_enabled()
            for user in (await self._stub.UserList(rpc.AuthUserListRequest(), timeout=CALL_S)).users:
                answer = await self._stub.UserGet(rpc.AuthUserGetRequest(name=user), timeout=CALL_S)
                users[user] = frozenset(answer.roles)
            for role in (await self._stub.RoleList(rpc.AuthRoleListRequest(), timeout=CALL_S)).roles:
                answer = await self._stub.RoleGet(rpc.AuthRoleGetRequest(role=role), timeout=CALL_S)
                roles[role] = frozenset((each.key, each.range_end, each.permType) for each in answer.perm)
        return Auth(users, roles, enabled)

    async def make(self, wanted: Auth) -> None:
        """Add missing users, roles and rights, and remove surplus ones; those of others stay.

        Safe to repeat.

        Rights are added before others are taken away, so that a daemon that runs never lacks one.
        """
        found, stub = await self.found(), self._stub
        with _mapped():
            for role in (ROOT, *wanted.roles):
                if role not in found.roles:
                    await stub.RoleAdd(rpc.AuthRoleAddRequest(name=role), timeout=CALL_S)
            for role, rights in wanted.roles.items():
                await self._set_rights(role, rights, found.roles.get(role, frozenset()))
            for user, roles in wanted.users.items():
                if user not in found.users:
                    # Nobody can be this user by a password: a certificate says who it is.
                    request = rpc.AuthUserAddRequest(name=user, options=rpc.UserAddOptions(no_password=True))
                    await stub.UserAdd(request, timeout=CALL_S)
                have = found.users.get(user, frozenset())
                for role in roles - have:
                    await stub.UserGrantRole(
                        rpc.AuthUserGrantRoleRequest(user=user, role=role), timeout=CALL_S
                    )
                for role in have - roles:
                    request = rpc.AuthUserRevokeRoleRequest(name=user, role=role)
                    await stub.UserRevokeRole(request, timeout=CALL_S)

    async def enable(self) -> None:
        """Enable authentication in etcd."""
        with _mapped():
            await self._stub.AuthEnable(rpc.AuthEnableRequest(), timeout=CALL_S)

    async def is_enabled(self) -> bool:
        """Whether etcd authenticates callers."""
        with _mapped():
            return await self._is_enabled()

    async def _is_enabled(self) -> bool:
        """The same. Where it does, only an administrator may ask. etcd 3.4 has no call for that; there the
        error of a login shows it.
        """
        try:
            answer = await self._stub.AuthStatus(rpc.AuthStatusRequest(), timeout=CALL_S)
            return bool(answer.enabled)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                return True
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        try:
            await self._stub.Authenticate(rpc.AuthenticateRequest(), timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return False
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
        return True

    async def _set_rights(self, role: str, rights: frozenset[Right], have: frozenset[Right]) -> None:
        for key, end, kind in rights - have:
            perm = rpc.Permission(permType=kind, key=key, range_end=end)
            request = rpc.AuthRoleGrantPermissionRequest(name=role, perm=perm)
            await self._stub.RoleGrantPermission(request, timeout=CALL_S)
        kept = {(key, end) for key, end, _ in rights}
        for key, end, _ in have - rights:
            if (key, end) not in kept:
                request = rpc.AuthRoleRevokePermissionRequest(role=role, key=key, range_end=end)
                await self._stub.RoleRevokePermission(request, timeout=CALL_S)


@asynccontextmanager
async def etcd_auth(endpoints: Sequence[str], tls: TlsFiles) -> AsyncIterator[EtcdAuth]:
    """A connection to a healthy member, with this certificate. Raises CoordinationUnreachable, UserError."""
    pool = EndpointPool(endpoints, tls, connect_s=CONNECT_S, grace_s=0)
    try:
        link = await pool.link()
        if link is None:
            raise CoordinationUnreachable(f"etcd: {pool.describe_errors()}")
        yield EtcdAuth(rpc.AuthStub(link.channel))
    finally:
        await pool.close()


async def lets_everybody_in(endpoints: Sequence[str], tls: TlsFiles) -> bool:
    """Whether etcd lets every holder of a certificate write everything, as any user of it can find out.

    Raises CoordinationUnreachable, UserError.
    """
    async with etcd_auth(endpoints, tls) as auth:
        return not await auth.is_enabled()


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            raise Refused(
                f"etcd says: {error.details()}; show the certificate of a user who has etcd's role root"
            ) from error
        raise map_error(error) from error


def _right(cluster: str, grant: Grant) -> Right:
    small, bulk = namespaces(cluster)
    key = ((bulk if grant.key.startswith(BULK) else small) + grant.key).encode()
    end = key[:-1] + bytes([key[-1] + 1]) if grant.prefix else b""
    return key, end, READWRITE if grant.writes else READ


def _shown(right: Right) -> str:
    key, end, kind = right
    what = "read" if kind == READ else "read and write" if kind == READWRITE else "write"
    return f"{what} {key.decode(errors='replace')}{'*' if end else ''}"
