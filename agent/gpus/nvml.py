"""NVML through nvidia-ml-py. Any call may hang or end the process, so only `nvml_child` uses it.

Values that a driver or a GPU does not support are omitted without an error: an old driver lacks half of these
symbols.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pynvml

from agent.core.gpus.health import GpuSight, Sight, Xid
from supervisor.contract.errors import Refused

T = TypeVar("T")
Alarms = tuple[int, int, int, int, int]
"""The alarms of a GPU: NVML's error, recovery action, volatile ECC errors, rows to be remapped, and rows that
could not be."""
RECOVERY_ACTION = 230
_BY_NVLINK = 2
_UNCORRECTED = 1
_VOLATILE = 0
_CORE_TEMPERATURE = 0
_XID_EVENT = 0x8
_EVENTS = _XID_EVENT | 0x2 | 0x800 | 0x4000 | 0x8000
"""Events: XIDs, uncorrected ECC errors, failed retirements, an unavailable GPU, a new recovery action."""
_NOT_TOLD = frozenset({2, 3, 4, 6, 13, 21, 25, 26})
"""Errors for unsupported values: invalid argument, not supported, no permission, not found, no such function,
no data, deprecated."""
_NOT_FOUND, _TIMEOUT, _GPU_IS_LOST = 6, 10, 15


class Device:
    """A GPU's handle, and its constant properties. Raises NVMLError."""

    def __init__(self, index: int) -> None:
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.index = index
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self.pci = _ask(lambda: _bus(pynvml.nvmlDeviceGetPciInfo_v3(self.handle)), "")
        self.name = _ask(lambda: str(pynvml.nvmlDeviceGetName(self.handle)), "")
        self.numa = _ask(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(self.handle)), _numa_of_bus(self.pci))

    def reaches(self, other: Device) -> bool:
        """Whether it reaches another GPU over NVLink, directly or by a switch."""
        status = _ask(lambda: int(pynvml.nvmlDeviceGetP2PStatus(self.handle, other.handle, _BY_NVLINK)), -1)
        return status == 0

    def glance(self) -> Alarms:
        """Its alarms: values whose change needs an action."""
        try:
            return _alarms_of(self.handle)
        except pynvml.NVMLError as error:
            return int(error.value), -1, -1, -1, -1

    def look(self, peers: tuple[str, ...]) -> GpuSight:
        """Its present state."""
        try:
            return self._ask_all(peers)
        except pynvml.NVMLError as error:
            return GpuSight(self.uuid, self.index, self.name, pci=self.pci, error=int(error.value))

    def _ask_all(self, peers: tuple[str, ...]) -> GpuSight:
        handle = self.handle
        memory_bytes, memory_used = _memory(handle)
        _, recovery, ecc_volatile, remap_pending, remap_failed = _alarms_of(handle)
        return GpuSight(
            uuid=self.uuid,
            index=self.index,
            name=self.name,
            memory_bytes=memory_bytes,
            pci=self.pci,
            numa=self.numa,
            peers=peers,
            mig=_ask(lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]), False),
            recovery=recovery,
            ecc_volatile=ecc_volatile,
            remap_pending=remap_pending,
            remap_failed=remap_failed,
            temperature=_ask(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, _CORE_TEMPERATURE)), -1),
            power_mw=_ask(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)), -1),
            utilisation=_ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), -1),
            memory_used=memory_used,
            throttle=_ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)), -1),
            processes=_ask(lambda: _processes(handle), ()),
        )


