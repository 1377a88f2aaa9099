"""Faults of the disk and kills while it is written to: nothing that was acknowledged is lost, nothing wrong is taken for right."""
import json, os, random, shutil, signal, subprocess
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
import pytest
import torch
from disk import Disk, at_step, kill_at, kill_at_new, lay_out, limit_file_size, make_read_only, make_writable, watched
from helpers import places
from plants import acknowledge
from world import FORK, NAME, Launch, final, go, small_world, weights
from minimind.checkpoint import CheckpointStore, json_or_none, load_original, load_resume, verify
from minimind.config import PretrainConfig, UserError, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

def store_of(folder, name=NAME): return CheckpointStore(name, Path(folder) / "checkpoints", Path(folder) / "out")

def acknowledged(folder):
    "The last step of which a save has returned, 0 without any."
    told = Path(folder) / "told.txt"
    return int(told.read_text().split()[-1]) if told.exists() and told.read_text().split() else 0

def nothing_lost(folder):
    "After a kill: the newest generation is whole and not older than the last save that returned; the visible names lead to whole files."
    store, said, done = store_of(folder), [], acknowledged(folder)
    newest = store.newest(said.append)
    assert not said and (newest or dict(generation=0))["generation"] >= done, (said, newest, done)
    for path in store.visible.values():
        assert path.exists() == os.path.lexists(path) and (path.exists() or not done)
        if path.exists(): assert verify(path.resolve().parent)["generation"] >= done

def attempt(folder, flags, size=1, hook=None, after=None, ranks=None):
    "Launch once, perhaps kill (`ranks` of) it `after` so many seconds; if one process is killed the rest are. Whether it finished."
    launch = Launch(folder, [*flags, "--from_resume", 1], size, hook or (acknowledge, f"{folder}/told.txt"))
    ends = [p.sentinel for p in launch.members]
    if after is not None and not connection.wait(ends, after): launch.kill(ranks=ranks)
    while (running := [p.sentinel for p in launch.members if p.exitcode is None]) and connection.wait(running, 60):
        if -9 in [p.exitcode for p in launch.members]: launch.kill()
    codes = launch.wait(1)
    finished = codes == [0] * size
    assert finished or -9 in codes, f"{codes}\n{launch.text()}"
    nothing_lost(folder)
    return finished

@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "Flags of a run of 20 steps that saves every third, and a function: what an undisturbed run with these flags ends as."
    place, known = tmp_path_factory.mktemp("world"), {}
    flags = [*small_world(place), "--max_steps", 20, "--save_interval", 3]
    def undisturbed(*more, size=1):
        key = (size, *map(str, more))
        if key not in known: go(folder := place / f"whole{len(known)}", [*flags, *more], size); known[key] = final(folder)
        return known[key]
    return flags, undisturbed

def settled(folder, n=2):
    "Whether a run left nothing half-made behind, and its visible names lead to the last of `n` generations."
    store = store_of(folder)
    left = [p.name for d in (store.checkpoint_dir, store.folder, store.save_dir) for p in d.iterdir() if "tmp" in p.name]
    return not left and len(store.generations()) == n and {p.resolve().parent for p in store.visible.values()} == {store.generations()[0]}

def test_killed_before_each_operation_of_a_save(world, tmp_path, campaign):
    "SIGKILL before each thing that a save asks of the disk, first removal of the last one's remains and rotation included."
    flags, undisturbed = world
    kills = 0
    for torn, begun in [(False, 2), (False, 0), (True, 0)][:campaign.cases(1, 3)]:
        folder, often = tmp_path / f"{torn}{begun}", [*flags, "--save_interval", 1]
        if begun: go(folder, [*often, "--stop_after", begun], want=75, hook=(acknowledge, f"{folder}/told.txt"))
        while not attempt(folder, often, hook=(kill_at_new, f"{folder}/told.txt", f"{folder}/hits.txt", torn)): kills += 1
        hits = (folder / "hits.txt").read_text().splitlines()
        assert len(set(hits)) == len(hits) and final(folder) == undisturbed() and settled(folder)
        met = {hit.split()[0] for hit in hits}
        assert met == ({"write"} if torn else {"mkdir", "create", "write", "fsync", "rename", "unlink", "symlink", "replace", "rmdir"})
    campaign.passed("kill -9", kills)

