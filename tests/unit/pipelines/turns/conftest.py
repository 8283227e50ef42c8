"""Puts the shared fakes on the path and makes worlds for turns."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "fakes"))
