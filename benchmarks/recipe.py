"""How many tokens a recipe needs for the loss that the original's recipe ends with: `python benchmarks/recipe.py --text JSONL`.

Each run trains the same small model on the same rows in the same order; what differs is in RECIPES. Results that are there are kept, so the
command can be stopped and started again."""
import argparse, json, os, sys, tempfile
from pathlib import Path
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
sys.path[0] = str(Path(__file__).resolve().parents[1])
from minimind.config import PretrainConfig
from minimind.metrics import read_metrics
from minimind.trainer import Trainer

OUT = Path(__file__).resolve().parents[1] / "nbs/recipe.json"
RECIPES = {"original": dict(learning_rate=5e-4, warmup_ratio=0.0)}
RECIPES |= {f"adamw {lr:g}": dict(learning_rate=lr, warmup_ratio=0.03) for lr in (1e-3, 2e-3, 4e-3, 8e-3)}
RECIPES |= {f"muon {lr:g}": dict(learning_rate=lr, warmup_ratio=0.03, optimizer="muon") for lr in (2e-3, 4e-3, 8e-3, 1.6e-2)}
RECIPES |= {f"muon {lr:g}, decay 0.1": dict(learning_rate=lr, warmup_ratio=0.03, optimizer="muon", weight_decay=0.1) for lr in (4e-3, 8e-3)}
RECIPES |= {"adamw 4e-3, decay 0.1": dict(learning_rate=4e-3, warmup_ratio=0.03, weight_decay=0.1)}

def run(recipe, text, steps, seed):
    "(tokens so far, validation loss) over a run."
    with tempfile.TemporaryDirectory() as folder:
        places = {f"{name}_dir": f"{folder}/{name}" for name in ("cache", "save", "checkpoint")}
        shape = dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_seq_len=256, dtype="float32")
        t = Trainer(PretrainConfig(data_path=[text] if text else [], val_fraction=0.02, max_steps=steps, batch_size=4, accumulation_steps=2,
                                   epochs=99, eval_interval=10, save_interval=10**6, seed=seed, **shape, **places, **recipe),
                    say=lambda text: None, progress=False)
        if t.fit() != "finished": sys.exit(75)  # a signal
        records = read_metrics(t.config.path("save_dir") / f"{t.config.name}_metrics.jsonl", None)
        t.close()
    tokens, curve = 0, []
    for r in records:
        if r.get("kind", "step") == "step": tokens += r["tokens"]
        elif r["kind"] == "eval": curve.append((tokens, round(r["loss"], 4)))
    return curve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="recipes [all]")
    parser.add_argument("--text", help="a JSONL file; without it, the built-in corpus")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    name = Path(args.text).stem if args.text else "built-in"
    for seed in args.seeds:
        for recipe in args.names or RECIPES:
            kept, key = json.loads(OUT.read_text()) if OUT.exists() else {}, f"{recipe}, seed {seed}"
            if key in kept.get(name, {}): continue
            curve = run(RECIPES[recipe], args.text, args.steps, seed)
            kept = json.loads(OUT.read_text()) if OUT.exists() else {}
            kept.setdefault(name, {})[key] = curve
            OUT.write_text(json.dumps(kept))
            print(f"{name}: {key}: {curve[-1][1]} after {curve[-1][0]:,} tokens", flush=True)