def test_killed_in_the_last_save(world, tmp_path, campaign):
    "After a kill behind the last save's commit the run is complete; going on with it lets the visible names lead to its end."
    flags, undisturbed = world
    flags = [*flags, "--save_interval", 1]
    go(tmp_path / "late", [*flags, "--stop_after", 19], want=75, hook=(acknowledge, f"{tmp_path}/late/told.txt"))
    with_ends = [35, 38, 42, *range(36, 46)][:campaign.cases(3, 13)]
    for k in with_ends:
        folder = shutil.copytree(tmp_path / "late", tmp_path / f"late{k}", symlinks=True)
        assert not attempt(folder, flags, hook=(kill_at, f"{folder}/told.txt", 1, k)) and attempt(folder, flags)
        assert final(folder) == undisturbed() and settled(folder), k
        shutil.rmtree(folder)
    campaign.passed("kill -9", len(with_ends))

def test_killed_at_random_moments(world, tmp_path, campaign):
    "SIGKILL at any time, from outside or in a save (now and then in the background), one process or two, all or one of them."
    flags, undisturbed = world
    rng, kills, runs, want = random.Random(1), 0, 0, campaign.cases(10, 900)
    while kills < want:
        size, seed = (2 if runs % 4 == 1 else 1), runs % 3
        folder, more = tmp_path / f"run{runs}", ["--seed", seed, "--save_interval", 1 + runs % 3, "--async_save", int(runs % 3 == 2)]
        while True:
            if rng.random() < 0.5: how = dict(after=rng.uniform(0.02, 0.5 * size), ranks=rng.choice([None, [rng.randrange(size)]]))
            else: how = dict(hook=(kill_at, f"{folder}/told.txt", rng.randint(1, 3), rng.randint(1, 45), rng.random() < 0.5))
            if attempt(folder, [*flags, *more], size, **how): break
            kills += 1
        assert final(folder) == undisturbed("--seed", seed, size=size) and settled(folder), (runs, seed, size)
        shutil.rmtree(folder); runs += 1
    campaign.passed("kill -9", kills)

def test_killed_while_taking_another_runs_place(world, tmp_path, campaign):
    "A fresh start over a finished run, killed before a rename of its first save: a resume goes on with all of the old run."
    flags, undisturbed = world
    go(tmp_path / "old", flags, hook=(acknowledge, f"{tmp_path}/old/told.txt"))
    for k in (moves := [1, 2, 3, 4, 5][-campaign.cases(3, 5):]):
        folder = shutil.copytree(tmp_path / "old", tmp_path / f"new{k}", symlinks=True)
        launch = Launch(folder, flags, hook=(kill_at, f"{folder}/new.txt", 1, k, False, ("rename", "replace")))
        assert launch.wait() == [-9], launch.text()
        store = store_of(folder)
        assert store.newest()["generation"] == 20 and all(path.exists() for path in store.visible.values())
        go(folder, [*flags, "--from_resume", 1])
        assert final(folder) == undisturbed()
    campaign.passed("kill -9", len(moves))

def tiny(number):
    "What a save writes, small and different each time."
    g = torch.Generator().manual_seed(number)
    return {"weights.pth": dict(w=torch.randn(3, generator=g)), "resume.pth": dict(n=number, w=torch.randn(5, generator=g))}

def same(a, b):
    "Whether two nested values hold the same tensors and numbers, in every bit."
    if isinstance(a, torch.Tensor): return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict): return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b

def bytes_of(store, number): return {name: (store.folder / f"{number:010d}" / name).read_bytes() for name in store.visible}

def direct_saves(root, ops, saves=((1, "a"), (2, "a"), (3, "a"))):
    "Saves by `commit` alone of these numbers and runs, in folders that are not there yet: the store, number and bytes of each."
    store, wrote = store_of(root / "made" / "here", "small"), []
    for number, run in saves:
        with watched(lambda *op: ops.append(op)): store.commit(number, tiny(number), dict(run_id=run))
        ops.append(("committed", None, None))
        wrote.append((number, bytes_of(store, number)))
    return store, wrote

