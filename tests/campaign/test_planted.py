"""The tests are tested: each fault that is planted into a copy of the project is found by a test that passes without it."""
import json, os, re, subprocess, sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest
from test_project import copy_of_project

EXACT, HOSTILE = (f"tests/campaign/test_{name}.py" for name in ("exact", "hostile"))
POWER = "tests/campaign/test_disk.py::test_power_loss[direct_saves]"
RESUME = f"{EXACT}::test_resume[dense]"
PLANTS = [  # fault; module; its text, which must be there once; what it becomes; the test that must fail
    ("weights saved in half precision", "checkpoint", "dict(model=state, optimizer",
     "dict(model={k: v.half() for k, v in state.items()}, optimizer", RESUME),
    ("saved inside an accumulation window", "trainer", 'del minimind["epoch"]  #',
     'minimind["position"] += self.plan.batch_size; del minimind["epoch"]  #', RESUME),
    ("an epoch's last update is not saved", "trainer", "if self.skipped_in_row and not last:",
     "if self.skipped_in_row and not last or not self.position:", f"{EXACT}::test_a_stop_in_the_last_step_of_an_epoch"),
    ("the order depends on the number of processes", "trainer", "epoch_order(self.plan.rows, self.plan.seed, self.epoch)",
     "epoch_order(self.plan.rows, self.plan.seed + self.world.world_size - 1, self.epoch)",
     f"{EXACT}::test_two_processes_do_what_one_does"),
    ("an epoch's smaller last step is left out", "sampler", "return -(-n // global_batch)", "return n // global_batch",
     "tests/test_order.py::test_where_a_run_ends"),
    ("the original's step is rounded down", "trainer", "len(range(0, self.position, self.plan.batch_size * size))",
     "self.position // (self.plan.batch_size * size)", f"{EXACT}::test_steps_of_the_originals"),
    ("a mean of means", "trainer", "self.backward(batches, max(1, n_targets))",
     "self.backward(batches, max(1, sum(count_targets(b['labels']) for _, b in batches) * self.world.world_size))",
     f"{EXACT}::test_two_processes_do_what_one_does"),
    ("the gradient's factor for averaging is missing", "trainer", "self.scaler.scale((loss + aux) * factor)",
     "self.scaler.scale(loss + aux)", f"{EXACT}::test_two_processes_do_what_one_does"),
    ("one process skips a step alone", "trainer", "bad, = all_sum([not math.isfinite(loss + norm)], self.device)",
     "bad = not math.isfinite(loss + norm)", f"{EXACT}::test_a_bad_sum_on_one_process"),
    ("dropout without its key", "trainer", "if not active: yield; return", "if True: yield; return", RESUME),
    ("the optimizer begins anew", "trainer", 'load_optimizer(self.optimizer, data["optimizer"], where)', "pass", RESUME),
    ("the gradient scaler begins anew", "trainer", "    scaler.load_state_dict(state)\n", "    pass\n",
     f"{EXACT}::test_resume[float16]"),
    ("the learning rate begins anew", "trainer", "plan.lr(self.epoch, start)",
     "plan.lr(0, (self.steps - self.launched_at) * plan.global_batch)", RESUME),
    ("records are not cut at a resume", "metrics", 'if r.get("step", 0) <= keep]', "]", f"{EXACT}::test_records_are_cut"),
    ("the ledger is not compared", "trainer", "    self.check_ledger()\n", "", f"{EXACT}::test_other_rows_are_noticed"),
    ("a file's digest is not compared", "checkpoint", 'if file_sha256(path) != entry["sha256"]:', "if False:",
     f"{EXACT}::test_damage_is_told"),
    ("an older generation is taken in silence", "checkpoint", "for reason in reasons: warn(", "for reason in (): warn(",
     f"{EXACT}::test_damage_is_told"),
    ("an interrupt breaks a step", "trainer", "with interrupt_after(): self.record = self.one_step()", "self.record = self.one_step()",
     f"{EXACT}::test_an_interrupt_waits"),
    ("no lock", "checkpoint", "self.locks[-1].acquire()", "pass", "tests/test_faults.py::test_one_writer_in_either_folder"),
    ("pickles may run code", "checkpoint", 'torch.load(path, map_location="cpu", weights_only=True)',
     'torch.load(path, map_location="cpu", weights_only=False)', f"{HOSTILE}::test_no_pickle_runs_code"),
    ("moments share memory", "trainer", ".clone(memory_format=torch.contiguous_format)", "",
     f"{HOSTILE}::test_moments_have_memory_of_their_own"),
    ("a file's bytes are not forced to disk", "checkpoint", "self.f.flush(); os.fsync(self.f.fileno()); self.f.close()",
     "self.f.flush(); self.f.close()", POWER),
    ("a folder's names are not forced to disk", "checkpoint", "        os.rename(tmp, final)\n        fsync_folder(self.folder)\n",
     "        os.rename(tmp, final)\n", POWER),
    ("the visible names move before the commit", "checkpoint", "        os.rename(tmp, final)\n",
     "        for name, visible in self.visible.items(): point(visible, final / name)\n        os.rename(tmp, final)\n", POWER),
]
WHERE = "import helpers, minimind.trainer\ndef test_where(): assert all(m.__file__.startswith({!r}) for m in (helpers, minimind.trainer))\n"

