"""Faults that were met once: full disks, mistyped folders, renamed and damaged files, a launch that came in between."""
import json, os, sys
from pathlib import Path
import pytest
import minimind.trainer
from helpers import PRETRAIN, ROOT, TINY, places, resume_data, run, same_bytes, steps, write_texts
from minimind.checkpoint import CheckpointStore
from minimind.config import PretrainConfig, UserError, from_args
from minimind.dataset import Documents, tokenise
from minimind.pretrain import parser
from minimind.tokenizer import load_tokenizer
from minimind.trainer import Trainer

@pytest.fixture
def build(tmp_path):
    "A function that builds a trainer whose files lie below `tmp_path`."
    data = write_texts(tmp_path / "texts.jsonl")
    def make(*more, folder=tmp_path, say=lambda text: None):
        flags = [*TINY, "--data_path", data, "--accumulation_steps", 3, "--max_steps", 6, *places(folder), *more]
        return Trainer(from_args(PretrainConfig, parser.parse_args(list(map(str, flags)))), say=say, progress=False)
    return make

def finish(trainer): reason = trainer.fit(); trainer.close(); return reason

def test_a_disk_that_fills_during_a_save(tmp_path):
    "The save is undone and told, the run goes on, and what is there afterwards is whole."
    data = write_texts(tmp_path / "texts.jsonl")
    command = [sys.executable, PRETRAIN, *TINY, "--data_path", data, "--max_steps", 6, *places(tmp_path)]
    limited = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash"]
    code, out, err = run([*limited, *command], tmp_path)
    assert code == 0 and "could not be written (File too large)" in out and "Traceback" not in err
    assert len(steps(tmp_path)) == 6 and not list((tmp_path / "checkpoints/.pretrain_32.gens").iterdir())
    code, out, err = run([*limited, *command, "--save_interval", 1, "--save_weight", "often"], tmp_path)
    assert code == 2 and "three checkpoints in a row could not be written" in err and "Traceback" not in err

