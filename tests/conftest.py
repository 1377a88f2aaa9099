"""Where the tests find data and golden values that lie beside the project, and the record of the fault campaign."""
import json, time
from pathlib import Path
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
FIGURES = Path(__file__).resolve().parents[1] / "nbs" / "fault_campaign.json"

def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run the whole fault campaign and write its figures (about 40 minutes)")

@pytest.fixture
def shared():
    "A function that gives a path below ../shared, or skips the test when it is not there."
    def find(name):
        path = SHARED / name
        if not path.exists(): pytest.skip(f"../shared/{name} is not beside this checkout")
        return path
    return find

class Campaign:
    "How many cases a fault gets, and what came of them: `cases(few, many)` before, `passed(fault, n)` after the assertions."
    def __init__(self, full): self.full, self.rows, self.began = full, {}, time.monotonic()
    def cases(self, few, many): return many if self.full else few
    def passed(self, fault, n, unit="cases"):
        now = time.monotonic()
        row = self.rows.setdefault(fault, dict(cases=0, seconds=0.0, unit=unit))
        row["cases"] += n; row["seconds"] += now - self.began
        self.began = now

RUNNING = pytest.StashKey()

def pytest_configure(config): config.stash[RUNNING] = Campaign(config.getoption("--full", False))

@pytest.fixture
def campaign(request):
    "The `Campaign` of this session."
    campaign = request.config.stash[RUNNING]
    campaign.began = time.monotonic()
    return campaign

def pytest_terminal_summary(terminalreporter, exitstatus, config):
    "Print the campaign's figures; a full one of whole files that passed also goes into the file that the checkpoint notebook shows."
    campaign = config.stash[RUNNING]
    if campaign.rows: terminalreporter.section("fault campaign")
    for fault, row in campaign.rows.items(): terminalreporter.write_line(f"{fault:<44} 0 of {row['cases']:>7,} {row['unit']:<8} {row['seconds']:6.0f} s")
    part = config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args)  # of a fault's tests, perhaps
    if campaign.full and exitstatus == 0 and campaign.rows and not part:
        old = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        rows = {k: row | dict(seconds=round(row["seconds"], 1)) for k, row in campaign.rows.items()}
        FIGURES.write_text(json.dumps(dict(sorted((old | rows).items())), indent=1, ensure_ascii=False) + "\n")
