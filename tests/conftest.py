"""Where the tests find data and golden values that lie beside the project, and a folder of their own."""
from pathlib import Path
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

@pytest.fixture
def shared():
    "A function that gives a path below ../shared, or skips the test when it is not there."
    def find(name):
        path = SHARED / name
        if not path.exists(): pytest.skip(f"../shared/{name} is not beside this checkout")
        return path
    return find
