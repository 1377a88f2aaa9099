"""The disk as faults find it: what a save asks of it, a kill before any of that, and all that a power loss may leave behind."""
import io, itertools, os, pathlib, re, shutil, signal, subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from plants import acknowledge

@contextmanager
def watched(tell):
    "Inside, `tell(kind, path, more)` is called before all that `minimind.checkpoint` asks of the disk: what, where, and to or with what."
    import minimind.checkpoint
    names, opened = "open fsync mkdir rename replace symlink unlink remove rmdir".split(), {}
    old_pathlib = getattr(pathlib, "_normal_accessor", None)  # Python 3.10
    real = {name: getattr(os, name) for name in names}
    def full(path, fd=None): return os.path.join(os.getcwd() if fd is None else opened[fd], os.fspath(path))
    def change(kind):
        def told(path, *args, dir_fd=None, **kw):
            if kind == "symlink": tell(kind, full(args[0]), os.fspath(path))
            else: tell(kind, full(path, dir_fd), full(args[0]) if kind in ("rename", "replace") else None)
            return real[kind](path, *args, **kw, **({} if dir_fd is None else dict(dir_fd=dir_fd)))
        return told
    def folder(path, flags, *args, dir_fd=None, **kw):
        fd = real["open"](path, flags, *args, dir_fd=dir_fd, **kw)
        opened[fd] = full(path, dir_fd)
        return fd
    def fsync(fd):
        if fd in opened: tell("fsync", opened[fd], None)
        return real["fsync"](fd)
    class Written(io.FileIO):
        def write(self, data): tell("write", full(self.name), bytes(data)); return super().write(data)
    def file(path, mode="r", *args, **kw):
        if "w" not in mode: return open(path, mode, *args, **kw)
        tell("create", full(path), None)
        raw = Written(path, "w")
        opened[raw.fileno()] = full(path)
        return io.BufferedWriter(raw) if "b" in mode else io.TextIOWrapper(io.BufferedWriter(raw), *args, **kw)
    changed = dict(open=folder, fsync=fsync) | {name: change(name) for name in names[2:]}
    for name, f in changed.items(): setattr(os, name, f)
    if old_pathlib: vars(old_pathlib).update({name: changed[name] for name in ("mkdir", "rename", "replace", "unlink", "rmdir")})
    minimind.checkpoint.open = file
    try: yield
    finally:
        for name, f in real.items(): setattr(os, name, f)
        if old_pathlib: vars(old_pathlib).clear()
        del minimind.checkpoint.open

def before_each(act):
    "Call `act(save, label, kind, path, more)` before each operation of every save, where the label is the same in every save."
    from minimind.checkpoint import CheckpointStore
    save, seen, within = 0, Counter(), []
    def tell(kind, path, more):
        name = re.sub("[0-9]+", lambda n: "N" if len(n[0]) < 10 else "NNN", "/".join(Path(path).parts[-2:]))
        seen[label := f"{kind} {name}"] += 1
        act(save, f"{label} {seen[label]}" if kind == "write" else label, kind, path, more)
    def told(method, begins):
        def planted(self, *args, **kw):
            nonlocal save
            if within: return method(self, *args, **kw)
            if begins: save += 1; seen.clear()
            within.append(method)
            try:
                with watched(tell): return method(self, *args, **kw)
            finally: within.pop()
        return planted
    CheckpointStore.commit = told(CheckpointStore.commit, True)
    CheckpointStore.rotate = told(CheckpointStore.rotate, False)  # a job of its own, which belongs to the save before