def replacing_saves(root, ops): return direct_saves(root, ops, ((10, "a"), (11, "a"), (7, "b"), (8, "b"), (9, "b")))

def trainer_saves(root, ops):
    "Three saves of a `Trainer`, with all else that it does in its folders."
    flags = [*small_world(root.parent / "texts"), "--max_steps", 3, "--save_interval", 1, *places(root)]
    flags += ["--cache_dir", root.parent / "cache"]
    trainer, wrote = Trainer(from_args(PretrainConfig, parser.parse_args(list(map(str, flags)))), say=lambda text: None, progress=False), []
    commit = CheckpointStore.commit
    def told(self, number, *args, **kw):
        commit(self, number, *args, **kw)
        ops.append(("committed", None, None))
        wrote.append((number, bytes_of(self, number)))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(CheckpointStore, "commit", told)
        with watched(lambda *op: ops.append(op)): trainer.fit()
    trainer.close()
    return trainer.store, wrote

def after_power_losses(root, ops):
    "Each state that a power loss may leave, once, with the number of commits that had returned by the last time that it may."
    model, states, done = Disk(root), {}, 0
    for kind, path, more in ops:
        if kind == "committed": done += 1
        else: model.do(kind, path, more)
        states |= {frozenset(state.items()): done for state in model.states()}
    return states

def check_state(store, wrote, done):
    "What was written loads, not older than what was acknowledged; the visible names lead to no other; the next save works."
    said, good = [], dict(wrote[max(0, done - 1):])
    try: newest = store.newest(said.append); loaded = load_resume(store)
    except UserError: newest = loaded = None; assert not done
    assert not said and (newest or not done) and (loaded is None) == (newest is None)
    assert not newest or good[newest["generation"]] == bytes_of(store, newest["generation"])
    for name, visible in store.visible.items():
        held = visible.read_bytes() if visible.exists() else None
        whole = held in [files[name] for files in good.values()]
        assert whole or not done, name
    store.commit(99, tiny(99), dict(run_id="a"))
    assert store.newest()["generation"] == 99 and same(store.load(99), tiny(99)["resume.pth"])
    assert not any("tmp" in p.name for d in (store.checkpoint_dir, store.folder, store.save_dir) for p in d.iterdir())

@pytest.mark.parametrize("saves", [direct_saves, replacing_saves, trainer_saves])
def test_power_loss(tmp_path, campaign, saves):
    "A power loss between any two operations of the saves, whatever it takes of the names and bytes that were not forced to disk."
    root = tmp_path / "disk"
    root.mkdir()
    store, wrote = saves(root, ops := [])
    states = after_power_losses(root, ops)
    assert {"mkdir", "create", "write", "fsync", "rename", "replace", "symlink", "unlink", "rmdir"} <= {kind for kind, *_ in ops}
    for i, (state, done) in enumerate(states.items()):
        (folder := tmp_path / f"state{i}").mkdir()
        lay_out(dict(sorted(state)), folder)
        there = [folder / os.path.relpath(d, root) for d in (store.checkpoint_dir, store.save_dir)]
        check_state(CheckpointStore(store.name, *there), wrote, done)
        shutil.rmtree(folder)
    campaign.passed("power loss", len(states), "states")

@contextmanager
def changed(path, data):
    "Inside, the file holds these bytes."
    old = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try: yield
    finally: path.unlink() if old is None else path.write_bytes(old)

@contextmanager
def swapped(a, b):
    "Inside, two files or folders have each other's names."
    other = a.with_name("other")
    def swap(): os.rename(a, other); os.rename(b, a); os.rename(other, b)
    swap()
    try: yield
    finally: swap()

@contextmanager
def missing(path):
    "Inside, the file is not there."
    os.rename(path, away := path.parents[2] / f"{path.parent.name} {path.name}")
    try: yield
    finally: os.rename(away, path)

def shortened(data):
    "Cut at each 4 KiB, and by one byte."
    return [data[:n] for n in sorted({*range(0, len(data), 4096), len(data) - 1})]

