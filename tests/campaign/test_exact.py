"""Small and quick: each promise of a resume in a test of its own, so that `test_planted.py` can break them one by one."""
import math, os, signal, threading
import numpy as np, pytest, torch
from helpers import places, resume_data, steps
from mishaps import not_finite
from world import NAME, final, go, small_world
from minimind.checkpoint import CheckpointStore
from minimind.config import PretrainConfig, UserError, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    "31 rows in steps of six: six steps an epoch, the last of one row; two epochs; saves after each fourth step."
    return [*small_world(tmp_path_factory.mktemp("world"), 26), "--accumulation_steps", 3, "--epochs", 2, "--save_interval", 4]

@pytest.fixture
def build(flags):
    "A function that builds a trainer with all files in one folder; what it says goes to `said`."
    def make(folder, *more, said=[]):
        args = parser.parse_args(list(map(str, [*flags, *places(folder), *more])))
        return Trainer(from_args(PretrainConfig, args), say=said.append, progress=False)
    return make

def finish(trainer): reason = trainer.fit(); trainer.close(); return reason

@pytest.mark.parametrize("kind", ["dense", "moe", "float16"])
def test_resume(build, tmp_path, kind):
    "Stopped after the first step, in an epoch, at its end and behind it: dropout, experts and the gradient scaler go on to the same bits."
    more = dict(dense=[], moe=["--use_moe", 1], float16=["--dtype", "float16"])[kind]
    name = NAME + "_moe" * (kind == "moe")
    finish(build(tmp_path / "whole", *more))
    wanted = final(tmp_path / "whole", name)
    assert [r["rows"] for r in wanted[1]] == 2 * [6, 6, 6, 6, 6, 1]
    for k in (1, 3, 6, 7) if kind == "dense" else (3,):
        first = build(tmp_path / str(k), *more, "--stop_after", k)
        assert finish(first) == "stop_after" and resume_data(tmp_path / str(k), name)["minimind"]["steps"] == k
        torch.manual_seed(k)
        second = build(tmp_path / str(k), *more, "--from_resume", 1)
        assert second.scaler.state_dict() == first.scaler.state_dict()
        assert finish(second) == "finished" and final(tmp_path / str(k), name) == wanted, k

def test_two_processes_do_what_one_does(flags, tmp_path):
    "One process, then two: the same rows in the same steps, and the same losses, norms and rates up to rounding."
    go(tmp_path / "one", flags)
    go(tmp_path / "two", [*flags, "--stop_after", 4], want=75)
    go(tmp_path / "two", [*flags, "--from_resume", 1], size=2)
    one, two = steps(tmp_path / "one", NAME), steps(tmp_path / "two", NAME)
    same = ("epoch", "step", "position", "rows", "tokens", "lr", "ledger")
    assert [[r[k] for k in same] for r in one] == [[r[k] for k in same] for r in two] and {r["world_size"] for r in two} == {1, 2}
    for a, b in zip(one, two):
        assert math.isclose(a["loss"], b["loss"], abs_tol=1e-5) and math.isclose(a["grad_norm"], b["grad_norm"], rel_tol=1e-3)

def test_a_bad_sum_on_one_process(flags, tmp_path):
    "A NaN in one process's sum lets both skip that step, and only that one."
    go(tmp_path, [*flags, "--max_steps", 8], size=2, hook=(not_finite, "sum", [3], [1]))
    assert [r["step"] for r in steps(tmp_path, NAME)] == [1, 2, 4, 5, 6, 7, 8]

def test_steps_of_the_originals(build, tmp_path):
    "The resume file's `step` counts begun micro-batches, as the original's does, and the place is that of the last step."
    finish(build(tmp_path, "--accumulation_steps", 1, "--batch_size", 3, "--stop_after", 2))
    finish(build(tmp_path, "--from_resume", 1, "--batch_size", 4, "--accumulation_steps", 1, "--allow_rebatch", 1, "--stop_after", 1))
    data = resume_data(tmp_path, NAME)
    assert (data["epoch"], data["step"], data["minimind"]["position"]) == (0, 3, 10)

def test_records_are_cut(build, tmp_path):
    "Steps behind the last save are taken again, and stand in the record once."
    killed = build(tmp_path)
    for record in killed:
        if record["step"] == 6: break
    killed.close()  # its last save was after step 4
    assert finish(build(tmp_path, "--from_resume", 1)) == "finished"
    assert [r["step"] for r in steps(tmp_path, NAME)] == list(range(1, 13))

def test_other_rows_are_noticed(build, tmp_path):
    "A token that was exchanged under a corpus whose header, size and times are as before is found by the ledger."
    finish(build(tmp_path, "--stop_after", 6))
    path, = (tmp_path / "cache").glob("*/train.tokens")
    stat, tokens = path.stat(), np.fromfile(path, "<u2")
    tokens[tokens > 100] ^= 1
    tokens.tofile(path); os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(UserError, match="has changed"): build(tmp_path, "--from_resume", 1)

