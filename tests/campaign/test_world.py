"""The campaign's ground: a forked run ends as one that a person starts, and twice the same."""
from world import final, go, small_world

def test_the_same_run_twice_and_another(tmp_path):
    flags = [*small_world(tmp_path), "--max_steps", 6]
    for name, more in (("a", []), ("b", []), ("c", ["--seed", 1])): go(tmp_path / name, flags + more)
    assert final(tmp_path / "a") == final(tmp_path / "b") != final(tmp_path / "c")