def zeroed(data):
    "With a block of 4 KiB in zeros."
    return [data[:n] + bytes(len(data[n:n + 4096])) + data[n + 4096:] for n in range(0, len(data), 4096)]

def flipped(data, bit):
    "With that bit turned."
    return data[:bit >> 3] + bytes([data[bit >> 3] ^ 1 << (bit & 7)]) + data[(bit >> 3) + 1:]

@pytest.fixture(scope="module")
def saved(world, tmp_path_factory):
    "The store of a run with the generations 3 and 6."
    go(folder := tmp_path_factory.mktemp("saved"), [*world[0], "--stop_after", 6], want=75)
    return store_of(folder)

def test_damaged_files(saved, campaign):
    "One generation damaged: the other one is used and the damaged file told. Both damaged: an error that names both."
    (new, old), rng, n = saved.generations(), random.Random(2), 0
    def falls_back(path):
        said, told = [], str(new if path.name == "manifest.json" else path)
        assert saved.newest(said.append)["generation"] == 3 and len(said) == 1 and told in said[0], (path, said)
    def is_refused():
        with pytest.raises(UserError) as e: saved.newest()
        assert "\n" not in str(e.value) and str(new) in str(e.value) and str(old) in str(e.value), e.value
    for path in sorted(new.iterdir()):
        whole, twin = path.read_bytes(), old / path.name
        flips = rng.sample(range(8 * len(whole)), campaign.cases(20, 350))
        for k, bad in enumerate([*shortened(whole), *zeroed(whole), *(flipped(whole, bit) for bit in flips), whole + b"\0"]):
            if bad == whole: continue
            with changed(path, bad):
                if path.name == "manifest.json" and json_or_none(path) == json.loads(whole): continue  # the same number in other letters
                falls_back(path); n += 1
                if k % 10: continue
                with changed(twin, twin.read_bytes()[:-1]): is_refused(); n += 1
        with missing(path): falls_back(path)
        with missing(path), missing(twin): is_refused()
        with swapped(path, twin): is_refused()
        with changed(path, twin.read_bytes()): falls_back(path)
        with changed(new / "more.txt", b"added"): assert saved.newest()["generation"] == 6
        n += 5
    with swapped(new / "weights.pth", new / "resume.pth"): falls_back(new / "weights.pth")
    with swapped(new, old): is_refused()
    assert saved.newest()["generation"] == 6
    campaign.passed("truncated, zeroed, flipped, swapped", n + 2)

def outcome(path):
    "What `load_original` makes of a file: the tensors, or None for an error in one line."
    try: return load_original(path)
    except UserError as e: assert "\n" not in str(e) and str(path) in str(e); return None

