"""The notebooks' widgets in a real browser: JupyterLab on this machine, driven through Chromium. Screenshots are kept in $MINIMIND_SHOTS."""
import json, os, re, secrets, shutil, socket, subprocess, sys, time, urllib.request
from pathlib import Path
import nbformat, pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if not CHROMIUM: pytest.skip("no Chromium on this machine", allow_module_level=True)

FLAGS = ("--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
         "--disable-sync --disable-dev-shm-usage").split()
CELLS = ["""from pathlib import Path
from minimind.config import PretrainConfig
from minimind.trainer import Trainer
from minimind.live import Panel
places = {f"{k}_dir": k for k in ("cache", "save", "checkpoint")}
trainer = Trainer(PretrainConfig(hidden_size=32, num_hidden_layers=1, max_seq_len=64, corpus_size=400, batch_size=4, epochs=10_000,
                                 save_interval=10**6, eval_interval=50, threads=1, device="cpu", **places), say=len, progress=False)
running = trainer.fit_in_background()
panel = Panel(trainer)
panel""", """from minimind.playground import playground
playground(trainer.model, trainer.tokenizer)""", """from ipywidgets import interact
from minimind.sampler import learning_rate
import matplotlib.pyplot as plt
def draw(warmup=0.1):
    plt.figure(figsize=(4, 2)); plt.plot([learning_rate(p / 100, 1e-3, warmup) for p in range(101)])
    plt.title(f"warm-up {warmup:.0%}"); plt.show()
interact(draw, warmup=(0.0, 0.5, 0.1));"""]

def free_port():
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); return s.getsockname()[1]

@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    "A running JupyterLab: (address of its notebook, its folder)."
    folder, port, token = tmp_path_factory.mktemp("lab"), free_port(), secrets.token_hex(8)
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    nb.metadata["kernelspec"] = dict(name="python3", display_name="python3", language="python")
    nbformat.write(nb, folder / "live.ipynb")
    env = os.environ | dict(JUPYTER_CONFIG_DIR=str(folder / "config"), JUPYTER_DATA_DIR=str(folder / "data"), OMP_NUM_THREADS="1",
                            PYTHONPATH=str(Path(__file__).resolve().parents[1]), HOME=str(folder))
    said = open(folder / "lab.log", "w")
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
                               f"--IdentityProvider.token={token}", "--LabApp.news_url=None", "--LabApp.check_for_updates_class="
                               "jupyterlab.NeverCheckForUpdate"], cwd=folder, env=env, stdout=said, stderr=said)
    try:
        for _ in range(300):
            try: urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token={token}", timeout=5).read(); break
            except OSError: time.sleep(0.2)
        else: pytest.fail((folder / "lab.log").read_text()[-2000:])
        yield f"http://127.0.0.1:{port}/doc/tree/live.ipynb?token={token}&reset", folder
    finally: server.terminate(); server.wait(20)

def until(what, f, seconds=60):
    "Wait for `f()` to be true; returns its value."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := f(): return value
        time.sleep(0.2)
    pytest.fail(f"waited {seconds} s in vain for {what}")

def test_the_panel_the_playground_and_a_slider(lab):
    address, folder = lab
    shots = Path(os.environ.get("MINIMIND_SHOTS") or folder)
    shots.mkdir(exist_ok=True, parents=True)
    wrong = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport=dict(width=1100, height=1500))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.goto(address)
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=60_000)
        time.sleep(2)
        page.locator(".jp-Cell .cm-content").first.click()
        for _ in CELLS: page.keyboard.press("Shift+Enter"); time.sleep(0.3)
        out = page.locator(".jp-OutputArea-output")
        panel, writer, slider = (page.locator(".jp-CodeCell").nth(i).locator(".jp-OutputArea") for i in range(3))
        panel.locator("text=running").wait_for(timeout=120_000)
        step = lambda: int(re.search(r"step ([\d,]+)", panel.inner_text())[1].replace(",", ""))
        first = step()
        until("the loss to move", lambda: step() > first + 5)
        assert panel.locator("svg polyline").count() == 2
        page.screenshot(path=shots / "running.png")

        panel.get_by_role("button", name="pause").click()
        time.sleep(1.5); stood = step(); time.sleep(1.5)
        assert step() == stood, "it went on in spite of the pause"
        panel.get_by_role("button", name="save").click()
        until("a checkpoint", lambda: list((folder / "save").glob("pretrain_32.pth")))
        panel.get_by_role("button", name="resume").click()
        until("the run to go on", lambda: step() > stood)

        writer.get_by_role("button", name="write").wait_for(timeout=60_000)
        writer.locator("textarea, input[type=text]").first.fill("The")
        writer.get_by_role("button", name="write").click()
        until("tokens", lambda: writer.locator("[title]").count() > 3)
        page.screenshot(path=shots / "playground.png")

        slider.locator("img").wait_for(timeout=60_000)
        before = slider.locator("img").get_attribute("src")
        handle = slider.locator(".noUi-handle").first
        handle.focus(); handle.press("ArrowRight")
        until("another picture", lambda: slider.locator("img").count() and slider.locator("img").get_attribute("src") != before)

        panel.get_by_role("button", name="stop").click()
        panel.locator("text=: stop, step").wait_for(timeout=60_000)
        page.screenshot(path=shots / "stopped.png")
        browser.close()
    assert not wrong, wrong
    records = [json.loads(line) for line in (folder / "save/pretrain_32_metrics.jsonl").read_text().splitlines()]
    assert records[-1]["kind"] == "end" and records[-1]["reason"] == "stop"
