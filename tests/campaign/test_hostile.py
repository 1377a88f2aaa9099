"""Hostile files run no code, are never written through, take no memory, and are refused in one line that names them."""
import builtins, copy, io, json, os, pickle, random, reprlib, shutil, subprocess, zlib
from functools import partial
from pathlib import Path
import pytest, torch
from helpers import resume_data
from hostile import Calls, Place, entries_of, inventory, legacy, listening, odd, open_all, packed_zeros, pickled, resource, tar, zip_of
from minimind.config import PretrainConfig, UserError
from world import FORK, go, small_world

pytestmark = [pytest.mark.skipif(resource is None or not hasattr(os, "mkfifo"), reason="needs the links, pipes and limits of a Unix"),
              pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")]
ESCAPE = "\x1b]0;owned\x07\x1b[31mred"
REFUSED, TAKEN, EITHER = {2}, {75}, {2, 75}  # exit codes: each run is stopped after a step

@pytest.fixture(scope="module")
def base(tmp_path_factory):
    "A run of six steps that was stopped after its fourth: `folder`, its `flags`, its resume data (`good`, `raw`) and weights (`half`)."
    folder = tmp_path_factory.mktemp("base")
    flags = [*map(str, small_world(folder)), "--max_steps", "6", "--save_interval", "2"]
    go(folder, [*flags, "--stop_after", 4], want=75)
    raw, half = ((folder / name).read_bytes() for name in ("checkpoints/pretrain_16_resume.pth", "out/pretrain_16.pth"))
    return dict(folder=folder, flags=flags, good=resume_data(folder, "pretrain_16"), raw=raw, half=half)

@pytest.fixture
def attack(base, tmp_path, campaign):
    "A function that tries cases {name: (plant, exit codes that are right, *words that are said)}, a sample of them in CI, and records them."
    def run(cases, few=10**6):
        names, wrong = random.Random(5).sample(list(cases), min(len(cases), campaign.cases(few, 10**6))), []
        for k in range(0, len(names), 100):
            (folder := tmp_path / f"from{k}").mkdir()
            wrong += tried(base, folder, {name: cases[name] for name in names[k:k + 100]})
            shutil.rmtree(folder)
        assert not wrong, f"{len(wrong)} faults in {len(names)} cases\n" + "\n".join(wrong)
        campaign.passed("hostile files", len(names))
    return run

def tried(base, tmp_path, cases, seconds=10, spare=3 << 30):
    "What was wrong with any of the cases, in words."
    places, jobs, cache, results = [], [], base["folder"] / "cache", tmp_path / "results"
    for i, (plant, *_) in enumerate(cases.values()):
        places.append(place := Place(tmp_path / str(i), base["folder"]))
        where = ["--cache_dir", cache, "--save_dir", place.out, "--checkpoint_dir", place.checkpoints]
        plant(place)
        jobs.append((str(place.folder), [*base["flags"], *map(str, [*where, "--from_resume", 1, "--stop_after", 1, *place.flags])]))
    outside = lambda: [inventory(base["folder"], [cache]), *(inventory(p.folder, [p.run, p.text]) for p in places)]
    before = outside()
    results.touch()
    child = FORK.Process(target=open_all, args=(jobs, str(results), seconds, spare))
    child.start(); child.join(seconds + 2 * len(jobs)); child.kill(); child.join()
    lines = results.read_text().splitlines()
    said = [(name, wrong) for (name, case), place, line in zip(cases.items(), places, lines) for wrong in judged(place, json.loads(line), *case[1:])]
    if len(lines) < len(cases): said.append((list(cases)[len(lines)], f"the process ended with {child.exitcode}"))
    names = ["base", *cases]
    said += [(name, f"written outside: {[k for k in a | b if a.get(k) != b.get(k)]}") for name, a, b in zip(names, before, outside()) if a != b]
    said += [(name, "code was executed") for name, place in zip(cases, places) if place.marker.exists()]
    return [f"{name}: {wrong}" for name, wrong in said]

def judged(place, line, codes, *words):
    "What is wrong with how one case ended."
    (code, raised, grown, _), text = line, place.text.read_text(errors="replace")
    if raised: yield f"{raised.strip()[-400:]!r}"
    elif code not in codes: yield f"exit code {code}, not in {codes}: {text[-300:]!r}"
    if "Traceback" in text or code and text.count("minimind-pretrain: error: ") != (code != 75): yield f"not one line: {text[-2000:]!r}"
    if lack := [w for w in words if w not in text]: yield f"{lack} not in {text[-1000:]!r}"
    if any(c < " " and c not in "\n\t" or "\x7f" <= c < "\xa0" for c in text): yield f"raw characters reach the terminal: {text[-1000:]!r}"
    if len(max(text.splitlines(), key=len, default="")) > 3000: yield f"{len(text)} characters are said"
    if grown > 500 << 20: yield f"{grown >> 20} MB of memory"
    for saved in place.checkpoints.glob(".*.gens/*[13567]/resume.pth"):
        data = torch.load(saved, weights_only=True)
        numbers = [*data["model"].values(), *(t for s in data["optimizer"]["state"].values() for t in s.values())]
        if not all(torch.isfinite(t).all() for t in numbers): yield "numbers that are not finite were saved"

def changed(data, path, value):
    "A copy of nested data with another value at that path; `...` removes it."
    out = copy.copy(data)
    if path[1:]: out[path[0]] = changed(data[path[0]], path[1:], value)
    elif value is ...: del out[path[0]]
    else: out[path[0]] = value
    return out

def test_no_pickle_runs_code(base, attack):
    "Six payloads in seven containers, as the original's resume file, as weights and in a sealed generation: none runs, all are refused by name."
    payloads = dict(system=lambda m: Calls(os.system, f"touch {m}"), exec=lambda m: Calls(builtins.exec, f"open({str(m)!r}, 'w')"),
                    eval=lambda m: Calls(builtins.eval, f"open({str(m)!r}, 'w')"), popen=lambda m: Calls(subprocess.Popen, ["touch", str(m)]),
                    open=lambda m: Calls(open, str(m), "w"), mkdir=lambda m: Calls(os.mkdir, str(m)))
    code = lambda d: pickle.dumps(d, 2)
    inside = [(n, n.endswith("data.pkl"), content) for n, content, _ in entries_of(base["raw"])]
    holders = dict(zip=pickled, plain=pickle.dumps, legacy=legacy, tar=tar,
                   swapped=lambda d: zip_of([(n, code(d) if main else content, {}) for n, main, content in inside]),
                   doubled=lambda d: zip_of([(n, content, {}) for n, _, content in inside] + [(n, code(d), {}) for n, main, _ in inside if main]),
                   script=lambda d: zip_of([("a/data.pkl", code(d), {}), ("a/constants.pkl", code(d), {}), ("a/version", b"3\n", {}), ("a/code/x.py", b"", {})]))
    def plant(place, kind, hold, pay):
        evil = dict(model=pay(place.marker))
        getattr(place, kind)(hold(evil if kind == "weights" else base["good"] | evil))
    attack({f"{kind}, {h}, {p}": (partial(plant, kind=kind, hold=holders[h], pay=payloads[p]), REFUSED, file)
            for kind, file in (("original", "pretrain_16_resume.pth"), ("weights", "evil_16.pth"), ("seal", "resume.pth"))
            for h in holders for p in payloads if h in ("zip", "plain") or p in ("system", "exec")})

def test_zip_files_that_lie(base, attack):
    "Bombs, overlapping and doubled entries, sizes beyond the file and names that climb cost no memory and are refused by name."
    good, (zeros, lies) = entries_of(base["raw"]), packed_zeros(700)
    stem, first = good[0][0].split("/")[0], next(n for n, d, _ in good if "/data/" in n)
    pkl, largest = f"{stem}/data.pkl", max(good, key=lambda e: len(e[1]))
    put = lambda name, content=None, **lies: zip_of([(n, d if content is None or n != name else content, lies if n == name else {}) for n, d, _ in good])
    at = dict(size=len(largest[1]), packed=len(largest[1]), crc=zlib.crc32(largest[1]), at=sum(30 + len(n) + len(d) for n, d, _ in good[:good.index(largest)]))
    more = lambda *entries: zip_of([*good, *entries])
    files = {"a bomb for data.pkl": put(pkl, zeros, **lies), "a bomb for a storage": put(first, zeros, **lies), "a bomb beside": more((f"{stem}/x", zeros, lies)),
             "a size of 4 GB": put(first, size=0xFFFFFFF0, packed=0xFFFFFFF0), "an unpacked size of 4 GB": put(pkl, size=0xFFFFFFF0),
             "sizes that differ": put(first, size=4096), "a place beyond the file": put(first, at=0xFFFFFFF0), "encrypted": put(first, flag=1),
             "an unknown method": put(first, method=99), "a wrong checksum": put(first, crc=1), "all twice": more(*good),
             "overlapping": more(*((f"{stem}/data/x{i}", b"", at) for i in range(50))), "an empty zip": zip_of([]), "half": base["raw"][:len(base["raw"]) // 2],
             "nothing": b"", "no data.pkl": zip_of([e for e in good if e[0] != pkl]), "no storage": zip_of([e for e in good if e[0] != first]),
             "an empty storage": put(first, b""), "climbing names": more(*((n, b"x", {}) for n in ("../../victims/bashrc", "a/../../../x", "/etc/x"))),
             "all names climb": zip_of([("../../victims/" + n.split("/", 1)[1], d, {}) for n, d, _ in good]),
             "zeros in names": zip_of([(n.replace("/", "\0"), d, {}) for n, d, _ in good]),
             "60,000 entries": more(*((f"{stem}/data/x{i}", b"", {}) for i in range(60_000))), "big-endian": put(f"{stem}/byteorder", b"big")}
    harmless = ("60,000 entries", "climbing names", "all names climb", "big-endian")
    attack({f"{kind}: {name}": (lambda place, kind=kind, raw=raw: getattr(place, kind)(raw), EITHER | {3} if name in harmless else REFUSED,
                                *([] if name in harmless or (kind, name) == ("seal", "a wrong checksum") else [file]))
            for kind, file in (("original", "pretrain_16_resume.pth"), ("seal", "resume.pth")) for name, raw in files.items()
            if (kind, name) != ("seal", "a wrong checksum")})  # a sealed file's digest is right; its bytes are as they were written

def laughs(depth):
    "Nested lists: small in a file, endless for whoever walks through them."
    out = 0.0
    for _ in range(depth): out = [out] * 10
    return out

ODD_TENSORS = dict(
    endless=lambda t: odd(t, (10**12,), (0,)), beyond=lambda t: odd(t, (10**10,), (1,)), negative=lambda t: odd(t, (-5,), (1,)),
    far=lambda t: odd(t, tuple(t.shape), t.stride(), 10**10), backwards=lambda t: odd(t, tuple(t.shape), tuple(-s for s in t.stride())),
    thin=lambda t: t[:1].clone().expand(t.shape) if t.dim() else t, point=lambda t: torch.ones(()).expand(t.shape), transposed=lambda t: t.t().contiguous().t(),
    integer=lambda t: t.to(torch.int64), boolean=lambda t: t.to(torch.bool), complex=lambda t: t.to(torch.complex64), double=lambda t: t.double(),
    half=lambda t: t.half(), meta=lambda t: torch.empty_like(t, device="meta"), sparse=lambda t: t.to_sparse() if t.dim() else t.view(1).to_sparse(),
    quantised=lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8), gradient=lambda t: torch.nn.Parameter(t.clone()),
    nan=lambda t: torch.full_like(t, float("nan")), infinite=lambda t: t + float("inf"), negated=lambda t: -t - 1, flat=lambda t: torch.cat((t.flatten(), t.flatten())),
    none=lambda t: None, text=lambda t: ESCAPE, laughs=lambda t: laughs(9), claimed=lambda t: Calls(torch.Tensor, 10**10), buffer=lambda t: Calls(bytearray, 10**10))
USUAL = ("thin", "point", "transposed", "integer", "boolean", "double", "half", "gradient")  # may be taken for the numbers that they hold

def test_odd_tensors(base, attack):
    "Endless, thin, foreign and unfinished tensors among weights and moments: no memory, no crash, no NaN that is saved; only plain numbers are taken."
    good, half, cases = base["good"], torch.load(io.BytesIO(base["half"]), weights_only=True), {}
    name, state, theirs = "model.layers.0.mlp.gate_proj.weight", good["optimizer"]["state"], changed(good, ("minimind",), ...)
    for kind, make in ODD_TENSORS.items():
        codes = EITHER if kind in USUAL else REFUSED
        plain = EITHER if kind in (*USUAL, "negated") else REFUSED
        cases[f"weights {kind}"] = lambda place, m=make: place.weights(pickled(half | {name: m(half[name])})), plain
        cases[f"original {kind}"] = lambda place, m=make: place.original(pickled(changed(theirs, ("model", name), m(theirs["model"][name])))), plain
        cases[f"model {kind}"] = lambda place, m=make: place.seal(data=changed(good, ("model", name), m(good["model"][name]))), plain
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            if moment == "step" and kind in ("transposed", "backwards"): continue  # a single number has no directions
            sign = EITHER if moment == "exp_avg" and kind == "negated" else codes
            value = lambda m=make, moment=moment: changed(good, ("optimizer", "state", 1, moment), m(state[1][moment]))
            cases[f"{moment} {kind}"] = lambda place, value=value: place.seal(data=value()), sign
    attack(cases, few=45)

def test_moments_have_memory_of_their_own():
    "Moments that share memory, with each other or within themselves, are copied or refused: a fused step would write past them."
    from minimind.trainer import load_optimizer, make_optimizer
    from types import SimpleNamespace
    model, plan = torch.nn.Linear(8, 8), SimpleNamespace(learning_rate=0.1, weight_decay=0.0)
    optimizer = make_optimizer(model, plan)
    model(torch.ones(2, 8)).sum().backward(); optimizer.step()
    whole = torch.zeros(64)
    for first in (torch.zeros(()).expand(8, 8), torch.zeros(8, 1).expand(8, 8), whole.view(8, 8), torch.as_strided(whole, (8, 8), (1, 1))):
        state = copy.deepcopy(optimizer.state_dict())
        state["state"][0] |= dict(exp_avg=first, exp_avg_sq=whole.view(8, 8))
        another = make_optimizer(model, plan)
        try: load_optimizer(another, state)
        except UserError: continue
        moments = [another.state[model.weight][k] for k in ("exp_avg", "exp_avg_sq")]
        assert all(m.is_contiguous() for m in moments) and len({m.untyped_storage().data_ptr() for m in [*moments, whole]}) == 3

def test_manifests(base, attack):
    "A manifest that is no manifest never breaks a run: the generation before it is taken, and the reason names it."
    deep = b"[" * 100_000
    raws = [b"", b"[]", b"5", b"null", b'"x"', b"{", b"{}", deep, deep + b"]" * 100_000, b'{"a":' * 100_000, b"\xff\xfe\x00", b"9" * 5000, b'{"generation": %s}' % (b"9" * 5000),
            b"1e999", b"NaN", b"\xef\xbb\xbf{}", b"\x00" * 100, b" " * (64 << 20), b"[%s]" % (b"{}," * 3_000_000 + b"{}")]
    def write(raw): return lambda place: (place.newest / "manifest.json").write_bytes(raw)
    cases = {f"raw {raw[:12]!r} of {len(raw)}": (write(raw), TAKEN, "0000000004", "using generation 2") for raw in raws}
    files = lambda change: lambda m: m | dict(files=change(m["files"]))
    entry = lambda **kw: files(lambda f: f | {"resume.pth": f["resume.pth"] | kw})
    changes = {f"generation {value!r:.20}": lambda m, v=value: m | dict(generation=v)
               for value in ("x", -1, 10**30, 10**300, 4.5, None, [4], {}, True, "0000000004", ESCAPE, float("inf"))}
    changes |= {"no generation": lambda m: {k: v for k, v in m.items() if k != "generation"}, "no files": lambda m: {k: v for k, v in m.items() if k != "files"},
                "no resume.pth": files(lambda f: {k: v for k, v in f.items() if k != "resume.pth"}), "files of lists": files(lambda f: {k: [1] for k in f}),
                "a million files": files(lambda f: f | {f"x{i}": f["weights.pth"] for i in range(200_000)}), "size '5'": entry(size="5"), "size -1": entry(size=-1),
                "size 10**30": entry(size=10**30), "no digest": entry(sha256=None), "a list for a digest": entry(sha256=[[]]), "an escaping digest": entry(sha256=ESCAPE), "no size": entry(size=None)}
    changes |= {f"files {value!r}": files(lambda f, v=value: v) for value in ([], {}, "x", 5, None, [["resume.pth", 1]])}
    changes |= {f"a file {name!r:.30}": files(lambda f, n=name: f | {n: dict(size=19, sha256="0" * 64)})
                for name in ("../../../../victims/bashrc", "/etc/passwd", "", ".", "..", "a/../resume.pth", "nul\0", ESCAPE, "x" * 300, "/dev/zero")}
    for name, change in changes.items(): cases[name] = lambda place, c=change: place.seal(change=c), TAKEN, "0000000004", "using generation 2"
    harmless = {f"run_id {value!r:.20}": lambda m, v=value: m | dict(run_id=v) for value in (ESCAPE, 5, None, {}, [], "../../x", "x" * 100_000)}
    for name, change in harmless.items(): cases[name] = lambda place, c=change: place.seal(change=c), EITHER
    fresh = lambda raw: lambda place: (write(raw)(place), (place.newest.parent / "0000000002/manifest.json").write_bytes(raw), place.flags.extend(["--from_resume", 0]))
    for raw in raws[:12]:
        cases[f"older {raw[:12]!r} of {len(raw)}"] = lambda place, r=raw: (place.older / "manifest.json").write_bytes(r), TAKEN
        cases[f"fresh over {raw[:12]!r} of {len(raw)}"] = fresh(raw), REFUSED, "--overwrite 1"
        cases[f"overwrite {raw[:12]!r} of {len(raw)}"] = lambda place, r=raw: (fresh(r)(place), place.flags.extend(["--overwrite", 1])), TAKEN
    def same_plan(place): place.seal(change=lambda m: {k: v for k, v in m.items() if k != "run_id"}); place.flags += ["--from_resume", 0]
    def escaping(place): place.seal(change=lambda m: m | dict(run_id=ESCAPE)); place.flags += ["--from_resume", 0]
    attack(cases | {"the same plan without a run": (same_plan, EITHER), "the same plan of an escaping run": (escaping, EITHER)}, few=36)

def link(path, target): path.unlink(missing_ok=True); path.symlink_to(target)
def moved(path, target): os.rename(path, target); path.symlink_to(target)

def test_links_pipes_and_devices(base, attack):
    "What is a link to a file elsewhere is not written through, an endless device is not read, and a pipe is not waited for."
    corpus = next(p.name for p in (base["folder"] / "cache").iterdir() if p.is_dir())
    alone = lambda place: (shutil.rmtree(place.gens), place.visible.unlink())
    def own_cache(place): shutil.copytree(base["folder"] / "cache", place.cache); place.flags += ["--cache_dir", place.cache]; return place.cache
    def fresh(place): alone(place); (place.out / "pretrain_16.pth").unlink(); place.flags += ["--from_resume", 0]
    cases = {
        "generations elsewhere": (lambda p: moved(p.gens, p.victims / "gens"), REFUSED, ".pretrain_16.gens"),
        "no generations, elsewhere": (lambda p: (fresh(p), p.gens.symlink_to(p.victims)), REFUSED, ".pretrain_16.gens"),
        "dangling generations": (lambda p: (fresh(p), p.gens.symlink_to(p.victims / "new")), REFUSED, ".pretrain_16.gens"),
        "a generation elsewhere": (lambda p: moved(p.newest, p.victims / "g"), EITHER), "an older one elsewhere": (lambda p: moved(p.older, p.victims / "g"), EITHER),
        "a manifest elsewhere": (lambda p: moved(p.newest / "manifest.json", p.victims / "m"), EITHER), "resume.pth elsewhere": (lambda p: moved(p.newest / "resume.pth", p.victims / "r"), TAKEN),
        "a place for the next generation": (lambda p: (p.gens / ".tmp-6").symlink_to(p.victims), EITHER),
        "the next generation": (lambda p: (p.gens / "0000000006").symlink_to(p.victims), EITHER), "the next generation, dangling": (lambda p: (p.gens / "0000000006").symlink_to(p.victims / "n"), EITHER),
        "both visible names": (lambda p: (link(p.visible, p.victim), link(p.out / "pretrain_16.pth", p.victim)), TAKEN),
        "visible names, dangling": (lambda p: (link(p.visible, p.victims / "new"), link(p.out / "pretrain_16.pth", p.victims / "new")), TAKEN),
        "a folder for a visible name": (lambda p: (p.visible.unlink(), p.visible.symlink_to(p.victims)), EITHER),
        "weights of a fresh run": (lambda p: (fresh(p), link(p.out / "pretrain_16.pth", p.victim)), REFUSED, "pretrain_16.pth"),
        "weights of a fresh run, overwritten": (lambda p: (fresh(p), link(p.out / "pretrain_16.pth", p.victim), p.flags.extend(["--overwrite", 1])), TAKEN),
        "the original's file": (lambda p: (alone(p), link(p.visible, p.victim)), REFUSED, "pretrain_16_resume.pth"), "the original's file, dangling": (lambda p: (alone(p), link(p.visible, p.victims / "new")), REFUSED, "pretrain_16_resume.pth")}
    for name in (".pretrain_16.pth.tmp", "pretrain_16_metrics.jsonl", ".pretrain_16_metrics.jsonl.tmp", ".pretrain_16.lock", "pretrain_16.old0.pth", "pretrain_16_metrics.old0.jsonl"):
        for start in ("resumed", "fresh"):
            for kind in ("victim", "empty", "victims", "new"):
                def plant(p, name=name, kind=kind, start=start):
                    if start == "fresh": fresh(p)
                    link(p.out / name, p.victims / "new" if kind == "new" else getattr(p, kind))
                cases[f"{name} -> {kind}, {start}"] = plant, EITHER
    for name in (".pretrain_16_resume.pth.tmp", ".pretrain_16.lock", ".pretrain_16.owner"):
        for kind in ("victim", "empty", "victims", "new"):
            cases[f"{name} -> {kind}"] = (lambda p, name=name, kind=kind: link(p.checkpoints / name, p.victims / "new" if kind == "new" else getattr(p, kind))), EITHER
    for name in (corpus, f".{corpus}.tmp", f"{corpus}.lock"):
        for kind in ("victim", "empty", "victims", "new"):
            def plant(p, name=name, kind=kind):
                place = own_cache(p) / name
                shutil.rmtree(place, ignore_errors=True); link(place, p.victims / "new" if kind == "new" else getattr(p, kind))
            cases[f"{name[-8:]} in the cache -> {kind}"] = plant, EITHER
    cases |= {"a corpus elsewhere": (lambda p: moved(own_cache(p) / corpus, p.victims / "c"), EITHER),
              "tokens elsewhere": (lambda p: moved(own_cache(p) / corpus / "train.tokens", p.victims / "t"), EITHER), "a header elsewhere": (lambda p: moved(own_cache(p) / corpus / "header.json", p.victims / "h"), EITHER)}
    spots = {"manifest": lambda p: p.newest / "manifest.json", "resume.pth": lambda p: p.newest / "resume.pth", "older manifest": lambda p: p.older / "manifest.json", "owner": lambda p: p.checkpoints / ".pretrain_16.owner",
             "the original's file": lambda p: (alone(p), p.visible)[1], "metrics": lambda p: p.out / "pretrain_16_metrics.jsonl", "fresh metrics": lambda p: (fresh(p), p.out / "pretrain_16_metrics.jsonl")[1],
             "weights": lambda p: (p.weights(b""), p.out / "evil_16.pth")[1], "visible weights": lambda p: p.out / "pretrain_16.pth", "header": lambda p: own_cache(p) / corpus / "header.json", "tokens": lambda p: own_cache(p) / corpus / "train.tokens",
             "texts": lambda p: (p.flags.extend(["--data_path", p.folder / "t.jsonl"]), p.folder / "t.jsonl")[1]} | {
             name: lambda p, name=name: (shutil.copy(base["folder"] / "tokenizer.json", p.folder), p.flags.extend(["--tokenizer_path", p.folder]), p.folder / name)[2] for name in ("tokenizer.json", "tokenizer_config.json")}
    for spot, at in spots.items():
        def pipe(p, at=at): path = at(p); path.unlink(missing_ok=True); os.mkfifo(path)
        def folder(p, at=at): path = at(p); path.unlink(missing_ok=True); path.mkdir()
        cases |= {f"{spot}: a pipe": (pipe, EITHER), f"{spot}: /dev/zero": (lambda p, at=at: link(at(p), "/dev/zero"), EITHER), f"{spot}: a folder": (folder, EITHER)}
    attack(cases, few=50)

ODD = ["abc", -1, 10**30, -10**30, 1.5, float("nan"), float("inf"), None, [], {}, [[]], {"a": 1}, ESCAPE, "a\nb", b"\xff", (1, 2), {1}, 1j, torch.zeros(3), torch.tensor([[7]])]
OURS = {  # where in the resume data; what is refused there besides `ODD`
    ("epoch",): [7], ("minimind", "position"): [77, 12, 0], ("minimind", "steps"): [2, 10**12], ("minimind", "tokens"): [], ("minimind", "skipped"): [],
    ("minimind", "ledger"): ["0" * 64, "zz" * 32], ("minimind", "ledger_before"): ["0" * 64, "zz" * 32], ("minimind", "plan"): [], ("minimind", "fingerprints"): [],
    ("minimind", "last_step"): [[0], [0, 12, "x"], [0, -4, 16], [0, 16, 12], [0, 0, 10**9], [0, 12, 16, 0], [-1, 12, 16], [10**30, 12, 16], [0.0, 12, 16]],
    ("minimind", "machine"): [], ("minimind", "plan", "rows"): [0, 10**12, 60], ("minimind", "plan", "batch_size"): [0], ("minimind", "plan", "global_batch"): [0], ("minimind", "plan", "seed"): [],
    ("minimind", "plan", "epochs"): [0], ("minimind", "plan", "more"): [1], ("minimind", "plan", "learning_rate"): [], ("minimind", "plan", "grad_clip"): [], ("minimind", "plan", "accumulation_steps"): [0],
    ("minimind", "fingerprints", "model"): [], ("minimind", "fingerprints", "tokenizer"): [], ("minimind", "fingerprints", "data"): [], ("minimind", "fingerprints", "packing"): [],
    ("model",): [], ("optimizer",): [], ("optimizer", "state"): [laughs(9)], ("optimizer", "state", 3): [laughs(9)], ("optimizer", "state", 99): [], ("optimizer", "param_groups"): [[{}], [{"params": 5}], [{"params": [0] * 11}]],
    ("optimizer", "param_groups", 0, "params"): [[0] * 11, list(range(1_000_000)), laughs(3)]}
POSSIBLE = {("machine", "{}"), ("machine", "{'a': 1}"), ("state", "{}"), ("tokens", "1000000000000000000000000000000")}

def test_resume_data_of_ours(base, attack):
    "No number, name or table in a sealed resume file is believed: what a run can't have written is refused before the first step."
    good, cases = base["good"], {}
    sealed = lambda path, value: lambda place: place.seal(data=changed(good, path, value))
    for path, more in OURS.items():
        for i, value in enumerate([*ODD, *more]):
            cases[f"{path} {reprlib.repr(value)} {i}"] = sealed(path, value), EITHER if (path[-1], reprlib.repr(value)) in POSSIBLE else REFUSED
        if path[-1] not in ("more", 99): cases[f"no {path}"] = sealed(path, ...), REFUSED
    for path in (("wandb_id",), ("scaler",), ("step",), ("world_size",), ("minimind", "run_id"), ("minimind", "schema"), ("minimind", "machine", "threads"), ("minimind", "machine", "torch"), ("optimizer", "param_groups", 0, "lr"),
                 ("optimizer", "param_groups", 0, "fused"), ("minimind",), ("more",)):
        for i, value in enumerate(ODD): cases[f"{path} {value!r:.30} {i}"] = sealed(path, value), EITHER
    for i, value in enumerate([*ODD, [good], good["model"]]): cases[f"for all {i}"] = lambda place, v=value: place.seal(raw=pickled(v)), REFUSED
    names = {"numbers and words": {5: torch.ones(1), "x": torch.ones(1)}, "an escape": {ESCAPE: torch.ones(1)}, "long": {"x" * 100_000: torch.ones(1)}, "many": {f"x{i}": 1 for i in range(100_000)}}
    for name, more in names.items(): cases[f"weights named by {name}"] = lambda place, m=more: place.seal(data=good | dict(model=good["model"] | m)), REFUSED
    attack(cases, few=50)

def test_scaler_of_a_half_precision_run(base, attack):
    "A gradient scaler's numbers are checked too."
    scaler, possible = torch.amp.GradScaler("cpu", init_scale=2.0**14).state_dict(), {("scale", 4), ("growth_factor", 4), ("backoff_factor", 4), ("_growth_tracker", 20)}
    def plant(place, key, value): place.flags += ["--dtype", "float16"]; place.seal(data=base["good"] | dict(scaler=changed(scaler, (key,), value)))
    attack({f"{key} {v!r:.30} {i}": (partial(plant, key=key, value=v), EITHER if (key, i) in possible else REFUSED)
            for key in scaler for i, v in enumerate([*ODD, 0, -1.0, ...])}, few=16)

def test_resume_data_of_the_originals(base, attack):
    "The original's four numbers are checked as well."
    theirs = {k: v for k, v in base["good"].items() if k != "minimind"}
    cases = {"as it is": (lambda place: place.original(pickled(theirs)), TAKEN)}
    for key in ("epoch", "step", "world_size", "model", "optimizer"):
        for i, value in enumerate([*ODD, 0]):
            codes = TAKEN if key in ("epoch", "step") and type(value) is int and value == 0 else REFUSED
            cases[f"{key} {value!r:.30} {i}"] = lambda place, k=key, v=value: place.original(pickled(theirs | {k: v})), codes, "pretrain_16_resume.pth"
    attack(cases, few=24)

def test_any_leaf_of_a_sealed_file(base, attack, campaign):
    "Any entry of the resume data or of the manifest, exchanged for any odd value: no traceback, no crash, no endless run."
    def leaves(data, path=()):
        yield path
        if isinstance(data, (dict, list)):
            for k in data if isinstance(data, dict) else range(len(data)): yield from leaves(data[k], (*path, k))
    rng, cases = random.Random(7), {}
    manifest = json.loads((base["folder"] / "checkpoints/.pretrain_16.gens/0000000004/manifest.json").read_text())
    where = [("data", p) for p in leaves(base["good"]) if p] + [("manifest", p) for p in leaves(manifest) if p]
    for i in range(campaign.cases(30, 2000)):
        (kind, path), value = rng.choice(where), rng.choice([*ODD, 0, 1, 4, 16, True, ..., *[laughs(9)] * (rng.random() < 0.05)])
        if kind == "manifest" and isinstance(value, (bytes, set, complex, list, torch.Tensor)): value = "abc"
        def plant(place, kind=kind, path=path, value=value):
            if kind == "data": place.seal(data=changed(base["good"], path, value))
            else: place.seal(change=lambda m: changed(m, path, value))
        cases[f"{i} {kind} {path} {reprlib.repr(value)}"] = plant, {0, 2, 3, 75}
    attack(cases)

def test_names():
    "Names are letters, digits, dot, dash and underscore, not too many, and do not begin with a dot; the refusal is one printable line."
    for bad in ("..", ".", "../x", "a/b", "/x", "a\0b", "a b", "a\n", "\n", "", "ü", "名", "٣", "a\x1b[31m", "x" * 300, "a\\b", "~", "$HOME", "a;b", ".x", None, 5.5j):
        for flag in ("save_weight", "from_weight"):
            with pytest.raises(UserError) as e: PretrainConfig(**{flag: bad})
            assert str(e.value).isprintable() and flag in str(e.value) and len(str(e.value)) < 600
    for good in ("pretrain", "a.b-c_d", "-x", "0", "A" * 60): assert PretrainConfig(save_weight=good).save_weight == good

def test_tokenizers_and_texts(base, attack):
    "A hostile tokenizer or text costs no memory and no traceback, and the message names the file."
    spec = json.loads((base["folder"] / "tokenizer.json").read_text())
    deep, cases = b"[" * 100_000, {}
    def tokenizer(place, raw, name="tokenizer.json"):
        (place.folder / "t").mkdir(); shutil.copy(base["folder"] / "tokenizer.json", place.folder / "t"); (place.folder / "t" / name).write_bytes(raw)
        place.flags += ["--tokenizer_path", place.folder / "t", "--from_resume", 0, "--save_weight", "fresh", "--cache_dir", place.cache]
    put = lambda *path, value: json.dumps(changed(spec, path, value)).encode()
    vocab = spec["model"]["vocab"]
    bad = [b"", b"{", b"[1]", deep, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe", b"\0", put("model", value=5), put("model", "vocab", value=5), put("model", "vocab", value=[]), put("model", "merges", value=5),
           put("model", "vocab", value={}), put("model", "vocab", value=vocab | {"x" * 9: -1}), put("model", "vocab", value=vocab | {"x" * 9: 10**12}), put("model", "vocab", value=vocab | {"x" * 9: 4 * 10**9}),
           put("model", "vocab", value=vocab | {"x" * 9: 5 * 10**8}), put("model", "merges", value=[["a", "qqq"]]), put("model", "type", value=ESCAPE), put("added_tokens", value=5), put("added_tokens", value=[{}]), put("added_tokens", value=[ESCAPE]),
           put("pre_tokenizer", value=5), put("pre_tokenizer", value=dict(type=ESCAPE)), put("normalizer", value=dict(type="Precompiled", precompiled_charsmap="AAAA")),
           put("decoder", value=[]), put("version", value=ESCAPE), put("version", value=10**30)]
    for i, raw in enumerate(bad): cases[f"tokenizer {i} {raw[:20]!r}"] = partial(tokenizer, raw=raw), REFUSED, "tokenizer.json"
    odd = [put("truncation", value=dict(direction="Right", max_length=1, strategy="LongestFirst", stride=0)), put("padding", value=dict(strategy=dict(Fixed=10**9), direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0, pad_token="x")),
           put("post_processor", value=None), put("added_tokens", value=spec["added_tokens"] + [dict(spec["added_tokens"][-1], id=10**9, content="far")])]
    for i, raw in enumerate(odd): cases[f"odd tokenizer {i}"] = partial(tokenizer, raw=raw), EITHER
    for i, raw in enumerate([b"", b"[", b"[]", deep, b"\xff"] + [json.dumps(dict(bos_token=v)).encode() for v in (5, ["<|im_start|>"], {"content": 5}, {"content": []}, {"content": {}}, ESCAPE, "x" * 100_000, True)]):
        cases[f"tokenizer_config {i} {raw[:30]!r}"] = partial(tokenizer, raw=raw, name="tokenizer_config.json"), REFUSED, "tokenizer"
    def texts(place, raw, name="d.jsonl"):
        (place.folder / name).write_bytes(raw)
        place.flags += ["--data_path", place.folder / name, "--from_resume", 0, "--save_weight", "fresh", "--cache_dir", place.cache]
    line = lambda text: json.dumps(dict(text=text)).encode() + b"\n"
    fine = line("a word and another word and more words than a row needs, so that there are rows") * 20
    refused = [deep, b'{"text":' * 100_000, b"\0" * 1000, fine + b'{"text": "a\0b"}\n', b'{"text": ' + b"9" * 5000 + b"}\n", b'{"%b": 1}\n' % b"\\u001b[31m", b'{"text": "\\ud800"}\n', b"\x1b[31m\n", b'"\\u001b"\n', b"[" * 3_000_000, fine + b"\xff\n"]
    for i, raw in enumerate(refused): cases[f"texts {i} {raw[:20]!r}"] = partial(texts, raw=raw), REFUSED, "d.jsonl:"
    taken = [fine + line(ESCAPE * 200), fine + line("\0" * 200), fine + line("word " * 400_000), fine + line("a" * 1_000_000), fine + line("\u202e" * 500), fine + line("<|im_start|>" * 500), fine + b'{"text": "%b", "text": "x"}\n' % (b"y" * 99)]
    for i, raw in enumerate(taken): cases[f"texts that are taken {i}"] = partial(texts, raw=raw), TAKEN
    zeros, says = packed_zeros(700)
    bomb = b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + zeros + says["crc"].to_bytes(4, "little") + (says["size"] & 0xFFFFFFFF).to_bytes(4, "little")
    cases["a bomb for texts"] = partial(texts, raw=bomb, name="d.jsonl.gz"), REFUSED, "d.jsonl.gz"
    attack(cases)

def test_two_processes_are_refused_together(base, tmp_path, campaign):
    "A sealed generation that can't be loaded ends both processes with the same line; none waits for the other."
    for i, plant in enumerate((lambda p: p.seal(raw=pickled(Calls(os.system, f"touch {p.marker}"))), lambda p: p.seal(data=changed(base["good"], ("minimind", "position"), "abc")))):
        plant(place := Place(tmp_path / str(i), base["folder"]))
        said = go(place.run, [*base["flags"], "--from_resume", 1], size=2, want=2, timeout=40)
        assert said.count("minimind-pretrain: error: ") == 1 and "resume" in said and "Traceback" not in said and not place.marker.exists()
    campaign.passed("hostile files", 2)

@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's /proc")
def test_only_this_machine_can_connect(tmp_path, campaign):
    "Processes on one machine listen on the loopback interface alone."
    flags = small_world(tmp_path)
    go(tmp_path / "run", [*flags, "--max_steps", 3, "--accumulation_steps", 1], size=2, hook=(listening, str(tmp_path / "listening")))
    found = [json.loads(line) for line in (tmp_path / "listening").read_text().splitlines()]
    assert {rank for rank, _ in found} == {0, 1} and sum(len(a) for _, a in found) >= 2
    assert all(address in ("0100007F", "0" * 24 + "01000000") for _, addresses in found for address in addresses), found
    campaign.passed("hostile files", 1)
