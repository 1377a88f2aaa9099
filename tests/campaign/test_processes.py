"""What can befall the processes of a run: numbers that are not finite, a second writer, wrong clocks, signals, death and silence."""
import os, random, re, signal, sys, time
from pathlib import Path
import pytest
import mishaps
from helpers import PRETRAIN, exact, places, resume_data, start, steps, torchrun
from minimind.checkpoint import CheckpointStore
from minimind.metrics import read_metrics
from world import FORK, NAME, Launch, final, go, small_world

INTERVAL, STEPS = 3, 15  # optimizer steps between checkpoints, and in a run

@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "Flags of a small run, and a function that gives what an undisturbed one on `size` processes ends with."
    folder, ends = tmp_path_factory.mktemp("world"), {}
    flags = [*small_world(folder), "--save_interval", INTERVAL, "--max_steps", STEPS]
    def undisturbed(size=1):
        if size not in ends: go(folder / f"whole{size}", flags, size); ends[size] = final(folder / f"whole{size}")
        return ends[size]
    return flags, undisturbed

RESUME = ["--from_resume", 1]

def generations(folder):
    "Numbers of the generations that a run has left, newest first."
    return [int(g.name) for g in CheckpointStore(NAME, folder / "checkpoints", folder / "out").generations()]

def await_file(path, launch, timeout=60):
    "Wait until a planted pause is reached."
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline and any(p.exitcode is None for p in launch.members), launch.text()
        time.sleep(0.002)

def told(text): return [line for line in text.splitlines() if "error:" in line]

def goes_on(folder, world, size):
    "A resume on `size` processes ends like the run that was never disturbed."
    flags, undisturbed = world
    go(folder, flags + RESUME, size)
    assert final(folder) == undisturbed(size)

# --- not finite

def digests(folder, size):
    "Each rank's digests by step; the last word on a step counts."
    return [dict(line.split() for line in (folder / f"weights{r}").read_text().splitlines()) for r in range(size)]

KINDS = ("loss", "gradient", "number", "sum", "overflow")

def test_not_finite(tmp_path, world, campaign):
    "All processes skip the same step and go on; after three in a row all stop, and a resume knows nothing of it."
    flags, undisturbed = world
    n = campaign.cases(10, 30)
    for k in range(n):
        chance, folder = random.Random(k), tmp_path / str(k)
        kind, size, fatal = KINDS[k % len(KINDS)], 1 if k % 10 in (0, 7) else 2, k % 3 == 2
        ranks = [chance.randrange(size)] if chance.random() < 0.7 else list(range(size))
        first = chance.randrange(2, STEPS - 3)
        bad = range(first, first + 3) if fatal else sorted({first, chance.randrange(1, STEPS - 1)})
        more = ["--dtype", "float16"] if kind == "overflow" else []
        folder.mkdir()
        hook = (mishaps.all_of, (mishaps.not_finite, kind, list(bad), ranks), (mishaps.note_weights, folder))
        case = f"case {k}: {kind} in steps {list(bad)} on ranks {ranks} of {size}"
        text = go(folder, flags + more, size, hook, want=3 if fatal else 0)
        each = digests(folder, size)
        assert all(d == each[0] for d in each), case
        assert [r["step"] for r in read_metrics(folder / "out" / f"{NAME}_metrics.jsonl", "skip")] == list(bad), case
        assert all(each[0][str(b)] == each[0].get(str(b - 1), each[0][str(b)]) for b in bad), case
        assert "Traceback" not in text, case
        if fatal:
            line, = told(text)
            assert re.search(rf"step {bad[-1]} \(learning rate \d\S+, rows \[\d+, .*\] \.\.\., (first in \S+|not seen .*)\)", line), case
            assert generations(folder)[0] == (first - 1) // INTERVAL * INTERVAL if first > INTERVAL else not generations(folder), case
            if kind != "overflow": goes_on(folder, world, size)
            else: go(folder, flags + more + RESUME, size); assert not read_metrics(folder / "out" / f"{NAME}_metrics.jsonl", "skip")
        else:
            assert resume_data(folder, NAME)["minimind"]["skipped"] == len(bad) and generations(folder)[0] == STEPS, case
            clean = [exact(r) for r in steps(folder, NAME) if r["step"] < min(bad)]
            if kind != "overflow": assert clean == undisturbed(size)[1][:min(bad) - 1], case
    campaign.passed("not finite", n)