def test_a_damaged_file_of_the_original(tmp_path, campaign):
    "A file in the original's format, cut, zeroed or with a bit turned, is refused, or what it holds is still the same."
    path, n = tmp_path / "x.pth", 0
    g = torch.Generator().manual_seed(0)
    data = dict(model={f"layer{i}": torch.randn(60, 30, generator=g).half() for i in range(8)}, optimizer={}, epoch=1, step=2)
    torch.save(data, path)
    whole, rng = path.read_bytes(), random.Random(3)
    assert same(load_original(path), data)
    folders = [8 * (i + 38) + 4 for i in range(len(whole)) if whole[i:i + 4] == b"PK\1\2"]  # bits that make a file a folder for torch
    headers = [bit for bit in range(8 * len(whole)) if b"PK" in whole[max(0, bit // 8 - 80):bit // 8 + 1]]  # no checksum covers these
    flips = [*folders, *rng.sample(headers, campaign.cases(100, 2000)), *rng.sample(range(8 * len(whole)), campaign.cases(60, 1000))]
    for bad in [*shortened(whole), *zeroed(whole), *(flipped(whole, bit) for bit in flips)]:
        path.write_bytes(bad)
        loaded = outcome(path)
        assert loaded is None or same(loaded, data)
        n += 1
    campaign.passed("truncated, zeroed, flipped, swapped", n)

def ended_well(launch, *words, codes=(0, 2)):
    "The exit code of a launch that met a fault of the disk; with 2 the last line has these words. No traceback."
    code, = launch.wait()
    text, last = launch.text(), (launch.text().splitlines() or [""])[-1]
    assert "Traceback" not in text and code in codes and (code == 0 or all(word in last for word in words)), f"{code}\n{text}"
    return code

def some(choices, n):
    "`n` of the choices, evenly, the first and the last among them; all if there are fewer."
    return choices if n >= len(choices) else [choices[i * (len(choices) - 1) // (n - 1)] for i in range(n)]

@pytest.fixture
def mounted():
    "A function that mounts a tmpfs with these options at a folder, or changes them; skips the test where this process may not mount."
    if not ROOT or not shutil.which("mount"): pytest.skip("mounting needs root")
    places = []
    def mount(folder, options):
        again = "remount," if folder in places else ""
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", folder], capture_output=True, text=True)
        if done.returncode: pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
        places.append(folder)
    yield mount
    for folder in set(places): subprocess.run(["umount", "-l", folder], check=True, capture_output=True)

@pytest.fixture
def bigger(world, tmp_path):
    "Flags of a run whose saves are a megabyte, its folder after step 4 with two generations, and what it ends as undisturbed."
    flags = [*world[0], "--hidden_size", 64, "--save_interval", 2]
    go(tmp_path / "begun", [*flags, "--stop_after", 4], want=75)
    go(tmp_path / "whole", flags)
    return flags, tmp_path / "begun", tmp_path / "whole"

def full_disk(bigger, folder, hook=None, free=lambda: None, end=final, told="three checkpoints in a row could not be written"):
    "Go on where the disk is full, then where it is not any more; the exit code of the first."
    flags, whole = bigger[0], bigger[2]
    store = store_of(folder, "pretrain_64")
    code = ended_well(Launch(folder, [*flags, "--from_resume", 1], hook=hook), told, str(folder))
    newest = store.newest((said := []).append)
    left = [p.name for d in (store.folder, store.save_dir, store.checkpoint_dir) for p in d.iterdir() if "tmp" in p.name]
    assert newest["generation"] >= 4 and not said and not left and all(p.exists() for p in store.visible.values()), (newest, left)
    free()
    go(folder, [*flags, "--from_resume", 1])
    assert end(folder, "pretrain_64") == end(whole, "pretrain_64")
    return code

def test_no_file_may_grow(bigger, tmp_path, campaign):
    "A limit on the size of a file, in steps of 64 KiB: nothing of a save that failed remains, and the run ends in one line or goes on."
    pytest.importorskip("resource")
    biggest = (store_of(bigger[1], "pretrain_64").generations()[0] / "resume.pth").stat().st_size
    limits, codes = some([k << 16 for k in range(1, biggest // 65536 + 3)], campaign.cases(5, 25)), []
    for limit in limits:
        folder = shutil.copytree(bigger[1], tmp_path / f"limit{limit}", symlinks=True)
        codes.append(full_disk(bigger, folder, (limit_file_size, f"{folder}/told.txt", limit)))
        shutil.rmtree(folder)
    assert codes[0] == 2 and codes[-1] == 0
    campaign.passed("full disk", len(limits))

def full_in_a_large_piece(folder, mib, told):
    "Save 50 MB where no file may grow beyond `mib` MiB, and then without the limit."
    import resource, threading
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store, data = store_of(folder, "large"), {"weights.pth": 1, "resume.pth": dict(w=torch.zeros(12_000_000))}
    store.commit(1, tiny(1), dict(run_id="a"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (mib << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try: store.commit(2, data, dict(run_id="a"))
    except OSError as e: left = [p.name for p in store.folder.iterdir()]; told.write_text(f"{e.strerror} {left} {threading.active_count()}")

def test_full_in_a_large_piece(tmp_path, campaign):
    "The thread that computes digests ends with a save that fails in the middle of a tensor; nothing waits for it, nothing remains."
    pytest.importorskip("resource")
    for mib in (sizes := (1, 6, 30)):
        p = FORK.Process(target=full_in_a_large_piece, args=(tmp_path / str(mib), mib, told := tmp_path / f"told{mib}"))
        p.start(); p.join(60)
        assert p.exitcode == 0 and told.read_text() == "File too large ['0000000001'] 1"
    campaign.passed("full disk", len(sizes))

def test_a_full_file_system(bigger, tmp_path, campaign, mounted):
    "No space, or no room for a name, on a small file system under the checkpoints; no space under the metrics."
    used = sum(p.stat().st_size for p in (bigger[1] / "checkpoints").rglob("*") if p.is_file())
    sizes = [("checkpoints", f"size={(used + 16384 >> 10) + k}k") for k in range(0, used >> 10, 64)]
    inodes = [("checkpoints", f"size=64m,nr_inodes={n}") for n in range(15, 24)]
    cases, codes = [("out", "size=4k"), ("out", "size=16k"), *some(sizes, campaign.cases(3, 20)), *some(inodes, campaign.cases(2, 9))], []
    for i, (place, options) in enumerate(cases):
        folder = tmp_path / f"case{i}"
        (folder / place).mkdir(parents=True)
        mounted(str(folder / place), options)
        shutil.copytree(bigger[1], folder, symlinks=True, dirs_exist_ok=True)
        how = dict(told="cannot write to", hook=(at_step, 6, "filled", f"{folder}/out"), end=weights) if place == "out" else {}
        codes.append(full_disk(bigger, folder, free=lambda: mounted(str(folder / place), "size=64m,nr_inodes=1000"), **how))
    assert codes[:3] == [2, 0, 2] and codes[-1] == 0
    campaign.passed("full disk", len(cases))

@pytest.fixture
def lockable(tmp_path):
    "The list of folders to be made read-only; they are made writable again. Skips the test where root may not mount."
    folders, probe = [str(tmp_path / "probe")], tmp_path / "probe"
    probe.mkdir()
    try: make_read_only(folders[0])
    except (OSError, subprocess.CalledProcessError): make_writable(folders[0]); pytest.skip("root needs leave to mount")
    yield folders
    for folder in folders: make_writable(folder)

def test_read_only_from_the_start(world, tmp_path, campaign, lockable):
    "A checkpoint or weights folder that can't be written to is refused in one line that names it, for a fresh start and for a resume."
    flags, undisturbed = world
    go(tmp_path / "begun", [*flags, "--stop_after", 4], want=75)
    cases = [(begun, place) for begun in (True, False) for place in ("checkpoints", "out")][:campaign.cases(3, 4)]
    for begun, place in cases:
        folder = tmp_path / f"{place}{begun}"
        if begun: shutil.copytree(tmp_path / "begun", folder, symlinks=True)
        (folder / place).mkdir(parents=True, exist_ok=True)
        lockable.append(str(folder / place))
        make_read_only(lockable[-1])
        assert ended_well(Launch(folder, [*flags, "--from_resume", 1]), "error: ", f"{folder / place}: ", codes=[2]) == 2
        make_writable(lockable[-1])
        go(folder, [*flags, "--from_resume", 1])
        assert final(folder) == undisturbed()
    campaign.passed("read-only or vanished folder", len(cases))

def test_gone_or_read_only_in_mid_run(world, tmp_path, campaign, lockable):
    "A folder that vanishes is made anew by the next save; in one that has become read-only saves fail, each in a line."
    flags, undisturbed = world
    cases = [(what, place, step) for step in (8, 2, 19) for what in ("removed", "read_only") for place in ("checkpoints", "out")]
    for what, place, step in cases[:campaign.cases(4, 12)]:
        folder = tmp_path / f"{what}{place}{step}"
        lockable.append(str(folder / place))
        launch = Launch(folder, flags, hook=(at_step, step, what, lockable[-1]))
        code = ended_well(launch, "three checkpoints in a row could not be written", str(folder))
        assert code == (0 if what == "removed" or step > 8 else 2) and (code == 0 or launch.text().count("is still good") == 2)
        make_writable(lockable[-1])
        go(folder, [*flags, "--from_resume", 1])
        whole, alone = undisturbed(), (what, place, step) == ("removed", "checkpoints", 19)
        assert weights(folder) == whole[0] and settled(folder, 1 if alone else 2), (what, place, step)
        assert (what, place) == ("removed", "out") or final(folder) == whole  # the record was in the folder that went
    campaign.passed("read-only or vanished folder", campaign.cases(4, 12))
