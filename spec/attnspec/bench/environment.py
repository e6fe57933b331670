"""Where a result was measured."""

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import torch


def environment(device: str) -> dict[str, Any]:
    """Return device, versions, threads and date, as plain data."""
    from .. import __version__

    found: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "attnspec": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if hasattr(os, "getloadavg"):
        found["load"] = [round(x, 2) for x in os.getloadavg()]
    if torch.device(device).type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        }
    return found


def cpu_name() -> str:
    """Return what the processor calls itself."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