def test_the_last_step_is_not_finite(tmp_path, world):
    "What was learnt before it is not lost: the run ends with a checkpoint of its last step, and a signal's stop too."
    flags, _ = world
    go(tmp_path / "end", flags, hook=(mishaps.not_finite, "loss", [STEPS], [0]))
    assert generations(tmp_path / "end")[0] == STEPS
    assert "nothing left to do" in go(tmp_path / "end", flags + RESUME)
    stop = ["--stop_after", INTERVAL + 2]
    go(tmp_path / "stop", flags + stop, hook=(mishaps.not_finite, "loss", [INTERVAL + 2], [0]), want=75)
    assert generations(tmp_path / "stop")[0] == INTERVAL + 2

# --- two writers

def notebook(flags, out):
    "A second process that steps a `Trainer`, as a notebook would; leaves what it was told in `out`."
    from minimind.config import PretrainConfig, UserError, from_args
    from minimind.pretrain import parser
    from minimind.trainer import Trainer
    try: Trainer(from_args(PretrainConfig, parser.parse_args(flags)), say=lambda text: None, progress=False).step(); said = "it trains"
    except UserError as e: said = f"error: {e}"
    Path(out).write_text(said)

def second(how, folder, flags, aside):
    "Let another writer try; returns the one line that it was told."
    if how == "notebook":
        p = FORK.Process(target=notebook, args=([*map(str, flags), *places(folder)], str(aside / "told")))
        p.start(); p.join(60)
        return (aside / "told").read_text()
    if how == "other checkpoint_dir": (aside / "out").symlink_to(folder / "out")
    else: (aside / "out").symlink_to(folder / "out"); (aside / "checkpoints").symlink_to(folder / "checkpoints")
    size = 2 if how == "two processes" else 1
    line, = told(go(aside, flags, size, want=2))
    return line

def test_two_writers(tmp_path, world, campaign):
    "The second is refused and told by whom, at any moment; the first is not disturbed; its death frees the place at once."
    flags, undisturbed = world
    n = campaign.cases(10, 50)
    for k in range(n):
        chance, folder, aside = random.Random(1000 + k), tmp_path / str(k), tmp_path / f"aside{k}"
        folder.mkdir(); aside.mkdir()
        place = ("forward", "save", "step", "commit", "rotate")[k % 5]
        step = chance.randrange(1, STEPS // INTERVAL) * INTERVAL if place in ("save", "commit", "rotate") else chance.randrange(1, STEPS)
        how = ("process", "other checkpoint_dir", "notebook", "two processes")[k % 4 if k % 4 < 3 or k % 8 == 7 else 0]
        more = RESUME if how != "other checkpoint_dir" and chance.random() < 0.5 else []
        end = ("go", "SIGKILL", "SIGSTOP")[k % 3]
        case = f"case {k}: {how} {more} while the first is at {place} of step {step}, then {end}"
        first = Launch(folder, flags, 1, (mishaps.pause, place, step, None, folder))
        try:
            await_file(folder / "here0", first)
            if end == "SIGSTOP": first.kill(signal.SIGSTOP)
            assert f"process {first.members[0].pid} on" in (line := second(how, folder, flags + more, aside)), f"{case}: {line}"
            if end == "go": (folder / "go").touch(); assert first.wait() == [0], case
        finally: first.kill()
        if end != "go": go(folder, flags + RESUME)
        assert final(folder) == undisturbed(), case
    campaign.passed("two writers", n)

def test_two_writers_at_once(tmp_path, world, campaign):
    "Of two that start together one trains to the end and the other is told by whom it was refused."
    flags, undisturbed = world
    n = campaign.cases(2, 10)
    for k in range(n):
        a, b = tmp_path / f"{k}a", tmp_path / f"{k}b"
        a.mkdir(); b.mkdir()
        for name in ("out", "checkpoints"): (a / name).mkdir(); (b / name).symlink_to(a / name)
        hooks = [(mishaps.pause, "step", 2, None, a)]
        if k % 2: hooks.append((mishaps.slow_to_tell,)); (a / f"checkpoints/.{NAME}.owner").write_text("process 1 on nowhere (run dead)\n")
        both = [Launch(f, flags, 1, (mishaps.all_of, *hooks)) for f in (a, b)]
        try:
            loser, = [p for p in both if next_to_end(both) is p]
            winner, = [p for p in both if p is not loser]
            assert loser.wait() == [2] and f"process {winner.members[0].pid} on" in told(loser.text())[0], loser.text()
            (a / "go").touch()
            assert winner.wait() == [0], winner.text()
        finally:
            for p in both: p.kill()
        assert final(a) == undisturbed()
    campaign.passed("two writers", n)

def next_to_end(launches, timeout=60):
    "The first of these launches to end."
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for launch in launches:
            if all(p.exitcode is not None for p in launch.members): return launch
        time.sleep(0.005)

# --- clock

YEAR = 365 * 86400

def test_clock(tmp_path, world, campaign):
    "Neither a clock that jumps nor files with wrong times change what a resume finds: the generation's number decides."
    flags, undisturbed = world
    n = campaign.cases(10, 10)
    for k in range(n):
        chance, folder = random.Random(2000 + k), tmp_path / str(k)
        at, size = chance.randrange(INTERVAL + 1, STEPS - 1), 2 if k % 5 == 4 else 1
        first, then = ((0, -YEAR), (0, YEAR), (YEAR, 0), (-YEAR, YEAR), (YEAR, -YEAR))[k % 5]
        hook = lambda offset: (mishaps.clock, offset, k if k >= 5 else None)
        go(folder, [*flags, "--stop_after", at], size, hook(first), want=75)
        paths = sorted(p for p in folder.rglob("*") if p.name != "log.txt")
        times = sorted((chance.uniform(0, 3e9) for _ in paths), reverse=k % 2 == 0)
        if k % 4 >= 2: chance.shuffle(times)
        for path, t in zip(paths, times): os.utime(path, (t, t))
        text = go(folder, flags + RESUME, size, hook(then))
        assert f"after step {at} of" in text and "exact, bit for bit" in text and final(folder) == undisturbed(size), f"case {k}\n{text}"
    campaign.passed("clock", n)

# --- signals

def all_saved(launch, folder, size, low, high):
    "All processes left with 75 after the same step, and it is saved; returns the step."
    codes = launch.wait(30)
    assert codes == [75] * size, f"{codes}\n{launch.text()}"
    ends = {int((folder / f"end{r}").read_text()) for r in range(size)}
    assert len(ends) == 1 and low <= (end := ends.pop()) <= high and generations(folder)[0] == end
    assert f"after step {end} of {STEPS}, saved." in launch.text() and "Traceback" not in launch.text()
    return end

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]

