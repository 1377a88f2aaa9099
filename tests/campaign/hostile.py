"""Hostile files, and the forked process that opens one after the other as a run would."""
import hashlib, io, json, os, pickle, shutil, signal, stat, struct, sys, tarfile, time, traceback, zipfile, zlib
from pathlib import Path
import torch
try: import resource
except ImportError: resource = None  # Windows

class Calls:
    "Pickled; who unpickles it calls `f(*args)`."
    def __init__(self, f, *args): self.call = f, args
    def __reduce__(self): return self.call

def odd(tensor, size, stride, offset=0):
    "Pickles as a view of the tensor's storage that `torch` would not make."
    return Calls(torch._utils._rebuild_tensor_v2, tensor._typed_storage(), offset, size, stride, False, {})

class Place:
    "One case's folder: a run of four steps (generations 2 and 4), victims beside it, and the marker that executed code leaves."
    def __init__(self, folder, base):
        self.folder, self.run, self.marker = folder, folder / "run", folder / "executed"
        self.out, self.checkpoints, self.cache = (self.run / name for name in ("out", "checkpoints", "cache"))
        self.gens, self.visible = self.checkpoints / ".pretrain_16.gens", self.checkpoints / "pretrain_16_resume.pth"
        self.newest, self.older = self.gens / "0000000004", self.gens / "0000000002"
        shutil.copytree(base / "out", self.out, symlinks=True); shutil.copytree(base / "checkpoints", self.checkpoints, symlinks=True)
        for name in ("cwd", "home", "victims/folder"): (folder / name).mkdir(parents=True)
        self.victim, self.empty, self.victims = folder / "victims/bashrc", folder / "victims/empty", folder / "victims/folder"
        self.victim.write_text("export PRECIOUS=1\n"); self.empty.touch(); (self.victims / "letter").write_text("dear\n")
        self.flags, self.text = [], folder / "log.txt"

    def seal(self, raw=None, change=None, data=None):
        "Make the newest generation hold these bytes, or this data, under a manifest that is right (after `change` to it)."
        from minimind.checkpoint import seal
        if data is not None: torch.save(data, self.newest / "resume.pth")
        if raw is not None: (self.newest / "resume.pth").write_bytes(raw)
        manifest = json.loads((self.newest / "manifest.json").read_text())
        digest = hashlib.sha256((content := (self.newest / "resume.pth").read_bytes())).hexdigest()
        manifest["files"]["resume.pth"] = dict(size=len(content), sha256=digest)
        if change: manifest = change(manifest) or manifest
        (self.newest / "manifest.json").write_text(json.dumps(seal(manifest)))

    def original(self, raw):
        "Be a folder in which the original left its resume file."
        shutil.rmtree(self.gens); self.visible.unlink(); self.visible.write_bytes(raw)

    def weights(self, raw):
        "Offer these bytes to `--from_weight evil`."
        (self.out / "evil_16.pth").write_bytes(raw)
        self.flags = ["--from_resume", "0", "--from_weight", "evil", "--save_weight", "fresh"]

def pickled(data):
    "`data` as the bytes of torch's zip file."
    torch.save(data, f := io.BytesIO())
    return f.getvalue()

def legacy(data):
    torch.save(data, f := io.BytesIO(), _use_new_zipfile_serialization=False)
    return f.getvalue()

def tar(data):
    "As torch wrote before 2016."
    f = io.BytesIO()
    with tarfile.open(fileobj=f, mode="w") as t:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            info, content = tarfile.TarInfo(name), pickle.dumps(data, 2)
            info.size = len(content); t.addfile(info, io.BytesIO(content))
    return f.getvalue()

def entries_of(raw):
    with zipfile.ZipFile(io.BytesIO(raw)) as z: return [(i.filename, z.read(i), {}) for i in z.infolist()]

def zip_of(entries):
    "A zip file of (name, bytes, lies): lies may claim another method, size, packed size, crc or flag."
    body, directory = [], []
    at = 0
    for name, data, lies in entries:
        says = dict(method=0, size=len(data), packed=len(data), crc=zlib.crc32(data), flag=0, at=at) | lies
        about = struct.pack("<HHHHHIIIHH", 20, says["flag"], says["method"], 0, 33, says["crc"], says["packed"], says["size"], len(name.encode()), 0)
        directory.append(b"PK\1\2" + struct.pack("<H", 20) + about + struct.pack("<HHHII", 0, 0, 0, 0, says["at"]) + name.encode())
        body.append(b"PK\3\4" + about + name.encode() + data)
        at += len(body[-1])
    n, size = len(entries), sum(map(len, directory))
    return b"".join(body + directory) + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, min(n, 65535), min(n, 65535), size, at, 0)

def packed_zeros(megabytes):
    "Deflated zeros, a thousand times smaller, and what a zip entry must claim about them."
    c, crc, block = zlib.compressobj(9, zlib.DEFLATED, -15), 0, bytes(1 << 20)
    packed = (c.compress(block) + c.flush(zlib.Z_FULL_FLUSH)) * megabytes + c.flush()
    for _ in range(megabytes): crc = zlib.crc32(block, crc)
    return packed, dict(method=8, size=megabytes << 20, crc=crc)

def inventory(folder, leave_out=()):
    "What lies below a folder: kind, mode, link target or bytes of each name."
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if any(path == x or x in path.parents for x in leave_out): continue
        mode = path.lstat().st_mode
        what = os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        found[str(path.relative_to(folder))] = stat.S_IFMT(mode), what
    return found

class TooLate(BaseException): "Raised in a case that doesn't end."

def late(*args): raise TooLate

def open_all(cases, results, seconds, spare):
    "In a forked process: run each (folder, flags) there; a line each in `results`: exit code, what was raised, growth of the peak memory."
    from minimind.pretrain import main, parser
    scale = 1 if sys.platform == "darwin" else 1024
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    signal.signal(signal.SIGALRM, late)
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + spare, resource.RLIM_INFINITY))
    for folder, flags in cases:
        os.chdir(f"{folder}/cwd"); os.environ["HOME"] = f"{folder}/home"
        out = os.open(f"{folder}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1); os.dup2(out, 2); os.close(out)
        sys.stdout, sys.stderr = (open(1, "w", buffering=1, closefd=False, encoding="utf-8") for _ in range(2))
        before, began, raised = peak(), time.monotonic(), None
        signal.alarm(seconds)
        try: code = main(parser.parse_args(flags))
        except SystemExit as e: code = e.code
        except BaseException: code, raised = None, traceback.format_exc()
        signal.alarm(0)
        with open(results, "a") as f: f.write(json.dumps([code, raised, peak() - before, time.monotonic() - began]) + "\n")

def listening(path):
    "Planted: after its second step each process appends [rank, addresses that its sockets listen on] to `path`."
    from minimind.trainer import Trainer
    one_step = Trainer.one_step
    def step(self):
        record = one_step(self)
        if self.steps == 2:
            there = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
            mine = {p.rpartition("[")[2].rstrip("]") for p in there if "socket:[" in p}
            rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]]
            found = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in mine]
            with open(path, "a") as f: f.write(json.dumps([self.world.rank, found]) + "\n")
        return record
    Trainer.one_step = step
