"""The main job's promise on real text: it learns, and two processes do what one does."""
import math, sys
from helpers import PRETRAIN, run, steps, torchrun
from minimind.metrics import read_metrics

def test_poems_on_one_process_and_on_two(tmp_path, shared):
    flags = ["--data_path", shared("data/tang_poems_zh.jsonl"), "--hidden_size", 64, "--num_hidden_layers", 2, "--max_seq_len", 128, "--epochs", 1,
             "--max_steps", 60, "--batch_size", 8, "--learning_rate", "6e-3", "--warmup_ratio", 0.05, "--dtype", "float32", "--cache_dir", tmp_path / "cache"]
    where = lambda n: ["--save_dir", tmp_path / n / "out", "--checkpoint_dir", tmp_path / n / "checkpoints"]
    code, out, err = run([sys.executable, PRETRAIN, *flags, "--accumulation_steps", 2, *where("one")], tmp_path)
    assert code == 0, err
    code, out, err = run(torchrun(2, PRETRAIN, *flags, "--accumulation_steps", 1, *where("two")), tmp_path)
    assert code == 0, err
    one, two = (steps(tmp_path / n, "pretrain_64") for n in ("one", "two"))
    assert len(one) == 60 and [r["ledger"] for r in one] == [r["ledger"] for r in two]
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(one, two)) < 1e-4
    val = read_metrics(tmp_path / "one/out/pretrain_64_metrics.jsonl", "eval")[-1]
    assert val["loss"] < math.log(6400) - 2.5
