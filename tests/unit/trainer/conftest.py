"""Lets the tests of this folder import ``trainer_support``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
