"""Stopped at any position, once or twice, and continued, a run is the run that was never stopped: each record, each byte."""
import itertools, random, shutil, signal
import pytest, torch
from helpers import places
from world import NAME, final, small_world
from minimind.config import PretrainConfig, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    "73 rows in steps of 12: seven steps an epoch, the last of one row; two epochs."
    return [*small_world(tmp_path_factory.mktemp("world")), "--accumulation_steps", 6, "--epochs", 2]

def trainer(folder, flags, *more):
    args = parser.parse_args(list(map(str, [*flags, *places(folder), *more])))
    return Trainer(from_args(PretrainConfig, args), say=lambda text: None, progress=False)

def launch(folder, flags, until, end):
    "A launch that is sent SIGTERM in the middle of step `until`."
    t = trainer(folder, flags, "--from_resume", 1)
    read = t.read
    def stopping(*place):
        if t.steps + 1 == until: signal.raise_signal(signal.SIGTERM)
        return read(*place)
    t.read = stopping
    assert t.fit() == ("SIGTERM" if until < end else "finished") and t.steps == min(until, end)
    t.close()
    torch.manual_seed(until)  # the state of torch's generator must not matter

@pytest.mark.parametrize("kind", ["dense", "moe", "same bits", "in the background"])
def test_stopped_at_every_position(flags, tmp_path, campaign, kind):
    "At each of the 14 steps, the last of an epoch and of the run among them; then at each pair of steps."
    more = {"dense": [], "moe": ["--use_moe", 1], "same bits": ["--same_bits", 1], "in the background": ["--async_save", 1, "--save_interval", 2]}[kind]
    flags, name, n = [*flags, *more], NAME + ("_moe" if kind == "moe" else ""), 14
    launch(tmp_path / "whole", flags, n, n)
    wanted = final(tmp_path / "whole", name)
    assert [r["rows"] for r in wanted[1]] == [12] * 6 + [1] + [12] * 6 + [1]
    pairs = list(itertools.combinations(range(1, n), 2))
    stops = [(k,) for k in range(1, n + 1)] + (pairs if campaign.full else random.Random(0).sample(pairs, 4))
    for stop in stops:
        folder = tmp_path / "stopped"
        for until in (*stop, *([n] if stop != (n,) else [])): launch(folder, flags, until, n)
        assert final(folder, name) == wanted, stop
        shutil.rmtree(folder)
    campaign.passed("stop and resume", len(stops), "stops")

def test_a_run_that_is_complete_stays_as_it_is(flags, tmp_path, campaign):
    "Resumed at the run's end, nothing is done and no file changes."
    launch(tmp_path, flags, 14, 14)
    files = lambda: {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(tmp_path.rglob("*")) if p.is_file() and ".lock" not in p.name}
    before, t = files(), trainer(tmp_path, flags, "--from_resume", 1)
    assert t.fit() == "finished" and files() == before
    campaign.passed("stop and resume", 1, "stops")
