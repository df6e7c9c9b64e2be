"""Lets the tests import `reference` and `strict_reader`, which stand beside them: tests are imported by path here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
