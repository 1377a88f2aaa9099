"""What several tests need: small texts, small runs, and processes started as a user starts them."""
import json, os, subprocess, sys
from pathlib import Path
import torch

ROOT = Path(__file__).resolve().parents[1]
PRETRAIN = str(ROOT / "minimind" / "pretrain.py")
TINY = ("--hidden_size 32 --num_hidden_layers 1 --num_attention_heads 4 --num_key_value_heads 2 --max_seq_len 48 --batch_size 2 "
        "--learning_rate 1e-2 --device cpu --dtype float32 --epochs 1").split()

def write_texts(path, n=60):
    "A JSONL file of `n` short texts of different lengths."
    words = "the sun sets in west and moon rises over hill 白日 依山 尽 黄河 入海 流".split()
    texts = [" ".join(words[(i * 7 + k * k) % len(words)] for k in range(3 + (i * 5) % 17)) for i in range(n)]
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    return path

def places(folder):
    "Flags that keep all files of a run in one folder."
    return ["--cache_dir", f"{folder}/cache", "--save_dir", f"{folder}/out", "--checkpoint_dir", f"{folder}/checkpoints"]

def start(command, cwd, **env):
    "Start a command with its output captured."
    return subprocess.Popen(list(map(str, command)), cwd=cwd, env=os.environ | env, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

def run(command, cwd, timeout=240, **env):
    "Run a command to its end; returns (exit code, stdout, stderr)."
    p = start(command, cwd, **env)
    try: out, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired: p.kill(); out, err = p.communicate(); raise AssertionError(f"no end after {timeout} s\n{out}\n{err}")
    return p.returncode, out, err

def torchrun(n, *args):
    "The command line of `torchrun` with `n` processes on this machine."
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", n, *args]

def steps(folder, name="pretrain_32"):
    "The step records of a run below `folder`."
    from minimind.metrics import read_metrics
    return read_metrics(Path(folder) / "out" / f"{name}_metrics.jsonl")

def resume_data(folder, name="pretrain_32"):
    return torch.load(Path(folder) / "checkpoints" / f"{name}_resume.pth", weights_only=True)

def tensors(data):
    "All tensors of nested plain data, with their place."
    if isinstance(data, torch.Tensor): yield "", data
    elif isinstance(data, (dict, list, tuple)):
        for k, v in data.items() if isinstance(data, dict) else enumerate(data):
            for name, t in tensors(v): yield f"{k}.{name}", t

def same_bytes(a, b):
    "Whether two resume files hold the same model and optimizer, to the last bit."
    pairs = [(dict(tensors([d["model"], d["optimizer"]]))) for d in (a, b)]
    return pairs[0].keys() == pairs[1].keys() and all(torch.equal(t, pairs[1][k]) for k, t in pairs[0].items())

def exact(record):
    "The part of a step's record that must be the same in every bit after a resume."
    return {k: record[k] for k in ("epoch", "step", "position", "rows", "tokens", "loss", "aux_loss", "grad_norm", "lr", "ledger")}
