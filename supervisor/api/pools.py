"""The part of the service `Control` about certificates of pools."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.contract.pool.requests import (
    Certificate,
    CertifyRequest,
    OpenPoolRequest,
    PoolList,
    PoolRequest,
    RevokePoolRequest,
)
from supervisor.contract.views.jobs import Accepted
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.pools import PoolService
from supervisor.wire import rpc


class PoolMethods:
    """`leading` raises NotLeading if another supervisor leads."""

    def __init__(self, service: PoolService, leading: Callable[[], Snapshot]) -> None:
        self._service = service
        self._leading = leading

    def methods(self) -> dict[str, rpc.Method]:
        """Method name -> handler."""
        return {
            "Pools": rpc.unary(PoolRequest, self.pools),
            "OpenPool": rpc.unary(OpenPoolRequest, self.open),
            "RevokePool": rpc.unary(RevokePoolRequest, self.revoke),
            "Certify": rpc.unary(CertifyRequest, self.certify),
        }

    async def pools(self, request: PoolRequest) -> PoolList:
        """The pools that may have certificates."""
        self._leading()
        return self._service.pools(request.pool)

    async def open(self, request: OpenPoolRequest) -> Certificate:
        """Make a token for a pool."""
        self._leading()
        return await self._service.open(request)

    async def revoke(self, request: RevokePoolRequest) -> Accepted:
        """Refuse the certificates of a pool or of a node."""
        self._leading()
        return await self._service.revoke(request)

    async def certify(self, request: CertifyRequest) -> Certificate:
        """Sign a certificate for an agent of a pool."""
        self._leading()
        return await self._service.certify(request)
