"""What the project claims about speed, as ratios within one run: `python benchmarks/run.py [NAME ...]`; without a name, all.

Two ways to do the same are timed in alternation; the ratio is that of the medians, with the smallest and largest of the pairs' ratios.
Training is counted in target tokens, of which padding has none. "Naive" is the original's step, written with this project's model:
float32 on a CPU, a padded document a row, all logits, nothing compiled. A row about transformers appears where it is installed, one
about the original where `--original` names a checkout of it, one about real text where `--text` names a JSONL file."""
import argparse, gc, json, os, platform, statistics, subprocess, sys, tempfile, time
from pathlib import Path
from types import SimpleNamespace
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
sys.path[0] = str(Path(__file__).resolve().parents[1])
import numpy as np, torch
from torch.nn import functional as F
from minimind.config import PretrainConfig
from minimind.corpus import write_corpus
from minimind.dataset import Documents, SplitWriter, count_targets, packed_row, padded_row, tokenise
from minimind.model import MiniMindForCausalLM, chunked_loss, next_token_loss
from minimind.tokenizer import load_tokenizer
from minimind.trainer import Trainer

def seconds(f):
    "Seconds that `f` takes for each unit of work; it returns how many it did, None for one."
    gc.collect(); began = time.perf_counter(); n = f()
    return (time.perf_counter() - began) / (n or 1)

RESULTS = []  # what was measured so far

def report(name, ratio, low, high, detail):
    "Print a result and keep it."
    print(f"{name:<72} {ratio:6.2f}  ({low:.2f} to {high:.2f}; {detail})", flush=True)
    RESULTS.append(dict(name=name, ratio=round(ratio, 3), low=round(low, 3), high=round(high, 3), detail=detail))

def paired(name, what, against, repeats, before=lambda: None, faster=False):
    "Print how many times as long `what` takes as `against` (`faster`: how many times as fast it is); `before` is not timed."
    pairs = []
    for i in range(repeats + 1):
        both = {}
        for f in (what, against) if i % 2 else (against, what): before(); both[f] = seconds(f)
        if i: pairs.append((both[what], both[against]))  # the first one warms up
    a, b = (statistics.median(column) for column in zip(*pairs))
    ratio = (lambda x, y: y / x) if faster else (lambda x, y: x / y)
    ratios = sorted(ratio(x, y) for x, y in pairs)
    many = faster and 1 / a > 10
    said = f"{1 / a:,.0f} against {1 / b:,.0f} a second" if many else f"{a:.3g} s against {b:.3g} s"
    report(name, ratio(a, b), ratios[0], ratios[-1], said)

def sized(name, sizes):
    "Report how much memory the first of two ways needs, against the second: lists of bytes."
    a, b = (statistics.median(s) for s in sizes)
    ratios = sorted(x / y for x, y in zip(*sizes))
    report(name, a / b, ratios[0], ratios[-1], f"{a / 2**20:,.0f} MiB against {b / 2**20:,.0f} MiB")

def trainer(folder, **more):
    "The 64M model on built-in texts; `folder` keeps all files."
    data = write_corpus(Path(folder) / "texts.jsonl", 2000)
    places = {f"{name}_dir": f"{folder}/{name}" for name in ("cache", "save", "checkpoint")}
    config = PretrainConfig(**dict(data_path=[str(data)], batch_size=2, accumulation_steps=4) | places | more)
    return Trainer(config, say=lambda text: None, progress=False)

# --- a training step, on the same documents

class Texts(SimpleNamespace):
    "Documents in memory, as `Documents` has them on disk."
    def __getitem__(self, i): return self.tokens[self.offsets[i]:self.offsets[i + 1]]

