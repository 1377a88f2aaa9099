"""Stopped after any step and continued, a run ends with the same bytes as one that was never stopped."""
import signal, sys, time
import pytest, torch
from helpers import PRETRAIN, TINY, exact, places, resume_data, run, same_bytes, start, steps, torchrun, write_texts
from minimind.checkpoint import CheckpointStore
from minimind.config import PretrainConfig, UserError, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

def config(folder, *more, data=None):
    flags = [*TINY, "--data_path", str(data or folder / "texts.jsonl"), "--accumulation_steps", "3", "--epochs", "2", "--dropout", "0.1",
             "--val_fraction", "0", *places(folder), *map(str, more)]
    return from_args(PretrainConfig, parser.parse_args(flags))

def trainer(*args, **kw): return Trainer(config(*args, **kw), say=lambda text: None, progress=False)

@pytest.mark.parametrize("moe", [0, 1])
def test_signal_after_every_step(tmp_path, moe):
    data = write_texts(tmp_path / "texts.jsonl")
    rows = trainer(tmp_path / "whole", data=data).plan.rows
    few = next(a for a in (3, 4, 5) if rows % (2 * a))  # so that an epoch's last step is a smaller one
    whole = trainer(tmp_path / "whole", "--use_moe", moe, "--accumulation_steps", few, data=data)
    assert whole.fit() == "finished"
    name = whole.config.name
    whole.close()
    wanted, n = list(map(exact, steps(tmp_path / "whole", name))), whole.steps
    assert n > 6 and any(r["rows"] < 2 * few for r in wanted)
    for k in range(1, n + 1):
        folder = tmp_path / f"stopped{k}"
        first = trainer(folder, "--use_moe", moe, "--accumulation_steps", few, data=data)
        one_step = first.one_step
        def stopping():
            if first.steps + 1 == k: signal.raise_signal(signal.SIGTERM)  # arrives in the middle of step k
            return one_step()
        first.one_step = stopping
        assert first.fit() == ("SIGTERM" if k < n else "finished") and first.steps == k
        first.close()
        torch.manual_seed(k)  # the state of torch's generator must not matter
        second = trainer(folder, "--use_moe", moe, "--accumulation_steps", few, "--from_resume", 1, data=data)
        assert second.steps == k and second.fit() == "finished"
        second.close()
        assert list(map(exact, steps(folder, name))) == wanted
        assert same_bytes(resume_data(folder, name), resume_data(tmp_path / "whole", name))

