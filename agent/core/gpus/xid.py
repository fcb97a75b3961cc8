"""The action for each XID, after NVIDIA's "Xid Catalog" (docs.nvidia.com/deploy/xid-errors).

The catalogue's buckets become: IGNORE -> NONE; RESTART_APP -> RESTART_TASK; RESET_GPU and the workflows that
end in one -> RESET_GPU; RESTART_BM and RESTART_VM -> DRAIN_NODE; CONTACT_SUPPORT, CHECK_MECHANICALS and
UPDATE_SWFW -> CONTACT. An XID that the catalogue does not have asks for no action by itself: the driver's
recovery action of the GPU, which is read too, says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.contract.observed import GpuAction


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of an XID: its action, its text, and whether mostly a fault of the program causes it."""

    action: GpuAction
    text: str
    blames_program: bool = False


_ENGINES = "an engine of the GPU met an error in the work that it was given"

XIDS: dict[int, Meaning] = {
    8: Meaning(GpuAction.RESTART_TASK, "a channel stood still for too long"),
    11: Meaning(GpuAction.RESTART_TASK, "the stream of commands was invalid", blames_program=True),
    13: Meaning(
        GpuAction.RESTART_TASK,
        "a kernel raised an exception, mostly by an access out of bounds",
        blames_program=True,
    ),
    14: Meaning(GpuAction.NONE, "an error injected for a test"),
    25: Meaning(GpuAction.RESTART_TASK, "the stream of commands was illegal", blames_program=True),
    31: Meaning(
        GpuAction.RESTART_TASK,
        "a page fault in GPU memory, mostly by an illegal address",
        blames_program=True,
    ),
    32: Meaning(GpuAction.RESTART_TASK, "the stream of commands arrived damaged"),
    37: Meaning(GpuAction.NONE, "the firmware did not know a method"),
    38: Meaning(GpuAction.NONE, "the firmware's watchdog ran out"),
    43: Meaning(GpuAction.NONE, "a program's own fault ended its work; the GPU is well"),
    44: Meaning(GpuAction.NONE, "a fault during a context switch"),
    45: Meaning(GpuAction.NONE, "the work of a program that ended was removed"),
    46: Meaning(GpuAction.RESET_GPU, "the GPU stopped processing"),
    48: Meaning(GpuAction.RESET_GPU, "an ECC error that could not be corrected"),
    54: Meaning(GpuAction.CONTACT, "the board's auxiliary power is not connected"),
    60: Meaning(GpuAction.RESTART_TASK, "the video processor raised an exception"),
    62: Meaning(GpuAction.RESET_GPU, "a micro-controller of the GPU halted"),
    63: Meaning(GpuAction.NONE, "a row of memory was remapped, or a page retired"),
    64: Meaning(GpuAction.RESET_GPU, "a row of memory could not be remapped"),
    66: Meaning(GpuAction.NONE, "an illegal access by the driver"),
    67: Meaning(GpuAction.NONE, "an illegal access by the driver"),
    69: Meaning(GpuAction.RESTART_TASK, "the graphics engine met an error of class", blames_program=True),
    74: Meaning(GpuAction.RESET_GPU, "an NVLink failed"),
    78: Meaning(GpuAction.CONTACT, "a vGPU could not start"),
    79: Meaning(GpuAction.DRAIN_NODE, "the GPU has fallen off the bus"),
    80: Meaning(GpuAction.RESTART_TASK, "commands arrived damaged"),
    92: Meaning(GpuAction.NONE, "many ECC errors that were corrected"),
    93: Meaning(GpuAction.NONE, "the InfoROM may not be written so often"),
    94: Meaning(GpuAction.RESTART_TASK, "an ECC error that was contained to one program"),
    95: Meaning(GpuAction.RESET_GPU, "an ECC error that was not contained"),
    106: Meaning(GpuAction.NONE, "a test message"),
    107: Meaning(GpuAction.NONE, "a test message"),
    108: Meaning(GpuAction.NONE, "a translation error of a remote NVLink"),
    109: Meaning(GpuAction.RESET_GPU, "a context switch took too long"),
    110: Meaning(GpuAction.RESET_GPU, "a security fault"),
    119: Meaning(GpuAction.RESET_GPU, "the GPU's system processor did not answer"),
    120: Meaning(GpuAction.RESET_GPU, "an error in the GPU's system processor"),
    121: Meaning(GpuAction.NONE, "errors of the link to the CPU that were corrected"),
    136: Meaning(GpuAction.RESET_GPU, "an NVLink could not be trained"),
    137: Meaning(GpuAction.NONE, "an illegal access over NVLink"),
    140: Meaning(GpuAction.RESET_GPU, "an ECC error that the driver could not deal with"),
    141: Meaning(GpuAction.NONE, "an error in CUDA's fast path"),
    142: Meaning(GpuAction.CONTACT, "an error of a video encoder"),
    143: Meaning(GpuAction.RESET_GPU, "the GPU could not be initialised"),
    151: Meaning(GpuAction.DRAIN_NODE, "the keys of confidential computing could not be renewed"),
    152: Meaning(GpuAction.NONE, "an error of the DLA's memory unit"),
    153: Meaning(GpuAction.NONE, "the DLA took too long"),
    154: Meaning(GpuAction.NONE, "the driver's recovery action has changed"),
    155: Meaning(GpuAction.RESET_GPU, "an NVLink was taken down by software"),
    156: Meaning(GpuAction.RESET_GPU, "a part of the GPU was retired"),
    157: Meaning(GpuAction.NONE, "a part of the GPU could not be retired, for want of spares"),
    158: Meaning(GpuAction.RESET_GPU, "the GPU did not answer in time, for good"),
    159: Meaning(GpuAction.CONTACT, "an error of the coherent link"),
    160: Meaning(GpuAction.NONE, "a channel of memory was retired"),
    161: Meaning(GpuAction.NONE, "a channel of memory could not be retired"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), Meaning(GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys((68, 82, 83, 84, 86, 88, 89), Meaning(GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys((*range(96, 106), *range(126, 136), 139), Meaning(GpuAction.RESTART_TASK, _ENGINES)),
    **dict.fromkeys(range(144, 151), Meaning(GpuAction.RESET_GPU, "an NVLink failed")),
}


def action_of(code: int) -> GpuAction:
    """NONE for one that the table does not have."""
    return XIDS[code].action if code in XIDS else GpuAction.NONE


def blames_program(code: int) -> bool:
    """Whether the program that the GPU ran is mostly to blame."""
    return code in XIDS and XIDS[code].blames_program


def describe(code: int) -> str:
    """`XID 79: the GPU has fallen off the bus`."""
    return f"XID {code}: {XIDS[code].text}" if code in XIDS else f"XID {code}, which our table does not have"