def texts(n_tokens, from_file=None, folder=None):
    "Documents of `n_tokens` in all: random ones of log-normal length (median 170, mean 200), or those of a JSONL file."
    rng = np.random.default_rng(0)
    if from_file:
        tape = Documents(tokenise(from_file, load_tokenizer(), cache_dir=f"{folder}/cache", progress=False))
        lengths = np.diff(tape.offsets)
        first = rng.permutation(len(tape))
        drawn = [tape[i] for i in first[:1 + np.searchsorted(lengths[first].cumsum(), n_tokens)]]
    else:
        lengths = (np.exp(rng.normal(np.log(170), 0.57, 4 * n_tokens // 170)).astype(int) + 2)
        drawn = [np.concatenate(([1], rng.integers(36, 6400, n - 2), [2])) for n in lengths[:1 + np.searchsorted(lengths.cumsum(), n_tokens)]]
    return Texts(tokens=np.concatenate(drawn).astype(np.int64), offsets=np.cumsum([0, *map(len, drawn)]), n=len(drawn))

def batch_of(row, tape, T, n):
    "`n` rows of `T` tokens as tensors."
    columns = zip(*(row(tape, r, T, 0) for r in range(n)))
    return {k: torch.from_numpy(np.stack(c)) for k, c in zip(("input_ids", "labels", "document_ids"), columns)}

def ours(folder, tape, T, **more):
    "A function that takes one step on packed rows and returns its target tokens."
    t = trainer(folder, max_seq_len=T, use_compile=True, **more)
    batch = batch_of(packed_row, tape, T, -(-(len(tape.tokens) - 1) // (T - 1)))
    n = count_targets(batch["labels"])
    def step(): t.model.train(); t.update(t.backward([(0, batch)], n)[0], 1e-4); return n
    return step, t

def padded_step(model, tape, T, loss_of):
    "A function that takes one step as the original does, on a padded document a row, and returns its target tokens."
    optimizer, batch = torch.optim.AdamW(model.parameters(), lr=1e-4), batch_of(padded_row, tape, T, tape.n)
    batch["labels"] = torch.where(batch["document_ids"] < 0, -100, batch["input_ids"])
    def step():
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
        return count_targets(batch["labels"])
    return step

def naive_loss(model, batch):
    out = model(batch["input_ids"])
    return next_token_loss(out.logits, batch["labels"]) + out.aux_loss

def original_loss(model, batch):
    out = model(batch["input_ids"], labels=batch["labels"])
    return out.loss + out.aux_loss

def originals_model(checkout, config):
    "The model of a checkout of the original, of the same shape."
    sys.path.insert(1, str(Path(checkout).resolve()))
    from model import model_minimind as m
    shape = ("hidden_size", "num_hidden_layers", "use_moe", "num_attention_heads", "num_key_value_heads", "vocab_size")
    return m.MiniMindForCausalLM(m.MiniMindConfig(**{k: getattr(config, k) for k in shape}))

def qwen3(config):
    "transformers' model of the same shape; None where it is not installed."
    try: import transformers
    except ImportError: return None
    same = {k: getattr(config, k) for k in "hidden_size num_hidden_layers vocab_size head_dim num_attention_heads num_key_value_heads "
            "intermediate_size max_position_embeddings rms_norm_eps".split()}
    same |= dict(rope_parameters=dict(rope_type="default", rope_theta=config.rope_theta), use_cache=False, attn_implementation="sdpa")
    if not config.use_moe: return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**same, tie_word_embeddings=True))
    more = dict(num_experts=config.num_experts, num_experts_per_tok=config.num_experts_per_tok, decoder_sparse_step=1,
                moe_intermediate_size=config.moe_intermediate_size, norm_topk_prob=config.norm_topk_prob)
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**same, **more, tie_word_embeddings=True))

def qwen3_step(model, tape, T):
    "A function that takes one step with transformers' model in bfloat16, on packed rows, and returns its target tokens."
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = batch_of(packed_row, tape, T, -(-(len(tape.tokens) - 1) // (T - 1)))
    def step():
        with torch.autocast("cpu", torch.bfloat16): loss = model(batch["input_ids"], labels=batch["labels"]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
        return count_targets(batch["labels"])
    return step

def compared(name, folder, args, T, tokens, from_file=None, peers=True, **more):
    "Print rows for a step on the same documents: against naive, the original and transformers."
    tape = texts(tokens, from_file, folder)
    step, t = ours(folder, tape, T, **more)
    def row(against, other): paired(f"{name}: tokens a second, against {against}", step, other, args.repeats, faster=True)
    config = t.model.config
    row("naive", padded_step(MiniMindForCausalLM(config), tape, T, naive_loss))
    if args.original: row("the original", padded_step(originals_model(args.original, config), tape, T, original_loss))
    if peers and (peer := qwen3(config)): row("transformers, bfloat16, packed", qwen3_step(peer, tape, T))
    t.close()

def step340(folder, args):
    "The 64M model, rows of 340 tokens."
    compared("64M, rows of 340", folder, args, 340, 6400)

def step512(folder, args):
    "Width 512, rows of 512 tokens."
    compared("width 512, rows of 512", folder, args, 512, 4080, hidden_size=512, peers=False)

def step2048(folder, args):
    "The 64M model, rows of 2,048 tokens."
    compared("64M, rows of 2,048", folder, args, 2048, 2040, peers=False)

def moe(folder, args):
    "The 198M mixture of four experts, rows of 340 tokens."
    compared("198M mixture, rows of 340", folder, args, 340, 6400, use_moe=True)

def text(folder, args):
    "The 64M model on real text, rows of 340 tokens."
    if args.text: compared(f"64M on {Path(args.text).name}", folder, args, 340, 2700, args.text, peers=False)

# --- memory

def status(key): return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

def peak(f):
    "Bytes at the highest point while `f` runs, above those before (Linux)."
    gc.collect(); before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset: reset.write("5")
    f()
    return status("VmHWM") - before

def child(folder, kind, use_moe):
    "Bytes that a training step needs in all, model and optimizer included, measured in a process of its own."
    tape, before = texts(2700), status("VmRSS")
    if kind == "ours": step, _ = ours(folder, tape, 340, use_moe=use_moe)
    else: step = padded_step(MiniMindForCausalLM(trainer(folder, use_moe=use_moe).model.config), tape, 340, naive_loss)
    step(); step(); gc.collect()
    with open("/proc/self/clear_refs", "w") as reset: reset.write("5")
    step()
    print(status("VmHWM") - before)

def memory(folder, args):
    "The most memory that a step needs, model and optimizer included."
    if not os.path.exists("/proc/self/clear_refs"): return print("memory is measured on Linux only")
    for use_moe in (False, True):
        needed = lambda kind: int(subprocess.run([sys.executable, __file__, "--child", kind, str(int(use_moe))], check=True,
                                                 capture_output=True, text=True).stdout.split()[-1])
        sizes = [[needed(kind) for _ in range(min(3, args.repeats))] for kind in ("ours", "naive")]
        sized(f"{'198M mixture' if use_moe else '64M'}, rows of 340: peak memory of a step, against naive", sizes)

def logits(folder, args):
    "Head and loss for a vocabulary of 151,936 and 2,048 tokens, in bfloat16: without all logits, against with."
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(1, 2048, 768, generator=g), torch.randn(151_936, 768, generator=g) * 0.02
    labels = torch.randint(151_936, (1, 2048), generator=g)
    def run(loss_of):
        h, w = hidden.clone().requires_grad_(), weight.requires_grad_()
        w.grad = None
        with torch.autocast("cpu", torch.bfloat16): loss_of(h, w).backward()
    full, chunked = (lambda: run(lambda h, w: next_token_loss(F.linear(h, w), labels))), (lambda: run(lambda h, w: chunked_loss(h, w, labels)))
    paired("head and loss, vocabulary 151,936: speed, against all logits", chunked, full, args.repeats, faster=True)
    if os.path.exists("/proc/self/clear_refs"):
        run(lambda h, w: chunked_loss(h, w, labels))  # the gradient's own memory is there in both
        sized("head and loss, vocabulary 151,936: extra memory, against all logits", [[peak(f) for _ in range(3)] for f in (chunked, full)])

# --- the rest of a run

def write(folder, args):
    "Generation of 384 tokens after 16, one text at a time, the 64M model."
    model, ids = MiniMindForCausalLM().eval(), torch.randint(36, 6400, (1, 16), generator=torch.Generator().manual_seed(0))
    new = 384
    def ours(): model.generate(ids, new, temperature=0.8, seed=0, eos_token_id=-1); return new
    def row(against, other): paired(f"writing {new} tokens: tokens a second, against {against}", ours, other, args.repeats, faster=True)
    if peer := qwen3(model.config):
        peer.eval().load_state_dict(model.state_dict()); peer.config.use_cache = True
        how = dict(max_new_tokens=new, do_sample=True, temperature=0.8, top_k=0, eos_token_id=None, pad_token_id=0, use_cache=True)
        row("transformers", lambda: peer.generate(ids, attention_mask=torch.ones_like(ids), **how) is None or new)
    if args.original:
        own = originals_model(args.original, model.config).eval()
        row("the original", lambda: own.generate(ids, max_new_tokens=new, temperature=0.8, eos_token_id=-1) is None or new)

def pair_of_processes(args):
    "In each of two processes: steps of 8 micro-batches that exchange gradients once, and ones that do so each time."
    from contextlib import nullcontext
    import minimind.trainer
    from minimind.distributed import held_back
    with tempfile.TemporaryDirectory() as folder:
        t = trainer(args.folder, batch_size=2, accumulation_steps=8, threads=1, save_dir=folder, checkpoint_dir=folder)
        t.plan = t.plan.__class__(**vars(t.plan) | dict(global_batch=32))
        def step_with(exchange): minimind.trainer.held_back = exchange; t.epoch = t.position = 0; t.one_step()
        def once(): step_with(held_back)
        def each(): step_with(lambda *a, **kw: nullcontext())
        paired("two processes, 8 micro-batches a step: speed, against exchanging gradients each time", once, each, args.repeats, faster=True)
        if t.world.is_main: print("RESULT " + json.dumps(RESULTS[-1]), flush=True)

def processes(folder, args):
    "A step on two processes: gradients are exchanged once, against at each micro-batch."
    trainer(folder)  # writes and tokenises the text
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__,
                           "--child", "pair", "0", "--folder", folder, "--repeats", str(args.repeats)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines: sys.exit(done.stderr[-2000:])
    r = json.loads(lines[0][7:])
    report(*(r[k] for k in ("name", "ratio", "low", "high", "detail")))

def busy(folder, args):
    "Useful arithmetic of a step, rows of 340, as a share of what a large matrix product in bfloat16 reaches here."
    tape = texts(6400)
    step, t = ours(folder, tape, 340)
    a, b = (torch.randn(4096, 4096).bfloat16() for _ in range(2))
    rates = []
    for i in range(args.repeats + 1):
        needed, product = seconds(step), seconds(lambda: (a @ b) is None)
        if i: rates.append((t.flops(1) / needed, 2 * 4096**3 / product))
    ratios = sorted(x / y for x, y in rates)
    useful, most = (statistics.median(column) for column in zip(*rates))
    report("64M, rows of 340: useful arithmetic, as a share of a large product's", useful / most, ratios[0], ratios[-1],
           f"{useful / 1e9:,.0f} of {most / 1e9:,.0f} GFLOP/s")

def same_bits(folder, args):
    "A step with gradients added in fixed point, against one with floating point: 4 micro-batches of 2 rows of 340 tokens."
    one, other = (trainer(folder, same_bits=b, save_weight=f"bits{b:d}") for b in (True, False))
    def step(t): t.one_step()
    paired("step, --same_bits 1 against 0", lambda: step(one), lambda: step(other), args.repeats)

def save(folder, args):
    "A checkpoint of the 64M model: against `torch.save` of the same tensors, and the time that training stands still for it."
    now, later = trainer(folder, save_weight="now"), trainer(folder, save_weight="later", async_save=True)
    for t in (now, later): t.one_step()
    def plain(forced=False):
        files, _ = now.checkpoint()
        for name, data in files.items():
            data = data(files) if callable(data) else data
            with open(f"{folder}/{name}", "wb") as f:
                torch.save(data, f); f.flush()
                if forced: os.fsync(f.fileno())
    def whole(): now.steps += 1; assert now.save()
    def background(): later.steps += 1; later.save()
    def rest():
        for t in (now, later): t.settle(); t.tidied()  # what a thread does beside the training
    paired("save, against torch.save of the same files", whole, plain, args.repeats, rest)
    paired("save, against torch.save and fsync of the same files", whole, lambda: plain(True), args.repeats, rest)
    paired("training stands still: --async_save 1, against torch.save", background, plain, args.repeats, rest)
    for t in (now, later): t.close()

def start(folder, args):
    "The first batch of a resume at any position, and the opening of a tokenised corpus of 10^8 tokens."
    t, times = trainer(folder, batch_size=16, accumulation_steps=1), []
    t.plan, rng = t.plan.__class__(**vars(t.plan) | dict(rows=1_400_000)), np.random.default_rng(0)
    rows, t.data = t.data, SimpleNamespace(__getitems__=lambda rows: rows_of.__getitems__([r % len(rows_of) for r in rows]))
    rows_of = rows
    for _ in range(args.repeats):
        t.rows_at = t.order_of = None
        at = int(rng.integers(87_500)) * 16
        times.append(seconds(lambda: t.fetch(at, at + 16) and None))
    print(f"{'first batch of a resume, at a chance position of 1.4 million rows':<72} {statistics.median(times):6.3f} s  (up to {max(times):.3f})")
    (big := Path(folder) / "big").mkdir()
    writer = SplitWriter(big, "train", "<u2")
    for _ in range(50): writer.add([[1] * 200] * 10_000, 0)
    (big / "header.json").write_text(json.dumps(dict(dtype="<u2", splits=dict(train=writer.close()))))
    times, before = [], status("VmRSS") if os.path.exists("/proc/self/status") else 0
    for _ in range(args.repeats): times.append(seconds(lambda: Documents(big) and None))
    grown = status("VmRSS") - before if before else 0
    print(f"{'opening a tokenised corpus of 100 million tokens':<72} {statistics.median(times) * 1e3:6.2f} ms (+{grown / 2**20:.1f} MiB)")

ALL = dict(step340=step340, step512=step512, step2048=step2048, moe=moe, text=text, busy=busy, processes=processes, memory=memory, logits=logits,
           write=write, same_bits=same_bits, save=save, start=start)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(ALL)} [all]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--original", help="a checkout of the original, to be measured as well")
    parser.add_argument("--text", help="a JSONL file, for the row about real text")
    parser.add_argument("--write", action="store_true", help="keep the results for notebook 15 (those of rows that were not run stay)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.names) - set(ALL): parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(ALL)}")
    if args.child and args.child[0] == "pair": pair_of_processes(args); sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        if args.child: child(folder, args.child[0], args.child[1] == "1"); sys.exit()
    machine = (f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
               f"Python {platform.python_version()}, medians of {args.repeats} pairs")
    print(machine)
    for name in args.names or ALL:
        with tempfile.TemporaryDirectory() as folder: ALL[name](folder, args)
    if args.write:
        path = Path(__file__).resolve().parents[1] / "nbs/benchmarks.json"
        old = json.loads(path.read_text())["results"] if path.exists() else []
        new = {r["name"]: r for r in (*old, *RESULTS)}
        path.write_text(json.dumps(dict(machine=machine, results=list(new.values())), indent=1) + "\n")
