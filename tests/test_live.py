"""Runs that are watched and asked from outside: several processes, a killed kernel, a long record."""
import json, os, signal, subprocess, sys, time
from pathlib import Path
import pytest
from helpers import PRETRAIN, TINY, places, run, same_bytes, resume_data, start, steps, torchrun, write_texts
from minimind.config import UserError
from minimind.live import Panel, Tail, ask_run, status
from minimind.metrics import read_metrics

def wait_for(f, seconds=60):
    end = time.monotonic() + seconds
    while not f():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)

def state(folder):
    tail = Tail(metrics(folder)); tail.read()
    return status(tail.steps, tail.others)["state"]

def metrics(folder): return Path(folder) / "out/pretrain_32_metrics.jsonl"

def test_two_processes_pause_save_go_on_and_stop(tmp_path):
    "Asked from outside, a run on two processes does what was asked, and resumed it ends with the bytes of one that was left alone."
    text = write_texts(tmp_path / "t.jsonl", 300)
    flags = [PRETRAIN, "--data_path", text, *TINY, "--epochs", "40", "--max_steps", "200", "--save_interval", "100000", "--accumulation_steps", "1"]
    p = start(torchrun(2, *flags, *places(tmp_path / "a")), tmp_path)
    file = metrics(tmp_path / "a")
    wait_for(lambda: file.exists() and len(read_metrics(file)) > 5)
    ask_run(file, "pause")
    time.sleep(0.7); n = len(read_metrics(file)); time.sleep(1)
    assert len(read_metrics(file)) == n < 200
    ask_run(file, "save")
    wait_for(lambda: (tmp_path / "a/checkpoints/pretrain_32_resume.pth").exists())
    ask_run(file, "continue")
    wait_for(lambda: len(read_metrics(file)) > n)
    ask_run(file, "stop")
    out, err = p.communicate(timeout=60)
    assert "Stopped (stop)" in out and "saved." in out, out + err
    with pytest.raises(UserError, match="has ended"): ask_run(file, "stop")
    code, out, err = run(torchrun(2, *flags, *places(tmp_path / "a"), "--from_resume", "1"), tmp_path)
    assert code == 0, out + err
    code, out, err = run(torchrun(2, *flags, *places(tmp_path / "b")), tmp_path)
    assert code == 0 and same_bytes(resume_data(tmp_path / "a"), resume_data(tmp_path / "b"))

KERNEL = """
import sys, time
from minimind.config import PretrainConfig
from minimind.live import launch
config = PretrainConfig(hidden_size=32, num_hidden_layers=1, max_seq_len=48, corpus_size=400, batch_size=2, epochs=10_000, device="cpu", threads=1,
                        save_interval=10**6, cache_dir="cache", save_dir="out", checkpoint_dir="checkpoints")
run = launch(config, nproc=2)
print(run.process.pid, flush=True)
time.sleep(600)
"""

def alive(folder):
    "Processes whose working directory is a folder (Linux)."
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder) and (entry / "cmdline").read_bytes(): found.append(int(entry.name))
        except OSError: pass
    return found

@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_killed_kernel_leaves_no_process_and_the_cell_works_again(tmp_path):
    env = dict(PYTHONPATH=str(Path(PRETRAIN).parents[1]))
    for attempt in range(2):
        kernel = start([sys.executable, "-c", KERNEL], tmp_path, **env)
        wait_for(lambda: state(tmp_path) == "running")
        assert len(alive(tmp_path)) >= 4  # the kernel, torchrun, two workers
        kernel.send_signal(signal.SIGKILL); kernel.wait()
        wait_for(lambda: not alive(tmp_path), 10)
    assert [r["kind"] for r in read_metrics(metrics(tmp_path), None) if "kind" in r][-1] == "end"  # it was saved, not cut off

def test_a_stale_or_foreign_request_does_nothing(tmp_path):
    text = write_texts(tmp_path / "t.jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/pretrain_32_control.json").write_text(json.dumps(dict(launch="of last week", ask="stop")))
    code, out, err = run([sys.executable, PRETRAIN, "--data_path", text, *TINY, *places(tmp_path)], tmp_path)
    assert code == 0 and "meant for another launch" in out and not (tmp_path / "out/pretrain_32_control.json").exists()

def test_a_panel_on_a_hundred_thousand_lines(tmp_path):
    "It opens, takes in ten more lines without reading the rest again, and what it sends stays small."
    path = tmp_path / "long_metrics.jsonl"
    record = json.dumps(dict(step=0, loss=2.0, lr=1e-3, grad_norm=1.0, tokens_per_second=1.0, seconds=0.1, data_wait=0.0, tokens=9, ledger="a" * 64))
    path.write_text("".join(record.replace('"step": 0', f'"step": {i}') + "\n" for i in range(100_000)))
    panel = Panel(path)
    assert "99,999" in panel.facts.value and len(panel.picture.value) + len(panel.facts.value) < 50_000
    at = panel.tail.at
    with open(path, "a") as f: f.writelines(record.replace('"step": 0', f'"step": {i}') + "\n" for i in range(100_000, 100_010))
    panel.update()
    assert panel.tail.at - at < 4_000 and "100,009" in panel.facts.value
    panel.close()
