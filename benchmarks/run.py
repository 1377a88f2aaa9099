"""What the project claims about speed, as ratios within one run: `python benchmarks/run.py [NAME ...]`; without a name, all.

Two ways to do the same are timed in alternation; the ratio is that of the medians, with the smallest and largest of the pairs' ratios."""
import argparse, os, platform, statistics, sys, tempfile, time
from pathlib import Path
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
sys.path[0] = str(Path(__file__).resolve().parents[1])
import torch
from minimind.config import PretrainConfig
from minimind.corpus import write_corpus
from minimind.trainer import Trainer

def seconds(f):
    began = time.perf_counter(); f()
    return time.perf_counter() - began

def paired(name, what, against, repeats, before=lambda: None):
    "Print how many times as long `what` takes as `against`; `before` is called untimed before each."
    pairs = []
    for i in range(repeats + 1):
        both = {}
        for f in (what, against) if i % 2 else (against, what): before(); both[f] = seconds(f)
        if i: pairs.append((both[what], both[against]))  # the first one warms up
    a, b = (statistics.median(column) for column in zip(*pairs))
    ratios = sorted(x / y for x, y in pairs)
    print(f"{name:<66} {a / b:5.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f}, {b:.3f} s against {a:.3f} s)", flush=True)

def trainer(folder, **more):
    "The 64M model on built-in texts; `folder` keeps all files."
    data = write_corpus(Path(folder) / "texts.jsonl", 2000)
    places = {f"{name}_dir": f"{folder}/{name}" for name in ("cache", "save", "checkpoint")}
    config = PretrainConfig(data_path=[str(data)], batch_size=2, accumulation_steps=4, **places, **more)
    return Trainer(config, say=lambda text: None, progress=False)

def same_bits(folder, repeats):
    "A step with gradients added in fixed point, against one with floating point: 4 micro-batches of 2 rows of 340 tokens."
    one, other = (trainer(folder, same_bits=b, save_weight=f"bits{b:d}") for b in (True, False))
    paired("step, --same_bits 1 against 0", one.one_step, other.one_step, repeats)

def save(folder, repeats):
    "A checkpoint of the 64M model: against `torch.save` of the same tensors, and the time that training stands still for it."
    now, later = trainer(folder, save_weight="now"), trainer(folder, save_weight="later", async_save=True)
    for t in (now, later): t.one_step()
    def plain(forced):
        files, _ = now.checkpoint()
        for name, data in files.items():
            with open(f"{folder}/{name}", "wb") as f:
                torch.save(data, f); f.flush()
                if forced: os.fsync(f.fileno())
    def whole(): now.steps += 1; assert now.save()
    def background(): later.steps += 1; later.save()
    def rest():
        for t in (now, later): t.settle(); t.tidied()  # what a thread does beside the training
    paired("save, against torch.save of the same files", whole, lambda: plain(False), repeats, rest)
    paired("save, against torch.save and fsync of the same files", whole, lambda: plain(True), repeats, rest)
    paired("training stands still: --async_save 1 against 0", background, whole, repeats, rest)
    for t in (now, later): t.close()

ALL = dict(same_bits=same_bits, save=save)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(ALL)} [all]")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if unknown := set(args.names) - set(ALL): parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(ALL)}")
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}, median of {args.repeats} pairs")
    for name in args.names or ALL:
        with tempfile.TemporaryDirectory() as folder: ALL[name](folder, args.repeats)
