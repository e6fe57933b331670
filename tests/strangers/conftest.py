"""The table of subjects is imported by name, in whatever mode pytest imports test modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