def test_damage_is_told(build, tmp_path):
    "A flipped bit sends a resume to the generation before, with a warning."
    finish(build(tmp_path, "--stop_after", 8))
    newest, older = CheckpointStore(NAME, tmp_path / "checkpoints", tmp_path / "out").generations()
    raw = bytearray((newest / "resume.pth").read_bytes()); raw[len(raw) // 2] ^= 4
    (newest / "resume.pth").write_bytes(raw)
    said = []
    assert build(tmp_path, "--from_resume", 1, said=said).steps == 4 and any("is damaged" in s and "using generation 4" in s for s in said)

def test_an_interrupt_waits(build, tmp_path, monkeypatch):
    "An interrupt in the middle of a step, as a notebook sends it, is raised at its end; what follows has the same bits."
    finish(build(tmp_path / "whole"))
    t, update = build(tmp_path / "two"), Trainer.update
    def interrupted(self, *args):
        norm = update(self, *args)
        if self.steps == 2: signal.raise_signal(signal.SIGINT)
        return norm
    monkeypatch.setattr(Trainer, "update", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(5): t.step()
    finally: signal.signal(signal.SIGINT, before)
    assert t.steps == 3 and finish(t) == "finished"
    assert final(tmp_path / "two") == final(tmp_path / "whole")

def test_a_stop_in_the_last_step_of_an_epoch(build, tmp_path, monkeypatch):
    "What is saved is the end of the step that was interrupted, the epoch's last update included."
    t, backward = build(tmp_path), Trainer.backward
    def stopped(self, *args):
        if self.steps == 5: signal.raise_signal(signal.SIGTERM)
        return backward(self, *args)
    monkeypatch.setattr(Trainer, "backward", stopped)
    assert finish(t) == "SIGTERM"
    data = resume_data(tmp_path, NAME)
    assert (data["epoch"], data["minimind"]["position"], data["minimind"]["steps"]) == (1, 0, 6)
    assert all(float(s["step"]) == 6 for s in data["optimizer"]["state"].values())

def test_the_same_bits_need_as_many_threads(build, tmp_path):
    "With `--same_bits 1` a resume takes over the number of threads, unless it was given one."
    before = torch.get_num_threads()
    try:
        finish(build(tmp_path, "--same_bits", 1, "--threads", 2, "--stop_after", 1))
        torch.set_num_threads(1)
        for given, used in ((0, 2), (1, 1)):
            build(tmp_path, "--same_bits", 1, "--threads", given, "--from_resume", 1)
            assert torch.get_num_threads() == used
    finally: torch.set_num_threads(before)

def test_a_gradient_that_does_not_fit(build, tmp_path, monkeypatch):
    "With `--same_bits 1` a gradient beyond the range of fixed point is a step that is skipped, not one that wraps around."
    t, forward = build(tmp_path, "--same_bits", 1), Trainer.forward
    def steep(self, *args):
        out = forward(self, *args)
        if self.steps == 1: out.loss = out.loss * 1e12
        return out
    monkeypatch.setattr(Trainer, "forward", steep)
    kinds = [t.step().get("kind") for _ in range(3)]
    assert kinds == [None, "skip", None] and t.skipped == 1 and all(p.isfinite().all() for p in t.model.parameters())
    t.close()

def test_other_arithmetic_is_told(build, tmp_path, monkeypatch):
    "A machine that is the same by name and computes another loss is not called exact."
    finish(build(tmp_path, "--stop_after", 1))
    build(tmp_path, "--from_resume", 1, said=(same := []))
    probe = Trainer.probe_loss
    monkeypatch.setattr(Trainer, "probe_loss", lambda self: probe(self) + 1e-6)
    build(tmp_path, "--from_resume", 1, said=(other := []))
    assert "exact, bit for bit" in same[-1] and "exact" not in other[-1] and "the loss on two rows" in other[-1]

def test_a_save_in_the_background_holds_its_step(build, tmp_path, monkeypatch):
    "What is written while training goes on is the state at the save; the last save is waited for."
    t, commit, go_on = build(tmp_path, "--async_save", 1, "--save_interval", 2, "--stop_after", 3), Trainer.commit, threading.Event()
    def late(self, *args): go_on.wait(60); return commit(self, *args)
    monkeypatch.setattr(Trainer, "commit", late)
    records = iter(t)
    for _ in range(2): next(records)
    wanted = {k: v.clone() for k, v in t.model.state_dict().items()}
    t.save(); t.step(); go_on.set(); t.settle()
    assert t.saved_at == 2 and all(torch.equal(v, wanted[k]) for k, v in t.store.load(2)["model"].items())
    assert not all(torch.equal(v, wanted[k]) for k, v in t.model.state_dict().items())
    finish(t)
    assert t.saved_at == t.steps and int(t.store.generations()[0].name) == t.steps