def test_a_full_disk_under_the_cache(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl", 3000)
    code, out, err = run(["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", sys.executable, PRETRAIN, *TINY, "--data_path", data, *places(tmp_path)], tmp_path)
    assert code == 2 and "--cache_dir" in err and "Traceback" not in err and not list((tmp_path / "cache").glob(".*tmp"))

def test_a_mistyped_checkpoint_folder_loses_nothing(build, tmp_path):
    finish(build())
    before = (tmp_path / "out/pretrain_32.pth").resolve(), (tmp_path / "out/pretrain_32_metrics.jsonl").read_bytes()
    typo = build("--checkpoint_dir", tmp_path / "chekpoints", "--from_resume", 1)
    with pytest.raises(UserError, match="is not of this run"): typo.step()
    assert before == ((tmp_path / "out/pretrain_32.pth").resolve(), (tmp_path / "out/pretrain_32_metrics.jsonl").read_bytes())

def test_one_writer_in_either_folder(build, tmp_path):
    first = build(); first.begin()
    code = (f"from minimind.checkpoint import *\nRunLock(CheckpointStore('pretrain_32', {str(tmp_path / 'elsewhere')!r}, {str(tmp_path / 'out')!r}), 'x')")
    assert "is training pretrain_32" in run([sys.executable, "-c", code], tmp_path)[2]
    first.close()

def test_a_fresh_start_keeps_the_old_run_and_takes_its_place_at_once(build, tmp_path):
    finish(build())
    metrics = (tmp_path / "out/pretrain_32_metrics.jsonl").read_text()
    again = build(); again.step(); again.close()  # killed before its first save
    assert (tmp_path / "out/pretrain_32_metrics.old0.jsonl").read_text() == metrics
    assert (tmp_path / "checkpoints/.pretrain_32.gens.replaced0/0000000006").is_dir()
    resumed = build("--from_resume", 1)
    assert resumed.steps == 0 and resumed.run_id == again.run_id and finish(resumed) == "finished"
    assert [r["step"] for r in steps(tmp_path)] == list(range(1, 7))

def test_a_persons_file_is_kept(build, tmp_path):
    (tmp_path / "out").mkdir(); (tmp_path / "out/pretrain_32_metrics.jsonl").write_text("notes")
    finish(build())
    assert (tmp_path / "out/pretrain_32_metrics.old0.jsonl").read_text() == "notes"

def test_a_renamed_generation_is_not_taken_for_another(build, tmp_path):
    finish(build("--save_interval", 3))
    store = CheckpointStore("pretrain_32", tmp_path / "checkpoints", tmp_path / "out")
    os.rename(store.folder / "0000000006", store.folder / "0000000009")
    said = []
    assert build("--from_resume", 1, say=said.append).steps == 3 and "renamed or copied" in said[0]

def test_links_lead_somewhere_from_a_linked_folder(build, tmp_path):
    (tmp_path / "far/away/out").mkdir(parents=True); (tmp_path / "far/away/keep").mkdir()
    os.symlink(tmp_path / "far/away/out", tmp_path / "out"); os.symlink(tmp_path / "far/away/keep", tmp_path / "checkpoints")
    finish(build())
    assert (tmp_path / "out/pretrain_32.pth").is_file() and (tmp_path / "checkpoints/pretrain_32_resume.pth").is_file()

def test_a_launch_that_came_in_between(build):
    finish(build("--stop_after", 2))
    late = build("--from_resume", 1)
    finish(build("--from_resume", 1))
    with pytest.raises(UserError, match="another launch has gone on to step 6"): late.step()

def test_the_last_validation_is_recorded_before_the_last_save(build, monkeypatch):
    seen, save = [], Trainer.save
    monkeypatch.setattr(Trainer, "save", lambda self, last=False: (seen.append((self.steps, (self.validation or {}).get("step"))), save(self, last))[1])
    finish(build("--save_interval", 3, "--val_fraction", 0.2, "--eval_interval", 0))
    assert seen[0] == (3, None) and all(pair == (6, 6) for pair in seen[1:])

def test_another_model_under_the_old_name_is_told(build, monkeypatch):
    finish(build("--stop_after", 2))
    monkeypatch.setattr(minimind.trainer, "code_digest", lambda: "changed0")
    said = []
    build("--from_resume", 1, say=said.append)
    assert "another model" in said[-1] and "-> changed0" in said[-1]

def test_damaged_metrics_do_not_stop_a_resume(build, tmp_path):
    finish(build("--stop_after", 2))
    path = tmp_path / "out/pretrain_32_metrics.jsonl"
    path.write_bytes(b'5\n[1]\nnull\n{"step": "x"}\n{"step": null}\n\xff\n' + path.read_bytes())
    assert finish(build("--from_resume", 1)) == "finished" and [r["step"] for r in steps(tmp_path)] == list(range(1, 7))

def test_a_damaged_token_file_is_made_again(build, tmp_path):
    finish(build("--stop_after", 2))
    tokens, = (tmp_path / "cache").glob("*/train.tokens")
    good = tokens.read_bytes()
    tokens.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    assert finish(build("--from_resume", 1)) == "finished" and tokens.read_bytes() == good
    finish(build(folder=tmp_path / "whole"))
    assert same_bytes(resume_data(tmp_path), resume_data(tmp_path / "whole"))

def test_other_markers_are_another_tokenizer(tmp_path):
    spec = json.loads(Path(load_tokenizer().path).read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    data, before = write_texts(tmp_path / "texts.jsonl"), load_tokenizer(tmp_path)
    name = next(t["content"] for t in spec["added_tokens"] if t["id"] == 3)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(dict(bos_token=name)))
    after = load_tokenizer(tmp_path)
    assert (before.bos_id, after.bos_id) == (1, 3) and before.fingerprint != after.fingerprint
    first = [int(Documents(tokenise(data, t, tmp_path / "cache", progress=False))[0][0]) for t in (before, after)]
    assert first == [1, 3]

@pytest.mark.parametrize("env,word", [(dict(RANK="foo", WORLD_SIZE="1"), "RANK"), (dict(RANK="5", WORLD_SIZE="1"), "RANK 5")])
def test_an_environment_that_makes_no_sense(tmp_path, env, word):
    env = env | dict(LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29613")
    code, out, err = run([sys.executable, PRETRAIN, *TINY, *places(tmp_path)], tmp_path, **env)
    assert code == 2 and "Traceback" not in err and word in err

@pytest.mark.parametrize("flags,word", [(["--threads", "99999"], "threads is 99999"), (["--hidden_size", "100000000"], "hidden_size is 100000000"),
                                        (["--save_dir", "~nobody_of_that_name/x"], ""), (["--data_path", "x" * 300], "cannot read")])
def test_slips_of_the_finger(tmp_path, flags, word):
    data = [] if "--data_path" in flags else ["--data_path", write_texts(tmp_path / "texts.jsonl")]
    code, out, err = run([sys.executable, PRETRAIN, *TINY, *places(tmp_path), "--max_steps", 1, *data, *flags], tmp_path)
    assert "Traceback" not in err and (code == 0 if not word else code == 2 and word in err), err

def test_a_script_beside_the_clone(tmp_path):
    "A folder called minimind that holds the clone does not hide the package's data."
    os.symlink(ROOT, tmp_path / "minimind")
    (tmp_path / "use.py").write_text("from minimind.tokenizer import load_tokenizer\nprint(load_tokenizer().vocab_size)")
    assert run([sys.executable, "use.py"], tmp_path)[1].strip() == "6400"
