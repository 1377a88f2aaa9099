"""Every way to start a run, from any folder, ends with the same losses."""
import os, shutil, sys, time
import pytest
from helpers import PRETRAIN, ROOT, TINY, places, resume_data, run, start, steps, torchrun, write_texts

PYTHON = sys.executable
FLAGS = [*TINY, "--max_steps", "4", "--threads", "1"]

@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    "The losses of one process with two micro-batches a step, and the data."
    folder = tmp_path_factory.mktemp("reference")
    data = write_texts(folder / "texts.jsonl")
    code, out, err = run([PYTHON, PRETRAIN, *FLAGS, "--data_path", "texts.jsonl", "--accumulation_steps", 2], folder)
    assert code == 0, err
    for line in (f"Weights          {folder}/out/pretrain_32.pth", f"Resume file      {folder}/checkpoints/pretrain_32_resume.pth"): assert line in out
    return data, [r["loss"] for r in steps(folder)], out, folder

def check(reference, folder, code, out, err):
    assert code == 0, err
    losses = [r["loss"] for r in steps(folder)]
    assert len(losses) == 4 and max(abs(a - b) for a, b in zip(losses, reference[1])) < 1e-5

ONE = {"file": [PYTHON, PRETRAIN], "module": [PYTHON, "-m", "minimind.pretrain"],
       "console script": [shutil.which("minimind-pretrain", path=os.path.dirname(PYTHON)) or shutil.which("minimind-pretrain") or "minimind-pretrain"],
       "from Python": [PYTHON, "-c", "import sys; from minimind.pretrain import main, parser; sys.exit(main(parser.parse_args(sys.argv[1:])))"]}
TWO = {"torchrun file": torchrun(2, PRETRAIN), "torchrun module": torchrun(2, "-m", "minimind.pretrain"),
       "launch": [PYTHON, "-m", "torch.distributed.launch", "--nproc_per_node=2", "--master_port=29611", PRETRAIN]}

@pytest.mark.parametrize("how", ONE)
def test_one_process(reference, tmp_path, how):
    check(reference, tmp_path, *run([*ONE[how], *FLAGS, "--data_path", reference[0], "--accumulation_steps", 2, *places(tmp_path)], tmp_path))

@pytest.mark.parametrize("how", TWO)
def test_two_processes(reference, tmp_path, how):
    check(reference, tmp_path, *run([*TWO[how], *FLAGS, "--accumulation_steps", 1, "--data_path", reference[0], *places(tmp_path)], tmp_path))

def test_two_agents_without_a_common_disk(reference, tmp_path):
    "Two machines, played by two agents on this one, each with folders of its own; only the first writes, both resume."
    def both(*more):
        command = lambda rank: [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=1",
                                "--master_addr=127.0.0.1", "--master_port=29612", PRETRAIN, *FLAGS, "--accumulation_steps", 1,
                                "--data_path", reference[0], *places(tmp_path / str(rank)), *more]
        other = start(command(1), tmp_path, GLOO_SOCKET_IFNAME="lo")
        try: return (*run(command(0), tmp_path, GLOO_SOCKET_IFNAME="lo"), other.wait(60))
        finally: other.kill(); other.communicate()
    code, out, err, other = both("--stop_after", 2)
    assert code == other == 1 and "Stopped (stop_after) after step 2" in out, err  # torchrun's code for our 75
    assert not (tmp_path / "1" / "checkpoints").exists()
    code, out, err, other = both("--from_resume", 1)
    assert other == 0 and "exact, bit for bit" in out, err
    check(reference, tmp_path / "0", code, out, err)

def test_one_writer(reference, tmp_path):
    "A second run under the same name is turned away and told by whom; after a kill the place is free."
    command = [PYTHON, PRETRAIN, *FLAGS, "--max_steps", 2000, "--data_path", reference[0], *places(tmp_path)]
    first = start(command, tmp_path)
    try:
        metrics = tmp_path / "out/pretrain_32_metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size): assert first.poll() is None; time.sleep(0.1)
        code, out, err = run(command, tmp_path)
        assert code == 2 and f"process {first.pid} on" in err and "--save_weight" in err
    finally: first.kill(); first.communicate()
    assert run([*command, "--stop_after", 1], tmp_path)[0] == 75

def test_the_printed_command_goes_on(reference):
    "The last line's command, pasted into a shell, trains on."
    import shlex
    _, _, out, folder = reference
    command = next(line for line in out.splitlines() if line.startswith("Train on")).removeprefix("Train on").strip()
    code, out, err = run([PYTHON, *shlex.split(command)[1:]], folder)
    assert code == 0 and [r["step"] for r in steps(folder)] == list(range(1, 9)), err
    assert "the plan changes: max_steps 4 -> 8" in out

def test_help_is_quick_and_free_of_torch():
    code, out, err = run([PYTHON, "-X", "importtime", PRETRAIN, "--help"], ROOT)
    assert code == 0 and "--from_resume" in out and "torch" not in [line.split("|")[-1].strip() for line in err.splitlines()]

def test_a_package_that_loads_no_more_than_it_needs():
    code = "import minimind.trainer, minimind.live, minimind.debug, minimind.playground, sys; print([m for m in ('wandb', 'ipywidgets', 'matplotlib', 'transformers') if m in sys.modules])"
    assert run([PYTHON, "-c", code], ROOT)[1].strip() == "[]"

def test_wandb_offline_never_stops_a_run(reference, tmp_path):
    "Asked for without a key and without a terminal, it works offline, and the checkpoint knows its run."
    pytest.importorskip("wandb")
    env = {k: "" for k in os.environ if k.startswith("WANDB")} | dict(WANDB_DIR=str(tmp_path), HOME=str(tmp_path), NETRC=str(tmp_path / "none"))
    code, out, err = run([PYTHON, PRETRAIN, *FLAGS, "--data_path", reference[0], "--use_wandb", *places(tmp_path)], tmp_path, **env)
    assert code == 0 and len(steps(tmp_path)) == 4, err
    assert resume_data(tmp_path)["wandb_id"] or "Weights & Biases is off" in out

@pytest.mark.parametrize("pause", [0.1, 0.4, 0.9])
def test_a_signal_told_twice_is_one(tmp_path, pause):
    "A second one while the process is about to leave changes neither what is saved nor the exit code."
    data = write_texts(tmp_path / "texts.jsonl")
    p = start([PYTHON, PRETRAIN, *TINY, "--threads", "1", "--max_steps", "100000", "--data_path", data, *places(tmp_path)], tmp_path)
    while p.poll() is None and not (tmp_path / "out/pretrain_32_metrics.jsonl").exists(): time.sleep(0.05)
    time.sleep(0.3); p.terminate(); time.sleep(pause); p.terminate()
    out, err = p.communicate(timeout=60)
    assert p.returncode == 75 and ", saved." in out, (p.returncode, out, err)