class Nvml:
    """NVML, initialised. Raises Refused with the reason if that fails, here and later.

    `only`: the indices and UUIDs of the GPUs that count; None: all. `has_events`: `wait` waits for events;
    otherwise it does not wait at all.
    """

    def __init__(self, only: frozenset[str] | None = None) -> None:
        self.has_events = False
        self._only = only
        self._devices: list[Device] = []
        self._peers: dict[str, tuple[str, ...]] = {}
        try:
            pynvml.nvmlInit()
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
            self._unopened = list(range(int(pynvml.nvmlDeviceGetCount())))
            self._events = _ask(pynvml.nvmlEventSetCreate, None)
            self._open()
        except pynvml.NVMLError as error:
            raise Refused(f"NVML: {error}") from error

    def _open(self) -> None:
        """Open new GPUs, and forget those that are gone. Raises NVMLError."""
        unopened, self._unopened = self._unopened, []
        found = []
        for index in unopened:
            try:
                device = Device(index)
                if self._only is None or not self._only.isdisjoint((str(index), device.uuid)):
                    found.append(device)
            except pynvml.NVMLError as error:
                if error.value not in (_NOT_FOUND, _GPU_IS_LOST):
                    self._unopened.append(index)
        if found:
            self._devices = sorted((*self._devices, *found), key=lambda each: each.index)
            registered = [self._register(each) for each in found]
            self.has_events |= any(registered)
            self._peers = {each.uuid: self._peers_of(each) for each in self._devices}

    def _peers_of(self, device: Device) -> tuple[str, ...]:
        others = [each for each in self._devices if each is not device]
        return tuple(sorted(each.uuid for each in others if device.reaches(each)))

    def look(self) -> Sight:
        """The present state of all GPUs."""
        try:
            self._open()
        except pynvml.NVMLError as error:
            raise Refused(f"NVML: {error}") from error
        gpus = tuple(each.look(self._peers[each.uuid]) for each in self._devices)
        return Sight(self.driver, gpus=gpus, unopened=len(self._unopened))

    def glance(self) -> tuple[Alarms, ...]:
        """The present alarms of all GPUs. They take few of the calls of `look`."""
        return tuple(each.glance() for each in self._devices)

    def wait(self, timeout_ms: int) -> Xid | None:
        """The next event within this time; None without one.

        Code 0 stands for an event that is no XID, but needs a look.
        """
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, max(1, timeout_ms))
            uuid = str(pynvml.nvmlDeviceGetUUID(data.device))
        except pynvml.NVMLError as error:
            if error.value == _GPU_IS_LOST:
                return Xid(0)
            if error.value in _NOT_TOLD:
                self.has_events = False
            elif error.value != _TIMEOUT:
                raise Refused(f"NVML: {error}") from error
            return None
        return Xid(int(data.eventData) if data.eventType == _XID_EVENT else 0, uuid)

    def _register(self, device: Device) -> bool:
        """Register for a GPU's events; returns whether it supports them."""
        if self._events is None:
            return False
        try:
            known = int(pynvml.nvmlDeviceGetSupportedEventTypes(device.handle)) & _EVENTS
            pynvml.nvmlDeviceRegisterEvents(device.handle, known, self._events)
        except pynvml.NVMLError:
            return False
        return bool(known & _XID_EVENT)


def _ask(question: Callable[[], T], otherwise: T) -> T:
    """The result of a call, or `otherwise` if this driver or GPU does not support it.

    Raises NVMLError for other errors.
    """
    try:
        return question()
    except pynvml.NVMLError as error:
        if error.value in _NOT_TOLD:
            return otherwise
        raise


def _alarms_of(handle: object) -> Alarms:
    remapped = _ask(lambda: tuple(pynvml.nvmlDeviceGetRemappedRows(handle)), (-1, -1, -1, -1))
    recovery, volatile = _ask(lambda: _recovery(handle), -1), _ask(lambda: _ecc(handle, _VOLATILE), -1)
    return 0, recovery, volatile, int(remapped[2]), int(remapped[3])


def _recovery(handle: object) -> int:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
    return int(value.value.uiVal) if value.nvmlReturn == 0 else -1


def _ecc(handle: object, counter: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, counter))


def _memory(handle: object) -> tuple[int, int]:
    """Its memory and what is used of it, without what the driver keeps for itself if the driver tells."""
    newer = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2), None)
    found = newer or pynvml.nvmlDeviceGetMemoryInfo(handle)
    return int(found.total), int(found.used)


def _processes(handle: object) -> tuple[tuple[int, int], ...]:
    found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    return tuple((_session(int(each.pid)), int(each.usedGpuMemory or 0)) for each in found)


def _session(pid: int) -> int:
    """The process that leads its session: of an attempt's processes, the first."""
    try:
        return os.getsid(pid)
    except OSError:
        return pid


def _bus(info: pynvml.nvmlPciInfo_t) -> str:
    """The PCI address in the form of the kernel's log."""
    return f"{info.domain & 0xFFFF:04x}:{info.bus & 0xFF:02x}:{info.device & 0xFF:02x}"


def _numa_of_bus(bus: str) -> int:
    try:
        return int(Path(f"/sys/bus/pci/devices/{bus}.0/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1
