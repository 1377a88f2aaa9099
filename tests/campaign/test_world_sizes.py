"""Processes come and go: whatever their number in each of three segments, the run is the same one."""
import itertools, shutil
import pytest
from helpers import steps
from world import NAME, final, go, small_world

@pytest.fixture(scope="module")
def flags(tmp_path_factory): return small_world(tmp_path_factory.mktemp("world"))

def same_data(folder): return [{k: r[k] for k in ("epoch", "step", "position", "rows", "tokens", "lr", "ledger")} for r in steps(folder, NAME + "_moe")]
def losses(folder): return [r["loss"] for r in steps(folder, NAME + "_moe")]

@pytest.mark.parametrize("same_bits", [0, 1])
@pytest.mark.parametrize("rows,batch", [(12, 2), (5, 1)])
def test_all_schedules_of_three_segments(flags, tmp_path, campaign, rows, batch, same_bits):
    "With --same_bits 1 all end in the same bits (E2); without, in the same rows and rates (E0) and losses to 1e-5 (E1)."
    flags = [*flags, "--use_moe", 1, "--batch_size", batch, "--accumulation_steps", rows // batch, "--max_steps", 10, "--same_bits", same_bits]
    whole = tmp_path / "whole"
    go(whole, flags)
    wanted, data, loss = final(whole, NAME + "_moe"), same_data(whole), losses(whole)
    assert len(loss) == 10 and (rows < 12 or {r["rows"] for r in steps(whole, NAME + "_moe")} == {12, 1})  # an epoch has 73 rows
    sizes = campaign.cases((1, 2, 3), (1, 2, 3, 4))
    ends = campaign.cases([(1, 3, 2), (2, 1, 3)], list(itertools.product(sizes, repeat=3)) if rows == 12 else list(itertools.product(sizes, repeat=2)))
    states = {(): tmp_path / "begun"}  # schedule so far -> folder; schedules with the same beginning share it
    go(states[()], [*flags, "--stop_after", 1], want=75)
    def reach(schedule):
        if schedule in states: return states[schedule]
        folder = tmp_path / ("to" + "".join(map(str, schedule)))
        shutil.copytree(reach(schedule[:-1]), folder, symlinks=True)
        last = len(schedule) == len(ends[0])
        go(folder, [*flags, "--from_resume", 1, *([] if last else ["--stop_after", 3])], schedule[-1], want=0 if last else 75)
        states[schedule] = folder
        return folder
    ended = set()
    for schedule in ends:
        folder = reach(schedule)
        assert same_data(folder) == data, schedule
        if same_bits: assert final(folder, NAME + "_moe") == wanted, schedule
        else: assert max(abs(a - b) for a, b in zip(losses(folder), loss)) < 1e-5, schedule
        ended.add(final(folder, NAME + "_moe")[0])
        shutil.rmtree(folder)
    assert same_bits or rows == 5 or len(ended) > 1  # floating-point sums do differ, so the fixed-point ones prove something
    campaign.passed("process counts, " + ("same bits (E2)" if same_bits else "same data, losses to 1e-5 (E0, E1)"), len(ends))
