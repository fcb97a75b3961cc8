"""The `fence:` section of a supervisor's configuration (docs/fencing.md)."""

from __future__ import annotations

from pydantic import Field

from supervisor.adapters.fence_devices import NODE, FenceDevice
from supervisor.adapters.files.private import check_private
from supervisor.adapters.files.quantities import DurationMs, Name, Text
from supervisor.adapters.files.yaml_file import Document, Strict, Where


class FenceDeviceConfig(Strict):
    """A device that can switch machines off (docs/fencing.md)."""

    command: list[Text] = Field(min_length=1, description="add `command: [fence_ipmilan]`")
    options: dict[str, Text] = Field(default_factory=dict)
    options_file: Text | None = None
    nodes: list[Name] = Field(default_factory=list)
    labels: dict[str, Text] = Field(default_factory=dict)

    @property
    def device(self) -> FenceDevice:
        """The device in the supervisor's form."""
        return FenceDevice(
            tuple(self.command), self.options, self.options_file or "", frozenset(self.nodes), self.labels
        )


class FenceConfig(Strict):
    """Devices that switch off the machines of suspected nodes, and when."""

    after: DurationMs | None = Field(default=None, ge=0)
    devices: list[FenceDeviceConfig] = Field(default_factory=list)


def check_fence(document: Document, fence: FenceConfig) -> None:
    """A device that switches another machine off than is meant is worse than none."""
    served: dict[str, int] = {}
    plugs: dict[tuple[object, ...], str] = {}
    for index, each in enumerate(fence.devices):
        where: Where = ("fence", "devices", index)
        if bool(each.nodes) == bool(each.labels):
            document.problem(where, "needs `nodes: [NODE, ...]` or `labels: {NAME: VALUE}`, one of the two")
        for name, value in each.options.items():
            if name == "action" or "=" in name or "\n" in name + value:
                document.problem(
                    (*where, "options", name), "is no option of a device: NAME=VALUE, on one line"
                )
        many = bool(each.labels) or len(each.nodes) > 1
        if many and not any(NODE in value for value in each.options.values()):
            document.problem(
                (*where, "options"),
                f"would switch off the same machine for every node; write {NODE} into the option that names "
                "the machine, or give each node a device of its own",
            )
        if each.options_file is not None:
            check_private(document, (*where, "options_file"), each.options_file)
        device = each.device
        for node in each.nodes:
            if node in served:
                document.problem((*where, "nodes"), f"{node} has a device already: number {served[node] + 1}")
            served[node] = index
            plug = (*device.command, device.options_file, *sorted(device.options_of(node).items()))
            other = plugs.setdefault(plug, node)
            if other != node:
                document.problem(where, f"would switch off the same machine for {other} and for {node}")
