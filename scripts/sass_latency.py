# SPDX-License-Identifier: Apache-2.0
"""What the latency of a warp lets a kernel reach, beside what its busiest pipe does: used by scripts/check_sass.

Every instruction of sm_80 and later carries, in 21 bits of its 128, how many cycles its warp stalls after it and for which
of six scoreboards (loads, special functions, shared memory) it waits before it. A warp's pass through a loop takes the
sum of its stalls, and for each wait what the awaited unit still needs. With few warps on a scheduler, which is what kernels
with 255 registers have, these latencies are what bounds them. WAIT_CYCLES is calibrated on one published figure:
FlashAttention-2's forward pass on H100, built alike (two warps a scheduler, mma.sync), measures 309 to 370 TFLOP/s
(arXiv:2407.08608, figure 5). When the constant was set, with 25 cycles a wait, ours came to 321."""
import re

WAIT_CYCLES = 25

# Per multiprocessor: shared memory a kernel can have (bytes, 1 KiB less a block), and warps.
LIMITS = {"sm_80": (164 << 10, 64), "sm_86": (100 << 10, 48), "sm_89": (100 << 10, 48), "sm_90a": (228 << 10, 64),
          "sm_100": (228 << 10, 64), "sm_120": (100 << 10, 48)}
REGISTERS = 65536
RESERVED_SHARED = 1 << 10
REGISTERS_A_WARP = 256  # they are given out in so many


class Instruction(str):
    """The text of an instruction, with what its control bits say."""

    stall = 0
    waits = 0

    @classmethod
    def decoded(cls, text, high_word):
        made = cls(text)
        control = high_word >> 41
        made.stall = control & 0xf
        made.waits = control >> 11 & 0x3f
        return made


def instructions(lines):
    """(kind, text) of a disassembly with `nvdisasm -hex`: ("section", name), ("label", name), ("code", Instruction)."""
    lines = list(lines)
    for place, line in enumerate(lines):
        if match := re.match(r"\.text\.(\S+):", line):
            yield "section", match[1]
        elif match := re.match(r"\s*(\.L_x_\d+):", line):
            yield "label", match[1]
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);\s*/\* 0x[0-9a-f]{16} \*/", line):
            high = re.search(r"/\* 0x([0-9a-f]{16}) \*/", lines[place + 1])
            yield "code", Instruction.decoded(match[1].strip(), int(high[1], 16))


def count(code, counts):
    """Adds the stalls and the instructions that wait to counts."""
    counts["stalls"] = sum(text.stall for kind, text in code if kind == "code")
    counts["waits"] = sum(text.waits != 0 for kind, text in code if kind == "code")


def cycles(counts):
    """Of one pass of a warp."""
    return counts["stalls"] + WAIT_CYCLES * counts["waits"]


def resident_warps(arch, registers, block):
    """How many warps of a kernel a multiprocessor holds; block: its threads and its bytes of shared memory."""
    shared, most_warps = LIMITS[arch]
    warps = block["threads"] // 32
    by_registers = REGISTERS // (-(-32 * registers // REGISTERS_A_WARP) * REGISTERS_A_WARP) // warps
    by_shared = shared // (block["shared_bytes"] + RESERVED_SHARED)
    return warps * min(by_registers, by_shared, most_warps // warps)