def copied(folder):
    "A copy of the project with a test that its own package is the one that is imported."
    copy_of_project(folder)
    (folder / "tests/test_where.py").write_text(WHERE.format(f"{folder}/"))
    return folder

class Runner:
    "A process of `runner.py`: pytest without the seconds that torch takes to load."
    def __init__(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | dict(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        command = [sys.executable, str(Path(__file__).with_name("runner.py"))]
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ended(self, project, tests):
        "(exit code, output) of pytest in that folder, after `test_where`."
        flags, out = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={project}.tmp"], f"{project}.txt"
        self.p.stdin.write(json.dumps([str(project), out, [*flags, "tests/test_where.py", *tests]]) + "\n"); self.p.stdin.flush()
        return int(self.p.stdout.readline() or 99), Path(out).read_text()

    def close(self): self.p.communicate(timeout=60)

def survived(runner, folder, plant):
    "What is wrong with how a planted fault came out; None when the test found it."
    fault, module, text, becomes, test = plant
    path = copied(folder) / f"minimind/{module}.py"
    content = path.read_text()
    if (n := content.count(text)) != 1: return f"{fault}: its text is in {module}.py {n} times, not once"
    path.write_text(content.replace(text, becomes))
    code, out = runner.ended(folder, [test])
    found = code == 1 and any(line.startswith(f"FAILED {test}") for line in out.splitlines())
    broken = re.search(r"^E +(NameError|SyntaxError|ImportError|IndentationError|UnboundLocalError)", out, re.M)
    if not found or broken: return f"{fault}: exit code {code}\n{out[-2000:]}"

@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_planted_faults_are_caught(tmp_path, campaign):
    "Each of them by the test that is named, which passes in a copy that was left alone."
    plants = PLANTS[::campaign.cases(3, 1)]  # a third of them in the short tier
    jobs, bad = deque(enumerate(plants)), []
    def work(first=None):
        runner = Runner()
        try:
            if first: bad.extend(first(runner))
            while jobs:
                try: i, plant = jobs.popleft()
                except IndexError: break
                bad.extend(filter(None, [survived(runner, tmp_path / f"planted{i}", plant)]))
        finally: runner.close()
    def alone(runner):
        code, out = runner.ended(copied(tmp_path / "alone"), list(dict.fromkeys(p[4] for p in plants)))
        if code: yield f"without a fault: exit code {code}\n{out[-3000:]}"
    with ThreadPoolExecutor(2) as two:
        for done in [two.submit(work, alone), two.submit(work)]: done.result()
    assert not bad, "\n".join(bad)
    campaign.passed("planted faults that no test finds", len(plants))