def test_notebook_state_and_float16(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    whole = trainer(tmp_path / "whole", "--dtype", "float16", data=data); whole.fit(); whole.close()
    first = trainer(tmp_path / "two", "--dtype", "float16", data=data)
    for record in first:
        if record["step"] == 4: break
    first.save(); first.close()
    second = trainer(tmp_path / "two", "--dtype", "float16", "--from_resume", 1, data=data)
    assert second.scaler.state_dict() == first.scaler.state_dict() != {}
    second.fit(); second.close()
    assert same_bytes(resume_data(tmp_path / "two"), resume_data(tmp_path / "whole"))

def test_workers_do_not_change_the_order(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    for workers in (0, 2): t = trainer(tmp_path / str(workers), "--num_workers", workers, "--max_steps", 5, data=data); t.fit(); t.close()
    assert list(map(exact, steps(tmp_path / "0"))) == list(map(exact, steps(tmp_path / "2")))

def test_processes_come_and_go(tmp_path):
    "One process, then two, then three (of which some idle), then one: the same rows in the same steps, and losses to 1e-5."
    data = write_texts(tmp_path / "texts.jsonl")
    flags = [*TINY, "--data_path", data, "--accumulation_steps", 2, "--epochs", 2, "--use_moe", 1, "--dropout", 0.1, "--val_fraction", 0]
    assert run([sys.executable, PRETRAIN, *flags, *places(tmp_path / "one")], tmp_path)[0] == 0
    for n, end in ((1, 75), (2, 75), (3, 75), (1, 0)):
        more = ["--from_resume", 1, *(["--stop_after", 3] if end else [])]
        command = torchrun(n, PRETRAIN) if n > 1 else [sys.executable, PRETRAIN]
        code, out, err = run([*command, *flags, *more, *places(tmp_path / "many")], tmp_path)
        assert code == (end if n == 1 else 1), err  # torchrun has an exit code of its own
    assert "accumulation_steps 2 -> " not in out and "3 -> 1" in out and "losses up to rounding" in out
    one, many = steps(tmp_path / "one", "pretrain_32_moe"), steps(tmp_path / "many", "pretrain_32_moe")
    assert [r["world_size"] for r in many][:9] == [1] * 3 + [2] * 3 + [3] * 3
    same = lambda r: {k: r[k] for k in ("epoch", "step", "position", "rows", "tokens", "lr", "ledger")}
    assert list(map(same, one)) == list(map(same, many))
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(one, many)) < 1e-5

def wait_for_step(folder, k, process, name="pretrain_32"):
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        try:
            if len(steps(folder, name)) >= k: return
        except OSError: pass
        time.sleep(0.05)
    raise AssertionError(f"step {k} was not reached: {process.communicate()}")

@pytest.mark.parametrize("n,sent", [(1, signal.SIGTERM), (1, signal.SIGKILL), (2, signal.SIGTERM), (2, signal.SIGKILL)])
def test_real_processes_are_stopped(tmp_path, n, sent):
    "A real run gets a real signal, is continued, and its last bytes are those of the run that was left alone."
    data = write_texts(tmp_path / "texts.jsonl", 400)
    flags = [*TINY, "--data_path", data, "--accumulation_steps", 3 - n, "--dropout", 0.1, "--save_interval", 7, "--max_steps", 60, "--threads", 1]
    command = (torchrun(n, PRETRAIN) if n > 1 else [sys.executable, PRETRAIN]) + flags
    assert run(command + places(tmp_path / "whole"), tmp_path)[0] == 0
    p = start(command + places(tmp_path / "two"), tmp_path)
    wait_for_step(tmp_path / "two", 12, p)
    p.send_signal(sent)
    out, err = p.communicate(timeout=60)
    assert p.returncode == {(1, 15): 75, (2, 15): 1}.get((n, int(sent)), -int(sent)), err
    if sent == signal.SIGTERM: assert "Stopped (SIGTERM)" in out and "saved" in out
    time.sleep(3 if n > 1 and sent == signal.SIGKILL else 0)  # the workers see that their agent is gone
    code, out, err = run(command + ["--from_resume", 1] + places(tmp_path / "two"), tmp_path)
    assert code == 0 and "exact, bit for bit" in out, err
    assert list(map(exact, steps(tmp_path / "two"))) == list(map(exact, steps(tmp_path / "whole")))
    assert same_bytes(resume_data(tmp_path / "two"), resume_data(tmp_path / "whole"))

def test_finished_runs_stay_as_they_are(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    trainer(tmp_path, "--max_steps", 4, data=data).fit()
    files = lambda: {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(tmp_path.rglob("*")) if p.is_file() and ".lock" not in p.name}
    before, said = files(), []
    again = Trainer(config(tmp_path, "--max_steps", 4, "--from_resume", 1, data=data), say=said.append, progress=False)
    assert again.fit() == "finished" and "nothing left to do" in said[-1] and files() == before

def test_what_a_resume_refuses(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    t = trainer(tmp_path, "--max_steps", 4, "--stop_after", 2, data=data); t.fit(); t.close()
    def refused(*more, data=data):
        with pytest.raises(UserError) as e: trainer(tmp_path, "--max_steps", 4, "--from_resume", 1, *more, data=data)
        assert "\n" not in str(e.value)
        return str(e.value)
    assert "32" in refused("--max_seq_len", 32) and "packing" in refused("--max_seq_len", 32)
    assert "rope" not in refused("--num_attention_heads", 2)
    assert "4e-3" in refused("--learning_rate", "4e-3") or "0.004" in refused("--learning_rate", "4e-3")
    assert "seed is 42, this run's 7" in refused("--seed", 7)
    assert "--allow_rebatch" in refused("--batch_size", 3)
    assert "data" in refused(data=write_texts(tmp_path / "other.jsonl", 61))
    t = trainer(tmp_path, "--max_steps", 4, "--from_resume", 1, "--batch_size", 3, "--allow_rebatch", 1, data=data)
    assert t.plan.global_batch == 9 and t.position == 12
    t.fit(); t.close()
    assert [r["rows"] for r in steps(tmp_path)] == [6, 6, 9, min(9, t.plan.rows - 21)]

def test_damage_is_never_silent(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    t = trainer(tmp_path, "--save_interval", 2, "--max_steps", 6, data=data); t.fit(); t.close()
    store = CheckpointStore("pretrain_32", tmp_path / "checkpoints", tmp_path / "out")
    newest, older = store.generations()
    raw = bytearray((newest / "resume.pth").read_bytes()); raw[len(raw) // 2] ^= 4
    (newest / "resume.pth").write_bytes(raw)
    said = []
    t = Trainer(config(tmp_path, "--save_interval", 2, "--max_steps", 6, "--from_resume", 1, data=data), say=said.append, progress=False)
    assert t.steps == 4 and "is damaged" in said[0] and "using generation 4" in said[0]
    assert t.fit() == "finished"; t.close()
    assert [g.name for g in store.generations()] == ["0000000006", "0000000004"]
    for g in store.generations(): (g / "manifest.json").unlink()
    with pytest.raises(UserError, match="none can be used"): trainer(tmp_path, "--max_steps", 6, "--from_resume", 1, data=data)

def test_the_originals_checkpoint(tmp_path, shared):
    "The original's tiny checkpoint goes on here: its step times its batch is the position."
    tok = shared("data/minimind_tokenizer")
    import json, shutil
    (tmp_path / "checkpoints").mkdir(); (tmp_path / "out").mkdir()
    for name, place in (("pretrain_64_resume.pth", "checkpoints"), ("pretrain_64.pth", "out")): shutil.copy(shared(f"golden/original_checkpoint/{name}"), tmp_path / place)
    spec = json.loads((tok / "tokenizer.json").read_text())  # its vocabulary cut to the checkpoint's 512
    keep = {t: i for t, i in spec["model"]["vocab"].items() if i < 512}
    spec["model"]["vocab"] = keep
    spec["model"]["merges"] = [m for m in spec["model"]["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) in keep
                               and all(x in keep for x in (m if isinstance(m, list) else m.split(" ")))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    data = write_texts(tmp_path / "texts.jsonl", 200)
    said, c = [], config(tmp_path, "--hidden_size", 64, "--num_hidden_layers", 2, "--from_resume", 1, "--tokenizer_path", tmp_path / "tokenizer.json",
                         "--max_steps", 12, "--dropout", 0, data=data)
    t = Trainer(c, say=said.append, progress=False)
    assert t.position == 3 * 1 * 2 and "not exact" in said[0]
    assert t.fit() == "finished"; t.close()
    assert list(tmp_path.glob("checkpoints/*.old0.pth")) and list(tmp_path.glob("out/*.old0.pth"))  # theirs are kept
    ours, theirs = resume_data(tmp_path, "pretrain_64"), torch.load(shared("golden/original_checkpoint/pretrain_64_resume.pth"), weights_only=True)
    assert set(theirs) <= set(ours) and list(ours["model"]) == list(theirs["model"])
    assert set(torch.load(tmp_path / "out/pretrain_64.pth", weights_only=True)) == set(torch.load(shared("golden/original_checkpoint/pretrain_64.pth"), weights_only=True))
