"""Where the clone under test lies, and the developer's data beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"  # papers and real images; only a developer has them, so tests without them skip
