"""Small runs in forked processes: a forkserver has torch loaded, so a run of twenty steps takes a third of a second."""
import faulthandler, hashlib, json, multiprocessing, os, signal, socket, sys, time
from pathlib import Path
import torch
from helpers import exact, places, resume_data, steps, tensors, write_texts

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["pytest", "torch._dynamo", "minimind.trainer", "minimind.pretrain", "helpers", "world", "plants", "mishaps", "disk", "hostile"])
FLAGS = ("--hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2 --num_key_value_heads 1 --max_seq_len 32 --batch_size 2 "
         "--accumulation_steps 2 --learning_rate 1e-2 --device cpu --dtype float32 --epochs 1 --val_fraction 0 --threads 1 --dropout 0.1").split()
NAME = "pretrain_16"

def small_world(folder, n=60):
    "Texts and a tokenizer of 512 tokens in `folder`; returns the flags of a small run on them, without its places."
    from minimind.tokenizer import load_tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    spec = json.loads(Path(load_tokenizer().path).read_text())
    keep = {t: i for t, i in spec["model"]["vocab"].items() if i < 512}
    pairs = [(m, m if isinstance(m, list) else m.split(" ")) for m in spec["model"]["merges"]]
    spec["model"] |= dict(vocab=keep, merges=[m for m, p in pairs if "".join(p) in keep and all(x in keep for x in p)])
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    data = write_texts(folder / "texts.jsonl", n)
    return [*FLAGS, "--data_path", str(data), "--tokenizer_path", str(folder / "tokenizer.json")]

def member(rank, size, port, flags, log, hook, env):
    "What each forked process does: be one of torchrun's workers."
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1); os.dup2(out, 2)
    sys.stdout, sys.stderr = open(1, "w", buffering=1, closefd=False), open(2, "w", buffering=1, closefd=False)
    os.environ.update(env)
    if size > 1: os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR2)
    torch.set_num_threads(1)
    from minimind.pretrain import main, parser
    if hook: hook[0](*hook[1:])
    code = main(parser.parse_args(flags))
    sys.exit(code)

class Launch:
    "`size` forked processes that run `flags` with all files in `folder`; `hook` is (function, arguments ...) called first in each."
    def __init__(self, folder, flags, size=1, hook=None, **env):
        self.folder, self.log = Path(folder), Path(folder) / "log.txt"
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as s: s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
        flags = [*map(str, flags), *places(folder)]
        self.members = [FORK.Process(target=member, args=(r, size, port, flags, str(self.log), hook, env)) for r in range(size)]
        for p in self.members: p.start()

    def wait(self, timeout=60):
        "The exit codes (negative: the signal that ended it), in order of rank. After `timeout` seconds all are killed: AssertionError."
        deadline = time.monotonic() + timeout
        for p in self.members: p.join(max(0, deadline - time.monotonic()))
        if late := [r for r, p in enumerate(self.members) if p.exitcode is None]:
            self.kill(signal.SIGUSR2, late); time.sleep(0.5)  # where each of them stands goes into the log
            self.kill()
            raise AssertionError(f"processes {late} did not end within {timeout} s\n{self.text()}")
        return [p.exitcode for p in self.members]

    def kill(self, sent=signal.SIGKILL, ranks=None):
        "Send a signal to all or some members; after SIGKILL to all, wait for their end."
        for p in self.members if ranks is None else [self.members[r] for r in ranks]:
            if p.exitcode is None: os.kill(p.pid, sent)
        if sent == signal.SIGKILL and ranks is None:
            for p in self.members: p.join()

    def text(self): return self.log.read_text() if self.log.exists() else ""
    def reached(self, step, timeout=60):
        "Wait until the run has recorded that step (or has ended)."
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and any(p.exitcode is None for p in self.members):
            try:
                if (done := steps(self.folder, NAME)) and done[-1]["step"] >= step: return
            except OSError: pass
            time.sleep(0.005)

def go(folder, flags, size=1, hook=None, want=0, timeout=60, **env):
    "Run to the end; all exit codes must be `want`. Returns what this folder's runs have printed so far."
    launch = Launch(folder, flags, size, hook, **env)
    codes = launch.wait(timeout)
    assert codes == [want] * size, f"{codes}\n{launch.text()}"
    return launch.text()

def weights(folder, name=NAME):
    "Digest of model and optimizer in a run's newest resume file."
    data, sha = resume_data(folder, name), hashlib.sha256()
    for place, t in tensors([data["model"], data["optimizer"]]): sha.update(place.encode()); sha.update(t.contiguous().numpy().tobytes())
    return sha.hexdigest()

def final(folder, name=NAME):
    "What must be the same in every bit: model, optimizer, and the record of each step."
    return weights(folder, name), [exact(r) for r in steps(folder, name)]
