"""A person interrupts a notebook's cell: a real kernel, a real interrupt, and the trainer is always between two steps."""
import random, time
from pathlib import Path
import pytest
from helpers import ROOT, exact, places, steps
from minimind.config import PretrainConfig, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer
from world import NAME, small_world

SETUP = """
import hashlib, sys, time
sys.path[:0] = {path!r}
from minimind.checkpoint import CheckpointStore
from minimind.config import PretrainConfig, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

def build(*more): return Trainer(from_args(PretrainConfig, parser.parse_args({flags!r} + list(more))), say=lambda text: None, progress=False)

def digest(t):
    sha = hashlib.sha256()
    for p in t.model.parameters():
        for x in (p, *t.optimizer.state.get(p, {{}}).values()): sha.update(x.detach().numpy().tobytes())
    return sha.hexdigest()

update = Trainer.update
def slowly(self, *args):  # the moment at which an interrupt would do most harm is made longer
    norm = update(self, *args)
    if self is trainer: time.sleep(0.003)
    return norm
Trainer.update = slowly
twin, trainer, want = build(*{aside!r}), build(), {{}}

def torn():
    "What is not as in the twin that nobody interrupts; nothing when all is."
    while twin.steps < trainer.steps: twin.step(); want[twin.steps] = digest(twin)
    newest, wrong = CheckpointStore(trainer.config.name, trainer.config.path("checkpoint_dir"), trainer.config.path("save_dir")).newest(), []
    if trainer.steps and digest(trainer) != want[trainer.steps]: wrong.append("digest")
    if newest and newest["generation"] > trainer.steps: wrong.append("checkpoint")
    return trainer.steps, wrong
"""

@pytest.fixture(scope="module")
def kernel():
    "The client of a running kernel, and its manager."
    manager = pytest.importorskip("jupyter_client").KernelManager()
    pytest.importorskip("ipykernel")
    manager.start_kernel(cwd=str(ROOT))
    client = manager.client()
    client.start_channels()
    try: client.wait_for_ready(timeout=60); yield client, manager
    finally: client.stop_channels(); manager.shutdown_kernel(now=True)

def cell(client, code, timeout=60, once_begun=None):
    "Run a cell to its end: (its value as text, the error's name, what it printed); `once_begun` is called when it first prints."
    msg_id = client.execute(code)
    value, error, printed = "", "", ""
    while True:
        message = client.get_iopub_msg(timeout=timeout)
        if message["parent_header"].get("msg_id") != msg_id: continue
        kind, content = message["msg_type"], message["content"]
        if kind == "execute_result": value = content["data"]["text/plain"]
        elif kind == "error": error, printed = content["ename"], printed + "\n".join(content["traceback"])
        elif kind == "stream":
            printed += content["text"]
            if once_begun: once_begun(); once_begun = None
        elif kind == "status" and content["execution_state"] == "idle": return value, error, printed

def test_notebook_interrupt(tmp_path, kernel, campaign):
    "Wherever the interrupt strikes, a step is whole or not begun, the newest checkpoint is good, and the next cell goes on."
    (client, manager), chance, before = kernel, random.Random(6), 0
    n = campaign.cases(10, 200)
    flags = [*small_world(tmp_path), "--epochs", 100_000, "--val_fraction", 0.2, "--eval_interval", 3, "--save_interval", 4]
    aside = [*places(tmp_path / "twin"), "--eval_interval", 0, "--save_interval", 10**9]
    setup = SETUP.format(path=[str(ROOT), str(Path(__file__).parent)], flags=[*map(str, flags), *places(tmp_path / "run")], aside=list(map(str, aside)))
    value, error, printed = cell(client, setup)
    assert not error, printed
    for k in range(n):
        wait = chance.uniform(0.002, 0.12)
        def interrupt(): time.sleep(wait); manager.interrupt_kernel()
        value, error, printed = cell(client, "print('begins', flush=True)\nfor record in trainer: pass", once_begun=interrupt)
        assert error == "KeyboardInterrupt", f"case {k}: {error}\n{printed}"
        value, error, printed = cell(client, "torn()")
        assert not error, f"case {k}\n{printed}"
        now, wrong = eval(value)
        assert not wrong and now >= before, f"case {k}, {wait * 1000:.0f} ms: {wrong} at step {now}"
        before = now
        if k % 10 == 9:  # another person opens it again
            value, error, printed = cell(client, "trainer.close()\ntrainer = build('--from_resume', '1')\ntorn()")
            assert not error, printed
            before, wrong = eval(value)
            assert not wrong, f"case {k}: {wrong} after a resume at step {before}"
    assert before, "no step was ever taken"
    campaign.passed("notebook interrupt", n)

def test_an_interrupted_validation(tmp_path, monkeypatch):
    "The steps after it are those of the run whose validation was not interrupted: with dropout."
    flags = [*small_world(tmp_path), "--val_fraction", 0.2, "--max_steps", 6]
    for name in ("whole", "broken"):
        config = from_args(PretrainConfig, parser.parse_args([*map(str, flags), *places(tmp_path / name)]))
        trainer = Trainer(config, say=lambda text: None, progress=False)
        for _ in range(3): trainer.step()
        def interrupted(*args, **kw): raise KeyboardInterrupt
        with monkeypatch.context() as m:
            if name == "broken": m.setattr(trainer.model, "forward", interrupted)
            try: trainer.validate()
            except KeyboardInterrupt: pass
        while not trainer.finished: trainer.step()
        trainer.close()
    assert list(map(exact, steps(tmp_path / "whole", NAME))) == list(map(exact, steps(tmp_path / "broken", NAME)))
