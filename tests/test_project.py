"""The notebooks are the source: exported, clean, true, without loops; and the README is the index notebook."""
import ast, json, os, re, shutil, subprocess, sys
from pathlib import Path
import nbformat, pytest
from helpers import ROOT

NOTEBOOKS = sorted((ROOT / "nbs").glob("*.ipynb"))
MODULES = sorted(p for p in (ROOT / "minimind").glob("*.py") if not p.name.startswith("_"))
BIN = Path(sys.executable).parent

def cells(path): return nbformat.read(path, 4).cells
def text_of(output):
    "What a reader sees of an output as text; pictures and progress bars are left out."
    if output.output_type == "stream": return output.text if output.name == "stdout" else ""
    data = output.get("data", {})
    return "" if any(k.startswith("image/") for k in data) else data.get("text/markdown", data.get("text/plain", ""))

def copy_of_project(folder):
    "The checkout without what git ignores."
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file(): (folder / name).parent.mkdir(parents=True, exist_ok=True); shutil.copy(ROOT / name, folder / name)
    return folder

def test_export_leaves_no_difference(tmp_path):
    "Each module is what its notebook exports: an edit by hand, a forgotten export and a module without a notebook all show."
    project = copy_of_project(tmp_path / "project")
    for p in (project / "minimind").glob("*.py"): p.unlink()
    subprocess.run([BIN / "nbdev_export"], cwd=project, check=True, capture_output=True)
    names = lambda folder: sorted(p.name for p in (folder / "minimind").glob("*.py"))
    assert names(project) == names(ROOT)
    for name in names(ROOT): assert (project / "minimind" / name).read_text() == (ROOT / "minimind" / name).read_text(), name

@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_clean(path):
    "No widget state, no execution counts, no errors, no unreadable ids; each cell of its own."
    nb = nbformat.read(path, 4)
    nbformat.validate(nb)
    assert set(nb.metadata) <= {"kernelspec"}
    assert len({c.id for c in nb.cells}) == len(nb.cells)
    for c in nb.cells:
        if c.cell_type != "code": continue
        assert c.execution_count is None and not c.metadata
        assert all(o.output_type != "error" for o in c.outputs), c.source
        assert max(map(len, c.source.splitlines()), default=0) <= 120, c.source
    assert path.stat().st_size < 1_000_000

@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_stored_outputs_are_true(path, tmp_path):
    "Runs the notebook again: each stored text is what comes out, and pictures are where pictures come."
    from nbclient import NotebookClient
    nb, folder = nbformat.read(path, 4), tmp_path / "nbs"
    shutil.copytree(ROOT / "nbs", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    os.symlink(ROOT / "minimind", tmp_path / "minimind")
    before = [(c.source, [text_of(o) for o in c.get("outputs", [])], sum("image/png" in o.get("data", {}) for o in c.get("outputs", []))) for c in nb.cells]
    for c in nb.cells: c.source = "" if "#| eval: false" in c.source else c.source
    NotebookClient(nb, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell, (source, texts, pictures) in zip(nb.cells, before):
        now = [text_of(o) for o in cell.get("outputs", [])]
        assert "".join(now) == "".join(texts), source
        assert sum("image/png" in o.get("data", {}) for o in cell.get("outputs", [])) == pictures, source

def test_a_picture_in_each_notebook_that_has_something_to_draw():
    without = {p.stem for p in NOTEBOOKS if not any("image/png" in o.get("data", {}) for c in cells(p) for o in c.get("outputs", []))}
    assert without <= {"00_config", "13_pretrain", "20_page"}

def test_imports_form_no_loop():
    uses = {p.stem: {n.module for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.ImportFrom) and n.level == 1} |
                    {n.module.split(".")[1] for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("minimind.")}
            for p in MODULES}
    order = []
    while len(order) < len(uses):
        free = sorted(m for m in uses if m not in order and uses[m] <= set(order))
        assert free, {m: u for m, u in uses.items() if m not in order}
        order += free
    numbers = {re.sub(r"^\d+_", "", p.stem): p.stem[:2] for p in NOTEBOOKS}
    for module, used in uses.items(): assert all(numbers[u] < numbers[module] for u in used), (module, used)

def test_public_things_have_docstrings():
    for p in MODULES:
        tree = ast.parse(p.read_text())
        assert ast.get_docstring(tree), p
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if node.name.startswith("__"): continue
                assert ast.get_docstring(node), f"{p.name}: {node.name}"

def test_no_run_has_left_files_among_the_notebooks():
    "What a notebook writes goes to a temporary folder."
    there = {p.relative_to(ROOT / "nbs").parts[0] for p in (ROOT / "nbs").rglob("*") if ".ipynb_checkpoints" not in p.parts}
    assert there - {p.name for p in NOTEBOOKS} <= {"images", "main_job.json", "fault_campaign.json", "benchmarks.json", "recipe.json", "_proc"}

def test_nothing_private_is_published():
    "No home folder, no key and no address of this machine in what is committed."
    pattern = re.compile(r"/root/|/home/\w+/|/Users/\w+/|/work/|api[_-]?key\s*=\s*['\"]\w|[0-9a-f]{40}\b(?<!0{40})|\b10\.\d+\.\d+\.\d+\b", re.I)
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        path = ROOT / name
        if not path.is_file() or path.suffix in (".png", ".json") or name in ("tests/test_project.py", "LICENSE"): continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            nb = json.loads(text)
            text = "\n".join("".join(c["source"]) + "".join(json.dumps({k: v for k, v in o.get("data", {}).items() if not k.startswith("image/")}) +
                             "".join(o.get("text", "")) for o in c.get("outputs", [])) for c in nb["cells"])
        elif "ledger" in text and path.suffix == ".jsonl": continue
        assert not (m := pattern.search(text)), f"{name}: {m.group()}"

def test_readme_is_the_index_notebook(tmp_path):
    "README.md is what `.ci/readme` makes of nbs/index.ipynb."
    project = copy_of_project(tmp_path / "project")
    subprocess.run(["bash", ".ci/readme"], cwd=project, check=True, capture_output=True, env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"})
    assert (project / "README.md").read_text() == (ROOT / "README.md").read_text()

def test_the_index_is_short_and_names_every_notebook_and_dependency():
    text = "\n".join(c.source for c in cells(ROOT / "nbs/index.ipynb") if c.cell_type == "markdown")
    assert len(re.sub(r"[|`#*-]", " ", text).split()) <= 850
    for p in NOTEBOOKS: assert p.stem == "index" or p.name in text, p.name
    settings = (ROOT / "settings.ini").read_text()
    for group in ("requirements", "dev_requirements"):
        for name in re.search(rf"^{group} = (.*)$", settings, re.M).group(1).split():
            assert re.split(r"[><=]", name)[0] in text, name
