# SPDX-License-Identifier: Apache-2.0
"""The machine: GPUs, driver, libraries, and whether the programs have code for its GPUs."""
import json
import platform
import re
import shutil

from gpu_checks.process import Failed, Missing, run

# The shipped clusters that predictions before `measure` are made for, by words of a GPU's name; the first that fits.
CLUSTERS = [("GH200", "gh200-1x400g"), ("GB200", "gb200-nvl72"), ("GB300", "gb300-nvl72"), ("H200 NVL", "h200-nvl8"),
            ("H200", "dgx-h200"), ("H100 NVL", "h100-nvl8"), ("H100 PCIe", "h100-pcie8"), ("H100", "dgx-h100"),
            ("H800", "h800-8x400"), ("H20", "hgx-h20"), ("B200", "dgx-b200"), ("B300", "dgx-b300"),
            ("A100-SXM4-40GB", "p4d"), ("A100-PCI", "a100-pcie8"), ("A100", "dgx-a100-80g"), ("L40S", "l40s-pcie8"),
            ("L40", "l40-pcie8"), ("L4", "l4-pcie8"), ("A10G", "g5"), ("A40", "a40-pcie8"), ("A10", "a10-pcie8"),
            ("RTX PRO 6000", "rtx-pro-6000-pcie8"), ("RTX A6000", "rtx-a6000-pcie8"), ("4090", "rtx-4090-pcie8"),
            ("5090", "rtx-5090-pcie8"), ("5060 Ti", "rtx-5060ti-pcie4"), ("3090", "rtx-3090-pcie8")]
ASKED = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,persistence_mode,mig.mode.current"


def cluster_of(gpu):
    return next((cluster for words, cluster in CLUSTERS if words in gpu), None)


def has_code_for(architectures, capability):
    """Whether programs built for `architectures` (CMake's words: 80-real;90a-real;120) run on a GPU of `capability`
    ("9.0"). Machine code runs on its major version from its minor one on, that of an `a` on that version alone, and
    code without -real is compiled by the driver of any later GPU."""
    major, minor = (int(part) for part in capability.split("."))
    for word in re.split("[;,]", architectures):
        found = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", word.strip())
        if not found:
            continue
        of_major, of_minor, exact, kind = int(found[1]), int(found[2]), found[3], found[4]
        if (major, minor) == (of_major, of_minor):
            return True
        if exact:
            continue
        if kind != "-virtual" and major == of_major and minor >= of_minor:
            return True
        if kind != "-real" and (major, minor) >= (of_major, of_minor):
            return True
    return False


def fp8_recipes(gpu):
    """By which recipes `run --precision fp8` multiplies on that GPU of `doctor` (exec/model_ops.cc)."""
    major, minor = (int(part) for part in (gpu.get("compute_capability") or "0.0").split("."))
    recipes = ["tensorwise"] if (major, minor) >= (8, 9) else []
    return recipes + (["rowwise"] if (major, minor) == (9, 0) else []) + (["mxfp8"] if major >= 10 else [])


def describe(programs):
    """What the results say of the machine; Missing where there is nothing to run on."""
    doctor = json.loads(programs.run([programs.shardwright, "doctor", "--json"], 60).stdout)
    needed = next((c for c in doctor["capabilities"] if c["name"] == "run --device cuda"), None)
    if needed is None or not needed["available"]:
        reason = needed["reason"] if needed else "this build knows no run --device cuda"
        raise Missing(f"gpu_check cannot run here: {reason}.")
    for gpu in doctor["gpus"]:
        capability = gpu.get("compute_capability", "")
        if programs.architectures and capability and not has_code_for(programs.architectures, capability):
            raise Missing(f"gpu_check: these programs are built for {programs.architectures}, but the {gpu['name']} has "
                          f"compute capability {capability}; expected a package made with --arch for it.")
    machine = {
        "gpus": doctor["gpus"],
        "peer_access": doctor.get("peer_access"),
        "operating_system": doctor["machine"]["operating_system"],
        "processor": doctor["machine"]["processor"],
        "cores": doctor["machine"]["cores"],
        "memory_bytes": doctor["machine"]["memory_bytes"],
        "kernel": platform.release(),
        "versions": {c["title"]: c["version"] or c["detail"] for c in doctor["components"] if c["present"]},
        "built_with": doctor["built_with"],
        # Limits of the container or the session, which several ranks meet.
        "lacks": [f"{c['title']}: {c['detail']}" for c in doctor["components"]
                  if c.get("key") in ("shared_memory", "locked_memory") and not c["present"]],
        "commit": programs.commit,
    }
    machine.update(told_by_nvidia_smi())
    return machine


def told_by_nvidia_smi():
    smi = shutil.which("nvidia-smi")
    if not smi:
        return {}
    try:
        told = run([smi, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"], 60, check=False)
        topology = run([smi, "topo", "-m"], 60, check=False).stdout
    except Failed:
        return {}
    rows = [dict(zip(ASKED.split(","), [cell.strip() for cell in row.split(",")]))
            for row in told.stdout.strip().splitlines()]
    return {"nvidia_smi": rows, "driver": rows[0].get("driver_version", "") if rows else "", "topology": topology}
