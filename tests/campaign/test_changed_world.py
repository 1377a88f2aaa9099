"""The world changes between two launches: what would make it another run is refused or said, the rest makes no difference."""
import json, shutil
import pytest, torch
from helpers import resume_data, steps
from world import NAME, Launch, final, go, small_world
import plants

@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    "A run that was stopped after step 4 of 8, its flags, and the end of the run that was not."
    folder = tmp_path_factory.mktemp("changed")
    flags = [*small_world(folder), "--max_steps", 8]
    go(folder / "whole", flags)
    go(folder / "stopped", [*flags, "--stop_after", 4], want=75)
    return folder, flags, final(folder / "whole")

@pytest.fixture
def again(ground, tmp_path):
    "A function that goes on from the stopped run with other flags; returns (exit code, what was printed), files in `tmp_path / 'run'`."
    folder, flags, _ = ground
    shutil.copytree(folder / "stopped", tmp_path / "run", symlinks=True)
    (tmp_path / "run/log.txt").unlink()
    def launch(*more, size=1, hook=None, data=None):
        given = list(flags)
        if data: given[given.index("--data_path") + 1] = str(data)
        l = Launch(tmp_path / "run", [*given, "--from_resume", 1, *more], size, hook)
        return l.wait(120)[0], l.text()
    return launch

def lines(folder): return (folder / "texts.jsonl").read_text().splitlines(keepends=True)

CHANGES = {
    "data edited": lambda folder, t: dict(text="".join([lines(folder)[0].replace("the", "teh", 1), *lines(folder)[1:]])),
    "data appended": lambda folder, t: dict(text="".join(lines(folder)) + '{"text": "one more"}\n'),
    "data reordered": lambda folder, t: dict(text="".join(reversed(lines(folder)))),
    "data cut short": lambda folder, t: dict(text="".join(lines(folder)[:-1])),
}
@pytest.mark.parametrize("change", CHANGES)
def test_other_data_is_refused(ground, again, tmp_path, campaign, change):
    path = tmp_path / "texts.jsonl"
    path.write_text(CHANGES[change](ground[0], tmp_path)["text"])
    code, said = again(data=path)
    assert code == 2 and "the checkpoint's data is" in said and "--data_path" in said and "Traceback" not in said
    campaign.passed("changed world", 1)

REFUSED = {"--max_seq_len 16": "packing", "--packing none": "packing", "--hidden_size 32": None, "--num_hidden_layers 2": "num_hidden_layers",
           "--dropout 0.2": "dropout", "--batch_size 1": "--allow_rebatch", "--accumulation_steps 3": "--allow_rebatch", "--epochs 3": "--allow_replan",
           "--max_steps 9": "--allow_replan", "--max_steps 3": "lies behind", "--seed 7": "seed", "--learning_rate 0.5": "--allow_replan",
           "--text_field title": "title", "--val_fraction 0.5": "data", "--num_experts 8 --use_moe 1": None}
@pytest.mark.parametrize("flags", REFUSED)
def test_another_run_is_refused_by_name(again, campaign, flags):
    "Each in one line that names what differs. Another width or a mixture has other file names: there it starts afresh, and says so."
    code, said = again(*flags.split())
    assert "Traceback" not in said
    if REFUSED[flags]: assert code == 2 and REFUSED[flags] in said, said
    else: assert code == 0 and "starting afresh" in said
    campaign.passed("changed world", 1)

def test_another_tokenizer_is_refused(ground, again, tmp_path, campaign):
    spec = json.loads((ground[0] / "tokenizer.json").read_text())
    spec["model"]["merges"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    code, said = again("--tokenizer_path", tmp_path / "tokenizer.json")
    assert code == 2 and "tokenizer" in said and "Traceback" not in said
    campaign.passed("changed world", 1)

@pytest.mark.parametrize("flags,word", [("--allow_replan 1 --max_steps 9", "the plan changes: max_steps 8 -> 9"), ("--allow_rebatch 1 --batch_size 1", "E1 starts anew"),
                                        ("--dtype bfloat16", "dtype float32 -> bfloat16"), ("--threads 2", "threads 1 -> 2"),
                                        ("--same_bits 1", "sums floating point -> fixed point")])
def test_what_is_allowed_is_said(again, campaign, flags, word):
    "A change that keeps less than every bit goes on and names what it was; exactness is claimed no more."
    code, said = again(*flags.split())
    assert code == 0 and word in said and ("exact, bit for bit" not in said or "--allow" in flags), said
    campaign.passed("changed world", 1)

@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(ground, again, tmp_path, campaign, workers):
    assert again("--num_workers", workers)[0] == 0 and final(tmp_path / "run") == ground[2]
    campaign.passed("changed world", 1)

def test_wrappers_leave_no_trace(ground, again, tmp_path, campaign):
    "Compiled, and on two processes: the names in the files are the model's own, and a plain launch goes on from them."
    code, said = again("--use_compile", 1, "--stop_after", 2, size=2)
    assert code == 75 and "(E1), since world_size 1 -> 2, compiled False -> True" in said, said
    for path in ("checkpoints/" + NAME + "_resume.pth", "out/" + NAME + ".pth"):
        data = torch.load(tmp_path / "run" / path, weights_only=True)
        assert list(data.get("model", data)) == list(resume_data(ground[0] / "whole", NAME)["model"])
    assert again()[0] == 0
    ledger = lambda folder: [r["ledger"] for r in steps(folder, NAME)]
    assert ledger(tmp_path / "run") == ledger(ground[0] / "whole")
    campaign.passed("changed world", 1)

@pytest.mark.parametrize("size", [1, 2])
def test_tokens_cut_short_under_the_memory_map(again, tmp_path, campaign, size):
    "The file of tokens is truncated while the run reads it: one line and exit code 2 on all, and the next launch makes it anew."
    code, said = again("--save_interval", 1, size=size, hook=(plants.truncate_tokens, str(tmp_path / "run/cache"), 6))
    assert code == 2 and "was cut short while it was in use" in said and "Traceback" not in said, said
    code, said = again()
    assert code == 0 and [r["step"] for r in steps(tmp_path / "run", NAME)] == list(range(1, 9)), said
    campaign.passed("changed world", 1)

def test_a_changed_cell_is_another_model(again, tmp_path, campaign):
    code, said = again(hook=(plants.other_code,))
    assert code == 0 and "another model" in said
    campaign.passed("changed world", 1)