def test_signals(tmp_path, world, campaign):
    "A stop signal to any process, at any moment, once or twice: all leave with 75 after the same step, and the resume is exact."
    flags, _ = world
    n = campaign.cases(11, 36)
    for k in range(n):
        chance, folder = random.Random(3000 + k), tmp_path / str(k)
        folder.mkdir()
        size, sent = 1 + k % 3, SIGNALS[k % 4]
        ranks = [chance.randrange(size)] if chance.random() < 0.6 else list(range(size))
        place = ("step", "save", "forward", "commit", "update", "anywhere")[k % 6]
        step = chance.randrange(1, STEPS // INTERVAL - 1) * INTERVAL if place in ("save", "commit") else chance.randrange(1, STEPS - 2)
        where = (place, step) if place != "anywhere" else ("step", STEPS - 2)
        launch = Launch(folder, flags, size, (mishaps.all_of, (mishaps.note_end, folder), (mishaps.pause, *where, [0], folder)))
        try:
            if place == "anywhere": launch.reached(step); time.sleep(chance.uniform(0, 0.02))
            else: await_file(folder / "here0", launch)
            launch.kill(sent, ranks)
            if k % 5 == 4: time.sleep(chance.uniform(0, 0.4)); launch.kill(chance.choice(SIGNALS), ranks)  # one event, perhaps told twice
            (folder / "go").touch()
            all_saved(launch, folder, size, step, STEPS - 2 if place == "anywhere" else step + 1)
        finally: launch.kill()
        goes_on(folder, world, size)
    campaign.passed("signals", n)

def test_a_second_signal_ends_at_once(tmp_path, world, campaign):
    "After three seconds it is a second event: nothing is waited for, and the previous checkpoint is good."
    flags, _ = world
    n = campaign.cases(1, 4)
    for k in range(n):
        folder, size, place = tmp_path / str(k), 2 - k % 2, ("commit", "forward", "save", "step")[k % 4]
        folder.mkdir()
        launch = Launch(folder, flags, size, (mishaps.pause, place, 2 * INTERVAL, None, folder))
        try:
            await_file(folder / "here0", launch)
            launch.kill(SIGNALS[k % 4], range(size))
            time.sleep(3)
            launch.kill(SIGNALS[k % 4], [0])
            launch.members[0].join(5)
            assert launch.members[0].exitcode == -SIGNALS[k % 4], launch.text()
        finally: launch.kill()
        assert generations(folder)[0] == INTERVAL
        goes_on(folder, world, size)
    campaign.passed("signals", n)

# --- death and silence

def bereaved(launch, gone, timeout=25):
    "The exit codes of all but one process, which end by themselves."
    deadline = time.monotonic() + timeout
    others = [p for r, p in enumerate(launch.members) if r != gone]
    for p in others: p.join(max(0, deadline - time.monotonic()))
    return [p.exitcode for p in others]

def test_death_and_silence(tmp_path, world, campaign):
    "When one process is killed or stands still, the others say so in a line and end; the resume is exact."
    flags, _ = world
    n = campaign.cases(4, 20)
    for k in range(n):
        chance, folder = random.Random(4000 + k), tmp_path / str(k)
        size, sent = 2 + k % 2, signal.SIGSTOP if k % 5 in (1, 3) else signal.SIGKILL
        gone, place = (k // 2) % size, ("forward", "told", "save", "update", "commit", "step", "rotate", "start")[k % 8]
        if place in ("save", "commit", "rotate"): gone = 0
        step = chance.randrange(1, STEPS // INTERVAL) * INTERVAL if place in ("told", "save", "commit", "rotate") else chance.randrange(1, STEPS)
        hook = (mishaps.strike, place, step, [gone], sent) if place != "start" else (mishaps.strike_at_start, [gone], sent)
        short = ["--timeout_minutes", 0.05] if sent == signal.SIGSTOP or place == "start" else []  # a death is seen without it
        case = f"case {k}: {sent.name} to rank {gone} of {size} at {place} of step {step}"
        launch = Launch(folder, flags + short, size, hook)
        try:
            codes = bereaved(launch, gone)
            assert codes == [76] * (size - 1), f"{case}: {codes}\n{launch.text()}"
            lines, text = told(launch.text()), launch.text()
            if sent == signal.SIGSTOP and k % 2:  # it wakes up when the others are gone
                launch.kill(signal.SIGCONT, [gone]); launch.members[gone].join(20)
                assert launch.members[gone].exitcode == 76, f"{case}\n{launch.text()}"
        finally: launch.kill()
        assert lines and "Traceback" not in text, f"{case}\n{text}"
        for line in lines:
            saved = re.search(r"lost contact with another process \(.+\); (?:the checkpoint of step (\d+) is good|this launch has written no checkpoint): ", line)
            assert saved and (saved[1] is None or int(saved[1]) in generations(folder)), f"{case}\n{text}"
        goes_on(folder, world, size)
    campaign.passed("rank death and hang", n)

# --- torchrun itself

LONG = ["--save_interval", 20, "--max_steps", 200]

@pytest.fixture(scope="module")
def long_world(world, tmp_path_factory):
    "Flags of a run on two processes that lasts some seconds, and what it ends with undisturbed."
    flags, folder = world[0] + LONG, tmp_path_factory.mktemp("long")
    go(folder, flags, 2)
    return flags, final(folder)

def agent(folder, flags, *options, **env):
    "A torchrun with two workers, as a person starts it, after step 25 or so."
    folder.mkdir(parents=True, exist_ok=True)
    p = start([*torchrun(2, *options, PRETRAIN), *flags, *places(folder)], folder, **env)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and p.poll() is None:
        try:
            if len(steps(folder, NAME)) >= 25: return p
        except OSError: pass
        time.sleep(0.01)
    p.kill()
    raise AssertionError(f"step 25 was not reached: {p.communicate()}")

def test_a_signal_to_torchrun(tmp_path, long_world, campaign):
    "Whatever signal ends the agent, the workers stop after the same step and save, and the resume is exact."
    flags, undisturbed = long_world
    sent_here = [signal.SIGUSR1] if sys.platform == "linux" else []  # torchrun dies of it; only there do workers learn that it is gone
    sent_here = (sent_here + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])[:campaign.cases(1, 4)]
    for sent in sent_here:
        folder = tmp_path / sent.name
        p = agent(folder, flags)
        p.send_signal(sent)
        out, err = p.communicate(timeout=40)  # the workers hold its output open
        stopped = re.search(r"Stopped \(\w+\) after step (\d+) of 200, saved\.", out)
        assert p.returncode and stopped and generations(folder)[0] == int(stopped[1]) < 200, f"{sent.name}: {p.returncode}\n{out}\n{err}"
        go(folder, flags + RESUME, 2)
        assert final(folder) == undisturbed, sent.name
    campaign.passed("signals", len(sent_here))

def worker(p, rank):
    "Process number of one of torchrun's workers."
    for pid in Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"): return int(pid)

@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the workers' numbers are looked up in /proc")
def test_torchrun_starts_again(tmp_path, long_world, campaign):
    "After a worker's death torchrun starts all again, and they go on from the checkpoint without being told to."
    flags, undisturbed = long_world
    n = campaign.cases(1, 4)
    for k in range(n):
        folder = tmp_path / str(k)
        p = agent(folder, flags, "--max-restarts", 3, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        os.kill(worker(p, (k + 1) % 2), signal.SIGKILL)
        out, err = p.communicate(timeout=120)
        assert p.returncode == 0 and "resuming run" in out and "exact, bit for bit" in out, f"{out}\n{err}"
        assert final(folder) == undisturbed
    campaign.passed("rank death and hang", n)