def die(kind, path, more, torn=False):
    "Be killed; `torn`: in the middle of a write."
    if torn and kind == "write":
        with open(path, "ab") as f: f.write(more[:len(more) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at_new(told, hits, torn=False):
    "Be killed before (torn: within) the first operation that the file `hits` does not list; it does then."
    acknowledge(told)
    old = set(Path(hits).read_text().splitlines()) if Path(hits).exists() else set()
    def act(save, label, kind, path, more):
        if label in old or torn and kind != "write": return
        with open(hits, "a") as f: f.write(label + "\n")
        die(kind, path, more, torn)
    before_each(act)

def kill_at(told, save, operation, torn=False, kinds=None):
    "Be killed before operation number `operation` (of these kinds) of save number `save` of this launch."
    acknowledge(told)
    count = Counter()
    def act(at, label, kind, path, more):
        count[at] += kinds is None or kind in kinds
        if (at, count[at]) == (save, operation): die(kind, path, more, torn)
    before_each(act)

def limit_file_size(told, size):
    "No file may grow beyond `size` bytes, as on a disk that is full."
    import resource
    acknowledge(told)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

def make_read_only(path):
    "Whoever opens something below `path` by its name finds a read-only file system, or (not root) a folder without leave to write."
    if os.geteuid(): return os.chmod(path, 0o555)
    subprocess.run(["mount", "--bind", path, path], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True, capture_output=True)

def make_writable(path):
    "Undo `make_read_only`."
    if os.geteuid(): return os.path.exists(path) and os.chmod(path, 0o755)
    while not subprocess.run(["umount", "-l", path], capture_output=True).returncode: pass

def fill(path):
    "Write until there is no space below `path`."
    with open(f"{path}/filler", "wb", buffering=0) as f:
        try:
            while f.write(bytes(4096)): pass
        except OSError: pass

def remove(path):
    "Remove a folder in which another thread may be removing, too."
    while os.path.exists(path): shutil.rmtree(path, ignore_errors=True)

def at_step(step, what, path):
    "Before optimizer step number `step`, take the folder away, make it read-only or fill its disk."
    from minimind.trainer import Trainer
    one_step = Trainer.one_step
    def late(self):
        if self.steps == step - 1 and self.world.is_main: dict(removed=remove, read_only=make_read_only, filled=fill)[what](path)
        return one_step(self)
    Trainer.one_step = late

class Node:
    "A folder (`names` as programs see them, `kept` as the disk surely has them), a file (`data`, `kept`) or a link."
    def __init__(self, kind, data=b""): self.kind, self.names, self.data, self.kept = kind, {}, data, {} if kind == "folder" else b""

class Disk:
    """A disk below the folder `root`, to which a list of operations happens. A change of names is sure once a folder that it changed
    was forced, the bytes of a file once the file was; what is not sure may be there or not, in any combination."""
    def __init__(self, root): self.root, self.top, self.pending = str(root), Node("folder"), []

    def at(self, path):
        "(folder's node, name, the node of that name), None for a node that is not there."
        *folders, name = os.path.relpath(path, self.root).split("/")
        node = self.top
        for f in folders: node = node and node.names.get(f)
        return (node, name, node and node.names.get(name)) if name != "." else (None, ".", node)

    def change(self, *parts): # (folder, {name: node or None}) ...
        self.pending.append(parts)
        for folder, names in parts: folder.names.update(names)

    def do(self, kind, path, more):
        "Let an operation happen; one that fails on a real disk, or on a file that is not known, changes nothing."
        folder, name, node = self.at(path)
        if not folder and not node: pass
        elif kind == "mkdir" and not node: self.change((folder, {name: Node("folder")}))
        elif kind == "create": self.change((folder, {name: Node("file")}))
        elif kind == "symlink": self.change((folder, {name: Node("link", more)}))
        elif not node: pass
        elif kind == "write": node.data += more
        elif kind == "fsync" and node.kind == "file": node.kept = node.data
        elif kind == "fsync":
            for parts in self.pending:
                if any(f is node for f, _ in parts): self.settle(parts)
            self.pending = [parts for parts in self.pending if not any(f is node for f, _ in parts)]
        elif kind in ("rename", "replace"):
            other, new, _ = self.at(more)
            self.change(*([(folder, {name: None, new: node})] if folder is other else [(folder, {name: None}), (other, {new: node})]))
        elif kind in ("unlink", "remove", "rmdir"): self.change((folder, {name: None}))

    def settle(self, parts):
        for folder, names in parts: folder.kept.update(names)

    def subsets(self):
        "Which of the pending changes may have happened: all subsets of up to 8; of more, each beginning, all but one, only one."
        n = len(self.pending)
        if n <= 8: return [[p for i, p in enumerate(self.pending) if bits >> i & 1] for bits in range(1 << n)]
        some = [range(k) for k in range(n + 1)] + [[i] for i in range(n)] + [[i for i in range(n) if i != k] for k in range(n)]
        return [[self.pending[i] for i in chosen] for chosen in some]

    def states(self):
        "All that a power loss now may leave: {path: 'folder', ('link', target) or ('file', bytes)}."
        for happened in self.subsets():
            seen, files = {}, []
            def walk(folder, path):
                names = dict(folder.kept)
                for parts in happened:
                    for f, change in parts:
                        if f is folder: names |= change
                for name, node in names.items():
                    if node is None: continue
                    seen[at := f"{path}{name}"] = node.kind if node.kind == "folder" else (node.kind, node.data)
                    if node.kind == "folder": walk(node, at + "/")
                    if node.kind == "file" and node.kept != node.data: files.append((at, node))
            walk(self.top, "")
            may_hold = [[n.kept, n.data, n.data[:len(n.data) // 2], bytes(len(n.data))] for _, n in files]
            for held in itertools.product(*may_hold): yield seen | {at: ("file", data) for (at, _), data in zip(files, held)}

def lay_out(state, root):
    "Make a state of `Disk.states` in the folder `root`."
    for path, what in state.items():
        if what == "folder": os.mkdir(f"{root}/{path}")
        elif what[0] == "link": os.symlink(what[1], f"{root}/{path}")
        else:
            with open(f"{root}/{path}", "wb") as f: f.write(what[1])
