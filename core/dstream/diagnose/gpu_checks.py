"""The third gap: what lies between host memory and a GPU on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from dstream.clock import Clock
from dstream.diagnose.finding import Finding, Gap, Page, Verdict, graded
from dstream.store.device_read import probe_kvikio
from dstream.units import MIB, format_bytes

_COPY_BYTES = 256 * MIB
_COPIES = 8


def gpu_findings(page: Page, clock: Clock) -> None:
    """Add a line for driver, copies, GPUDirect Storage and network cards."""
    with page.check(Gap.GPU, "GPU"):
        present = _driver(page)
        if present:
            _copies(page, clock)
    with page.check(Gap.GPU, "GPUDirect Storage"):
        _gds(page)
    with page.check(Gap.GPU, "RDMA network"):
        cards = rdma_cards(Path("/sys/class/infiniband"))
        page.add(
            Finding(
                Gap.GPU,
                "RDMA network",
                ", ".join(cards) if cards else "no card",
                Verdict.GOOD if cards else Verdict.ABSENT,
            )
        )


def _driver(page: Page) -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        told = "no NVIDIA driver: device='cuda' is an error here, frames stay in host memory"
        page.add(Finding(Gap.GPU, "GPU", told, Verdict.ABSENT))
        return False
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    asked = subprocess.run([program, *query], capture_output=True, text=True, timeout=30)
    if asked.returncode:
        told = (asked.stdout + asked.stderr).strip().splitlines()[0]
        page.add(Finding(Gap.GPU, "GPU", told, Verdict.BAD, "mend the driver: run nvidia-smi"))
        return False
    for line in asked.stdout.strip().splitlines():
        page.add(Finding(Gap.GPU, "GPU", line, Verdict.GOOD))
    return True


def _copies(page: Page, clock: Clock) -> None:
    if importlib.util.find_spec("torch") is None:
        told = "torch is not installed"
        page.add(Finding(Gap.GPU, "pinned copies", told, Verdict.UNKNOWN, "pip install torch"))
        return
    import torch

    if not torch.cuda.is_available():
        remedy = "install torch's CUDA build"
        told = "torch sees no GPU"
        page.add(Finding(Gap.GPU, "pinned copies", told, Verdict.BAD, remedy))
        return
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    device.copy_(host)
    torch.cuda.synchronize()
    began_s = clock.monotonic_s()
    for _ in range(_COPIES):
        device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    rate = _COPIES * _COPY_BYTES / max(clock.monotonic_s() - began_s, 1e-9)
    page.add(
        Finding(
            Gap.GPU,
            "pinned copies",
            f"{format_bytes(rate)}/s to the GPU",
            graded(rate, 10e9, 2e9),
            "" if rate >= 10e9 else "look at the slot's width: nvidia-smi topo -m",
            rate,
            "B/s",
        )
    )


def _gds(page: Page) -> None:
    name = "GPUDirect Storage"
    if importlib.util.find_spec("kvikio") is None:
        told = "kvikio is not installed; it pays for arrays, not for video"
        page.add(Finding(Gap.GPU, name, told, Verdict.ABSENT))
        return
    support = probe_kvikio(has_gpu=_torch_sees_gpu())
    if support.absence == "no_gpu":
        page.add(Finding(Gap.GPU, name, "no GPU to read into", Verdict.ABSENT))
    elif support.absence is not None:
        remedy = "see what python -c 'import kvikio' says"
        page.add(Finding(Gap.GPU, name, "kvikio does not import", Verdict.BAD, remedy))
    elif support.is_compat:
        told = "compatibility mode: bytes go through host memory"
        remedy = "load nvidia-fs; video needs it not"
        page.add(Finding(Gap.GPU, name, told, Verdict.ABSENT, remedy))
    else:
        told = f"on, for reads of {format_bytes(support.gds_threshold_bytes)} and more"
        page.add(Finding(Gap.GPU, name, told, Verdict.GOOD))


def _torch_sees_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def rdma_cards(folder: Path) -> list[str]:
    """Names of the RDMA devices that the kernel knows."""
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
