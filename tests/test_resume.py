"""Stopped after any step and continued, a run ends with the same bytes as one that was never stopped."""
import pytest, torch
from helpers import TINY, places, resume_data, same_bytes, steps, write_texts
from minimind.checkpoint import CheckpointStore
from minimind.config import PretrainConfig, UserError, from_args
from minimind.pretrain import parser
from minimind.trainer import Trainer

def config(folder, *more, data=None):
    flags = [*TINY, "--data_path", str(data or folder / "texts.jsonl"), "--accumulation_steps", "3", "--epochs", "2", "--dropout", "0.1",
             "--val_fraction", "0", *places(folder), *map(str, more)]
    return from_args(PretrainConfig, parser.parse_args(flags))

def trainer(*args, **kw): return Trainer(config(*args, **kw), say=lambda text: None, progress=False)

def test_notebook_state_and_float16(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    whole = trainer(tmp_path / "whole", "--dtype", "float16", data=data); whole.fit(); whole.close()
    first = trainer(tmp_path / "two", "--dtype", "float16", data=data)
    for record in first:
        if record["step"] == 4: break
    first.save(); first.close()
    second = trainer(tmp_path / "two", "--dtype", "float16", "--from_resume", 1, data=data)
    assert second.scaler.state_dict() == first.scaler.state_dict() != {}
    second.fit(); second.close()
    assert same_bytes(resume_data(tmp_path / "two"), resume_data(tmp_path / "whole"))

@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_muon(tmp_path, dtype):
    "Muon's momentum is resumed like AdamW's moments, also under a gradient scaler; another optimizer is refused."
    data, how = write_texts(tmp_path / "texts.jsonl"), ("--optimizer", "muon", "--dtype", dtype, "--use_moe", 1)
    whole = trainer(tmp_path / "whole", *how, data=data); whole.fit(); whole.close()
    for more in (["--stop_after", 4], ["--from_resume", 1]):
        t = trainer(tmp_path / "two", *how, *more, data=data); t.fit(); t.close()
    two, one = (resume_data(tmp_path / name, "pretrain_32_moe") for name in ("two", "whole"))
    assert same_bytes(two, one) and any("momentum_buffer" in s for s in one["optimizer"]["state"].values())
    with pytest.raises(UserError, match="optimizer is muon, this run's is adamw: give the same --optimizer"):
        trainer(tmp_path / "two", *how[2:], "--from_resume", 1, data=data)

def test_what_a_resume_refuses(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    t = trainer(tmp_path, "--max_steps", 4, "--stop_after", 2, data=data); t.fit(); t.close()
    def refused(*more, data=data):
        with pytest.raises(UserError) as e: trainer(tmp_path, "--max_steps", 4, "--from_resume", 1, *more, data=data)
        assert "\n" not in str(e.value)
        return str(e.value)
    assert "32" in refused("--max_seq_len", 32) and "packing" in refused("--max_seq_len", 32)
    assert "rope" not in refused("--num_attention_heads", 2)
    assert "4e-3" in refused("--learning_rate", "4e-3") or "0.004" in refused("--learning_rate", "4e-3")
    assert "seed is 42, this run's 7" in refused("--seed", 7)
    assert "--allow_rebatch" in refused("--batch_size", 3)
    assert "data" in refused(data=write_texts(tmp_path / "other.jsonl", 61))
    t = trainer(tmp_path, "--max_steps", 4, "--from_resume", 1, "--batch_size", 3, "--allow_rebatch", 1, data=data)
    assert t.plan.global_batch == 9 and t.position == 12
    t.fit(); t.close()
    assert [r["rows"] for r in steps(tmp_path)] == [6, 6, 9, min(9, t.plan.rows - 21)]

def test_damage_is_never_silent(tmp_path):
    data = write_texts(tmp_path / "texts.jsonl")
    t = trainer(tmp_path, "--save_interval", 2, "--max_steps", 6, data=data); t.fit(); t.close()
    store = CheckpointStore("pretrain_32", tmp_path / "checkpoints", tmp_path / "out")
    newest, older = store.generations()
    raw = bytearray((newest / "resume.pth").read_bytes()); raw[len(raw) // 2] ^= 4
    (newest / "resume.pth").write_bytes(raw)
    said = []
    t = Trainer(config(tmp_path, "--save_interval", 2, "--max_steps", 6, "--from_resume", 1, data=data), say=said.append, progress=False)
    assert t.steps == 4 and "is damaged" in said[0] and "using generation 4" in said[0]
    assert t.fit() == "finished"; t.close()
    assert [g.name for g in store.generations()] == ["0000000006", "0000000004"]
    for g in store.generations(): (g / "manifest.json").unlink()
    with pytest.raises(UserError, match="none can be used"): trainer(tmp_path, "--max_steps", 6, "--from_resume", 1, data=data)

def test_the_originals_checkpoint(tmp_path, shared):
    "The original's tiny checkpoint goes on here: its step times its batch is the position."
    tok = shared("data/minimind_tokenizer")
    import json, shutil
    (tmp_path / "checkpoints").mkdir(); (tmp_path / "out").mkdir()
    for name, place in (("pretrain_64_resume.pth", "checkpoints"), ("pretrain_64.pth", "out")): shutil.copy(shared(f"golden/original_checkpoint/{name}"), tmp_path / place)
    spec = json.loads((tok / "tokenizer.json").read_text())  # its vocabulary cut to the checkpoint's 512
    keep = {t: i for t, i in spec["model"]["vocab"].items() if i < 512}
    spec["model"]["vocab"] = keep
    spec["model"]["merges"] = [m for m in spec["model"]["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) in keep
                               and all(x in keep for x in (m if isinstance(m, list) else m.split(" ")))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    data = write_texts(tmp_path / "texts.jsonl", 200)
    said, c = [], config(tmp_path, "--hidden_size", 64, "--num_hidden_layers", 2, "--from_resume", 1, "--tokenizer_path", tmp_path / "tokenizer.json",
                         "--max_steps", 12, "--dropout", 0, data=data)
    t = Trainer(c, say=said.append, progress=False)
    assert t.position == 3 * 1 * 2 and "not exact" in said[0]
    assert t.fit() == "finished"; t.close()
    assert list(tmp_path.glob("checkpoints/*.old0.pth")) and list(tmp_path.glob("out/*.old0.pth"))  # theirs are kept
    ours, theirs = resume_data(tmp_path, "pretrain_64"), torch.load(shared("golden/original_checkpoint/pretrain_64_resume.pth"), weights_only=True)
    assert set(theirs) <= set(ours) and list(ours["model"]) == list(theirs["model"])
    assert set(torch.load(tmp_path / "out/pretrain_64.pth", weights_only=True)) == set(torch.load(shared("golden/original_checkpoint/pretrain_64.pth"), weights_only=True))
