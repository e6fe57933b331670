"""The CUDA script where there is no device: it says so, succeeds, and writes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "cuda" / "run_cuda.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_device_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(output)], capture_output=True, text=True, check=True
    )
    assert (
        done.stdout
        == f"no CUDA device (torch {torch.__version__}): nothing was checked, nothing was written\n"
    )
    assert not output.exists()
