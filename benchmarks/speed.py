"""How fast attnspec itself is: `python benchmarks/speed.py [NAME ...]`.

Times the import and a check of each registered implementation by two profiles, each in a fresh process, and
writes `benchmarks/speed.json`. The product's promise: `quick` within 10 s and `default` within 60 s for one
implementation on two cores, the import included.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from attnspec._registry import registry
from attnspec.bench.environment import environment

LIMITS = {"quick": 10.0, "default": 60.0}


def seconds(*arguments: str) -> tuple[float, int]:
    """Return how long a fresh interpreter takes, and its exit status."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=False)
    return round(time.perf_counter() - began, 2), done.returncode


def imports() -> dict[str, float]:
    """Time what an import costs, the least of three."""
    statements = {
        "attnspec": "import attnspec",
        "with torch": "import attnspec; attnspec.check_implementation",
        "torch alone": "import torch",
    }
    return {name: min(seconds("-c", text)[0] for _ in range(3)) for name, text in statements.items()}


def main() -> int:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="implementations; none is all that are registered")
    parser.add_argument("--profile", action="append", choices=LIMITS, help="both by default")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("speed.json"))
    words = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in words.names or list(registry()):
        for profile in words.profile or LIMITS:
            took, status = seconds("-m", "attnspec", "check", name, "--profile", profile, "--quiet")
            rows.append(
                {
                    "name": name,
                    "profile": profile,
                    "seconds": took,
                    "limit": LIMITS[profile],
                    "status": status,
                }
            )
            print(
                f"{name:<24} {profile:<8} {took:7.1f} s (limit {LIMITS[profile]:g}), exit status {status}",
                flush=True,
            )
    data = {"environment": environment("cpu"), "imports": imports(), "checks": rows}
    words.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
