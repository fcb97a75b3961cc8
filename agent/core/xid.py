"""What each XID asks for, after NVIDIA's "Xid Catalog" (docs.nvidia.com/deploy/xid-errors), in our actions.

The catalogue's buckets become: IGNORE -> NONE; RESTART_APP -> RESTART_TASK; RESET_GPU and the workflows that
end in one -> RESET_GPU; RESTART_BM and RESTART_VM -> DRAIN_NODE; CONTACT_SUPPORT, CHECK_MECHANICALS and
UPDATE_SWFW -> CONTACT. An XID that it does not know asks for nothing by itself: what the driver then wants
done to the GPU is in its recovery action, which is read beside.
"""

from __future__ import annotations

from supervisor.contract.observed import GpuAction

_ENGINES = "an engine of the GPU met an error in the work that it was given"

XIDS: dict[int, tuple[GpuAction, str]] = {
    8: (GpuAction.RESTART_TASK, "a channel stood still for too long"),
    11: (GpuAction.RESTART_TASK, "the stream of commands was invalid"),
    13: (GpuAction.RESTART_TASK, "a kernel raised an exception, mostly by an access out of bounds"),
    14: (GpuAction.NONE, "an error injected for a test"),
    25: (GpuAction.RESTART_TASK, "the stream of commands was illegal"),
    31: (GpuAction.RESTART_TASK, "a page fault in GPU memory, mostly by an illegal address"),
    32: (GpuAction.RESTART_TASK, "the stream of commands arrived damaged"),
    37: (GpuAction.NONE, "the firmware did not know a method"),
    38: (GpuAction.NONE, "the firmware's watchdog ran out"),
    43: (GpuAction.NONE, "a program's own fault ended its work; the GPU is well"),
    44: (GpuAction.NONE, "a fault during a context switch"),
    45: (GpuAction.NONE, "the work of a program that ended was removed"),
    46: (GpuAction.RESET_GPU, "the GPU stopped processing"),
    48: (GpuAction.RESET_GPU, "an ECC error that could not be corrected"),
    54: (GpuAction.CONTACT, "the board's auxiliary power is not connected"),
    60: (GpuAction.RESTART_TASK, "the video processor raised an exception"),
    62: (GpuAction.RESET_GPU, "a micro-controller of the GPU halted"),
    63: (GpuAction.NONE, "a row of memory was remapped, or a page retired"),
    64: (GpuAction.RESET_GPU, "a row of memory could not be remapped"),
    66: (GpuAction.NONE, "an illegal access by the driver"),
    67: (GpuAction.NONE, "an illegal access by the driver"),
    69: (GpuAction.RESTART_TASK, "the graphics engine met an error of class"),
    74: (GpuAction.RESET_GPU, "an NVLink failed"),
    78: (GpuAction.CONTACT, "a vGPU could not start"),
    79: (GpuAction.DRAIN_NODE, "the GPU has fallen off the bus"),
    80: (GpuAction.RESTART_TASK, "commands arrived damaged"),
    92: (GpuAction.NONE, "many ECC errors that were corrected"),
    93: (GpuAction.NONE, "the InfoROM may not be written so often"),
    94: (GpuAction.RESTART_TASK, "an ECC error that was contained to one program"),
    95: (GpuAction.RESET_GPU, "an ECC error that was not contained"),
    106: (GpuAction.NONE, "a test message"),
    107: (GpuAction.NONE, "a test message"),
    108: (GpuAction.NONE, "a translation error of a remote NVLink"),
    109: (GpuAction.RESET_GPU, "a context switch took too long"),
    110: (GpuAction.RESET_GPU, "a security fault"),
    119: (GpuAction.RESET_GPU, "the GPU's system processor did not answer"),
    120: (GpuAction.RESET_GPU, "an error in the GPU's system processor"),
    121: (GpuAction.NONE, "errors of the link to the CPU that were corrected"),
    136: (GpuAction.RESET_GPU, "an NVLink could not be trained"),
    137: (GpuAction.NONE, "an illegal access over NVLink"),
    140: (GpuAction.RESET_GPU, "an ECC error that the driver could not deal with"),
    141: (GpuAction.NONE, "an error in CUDA's fast path"),
    142: (GpuAction.CONTACT, "an error of a video encoder"),
    143: (GpuAction.RESET_GPU, "the GPU could not be initialised"),
    151: (GpuAction.DRAIN_NODE, "the keys of confidential computing could not be renewed"),
    152: (GpuAction.NONE, "an error of the DLA's memory unit"),
    153: (GpuAction.NONE, "the DLA took too long"),
    154: (GpuAction.NONE, "the driver's recovery action has changed"),
    155: (GpuAction.RESET_GPU, "an NVLink was taken down by software"),
    156: (GpuAction.RESET_GPU, "a part of the GPU was retired"),
    157: (GpuAction.NONE, "a part of the GPU could not be retired, for want of spares"),
    158: (GpuAction.RESET_GPU, "the GPU did not answer in time, for good"),
    159: (GpuAction.CONTACT, "an error of the coherent link"),
    160: (GpuAction.NONE, "a channel of memory was retired"),
    161: (GpuAction.NONE, "a channel of memory could not be retired"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), (GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys((68, 82, 83, 84, 86, 88, 89), (GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys((*range(96, 106), *range(126, 136), 139), (GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys(range(144, 151), (GpuAction.RESET_GPU, "an NVLink failed")),
}
"""XID -> what it asks for, and what it means."""


def action_of(code: int) -> GpuAction:
    """NONE for one that the table does not have."""
    return XIDS[code][0] if code in XIDS else GpuAction.NONE


def describe(code: int) -> str:
    """`XID 79: the GPU has fallen off the bus`."""
    return f"XID {code}: {XIDS[code][1]}" if code in XIDS else f"XID {code}, which our table does not have"
