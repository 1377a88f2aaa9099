"""A user's mistake ends in one line that names the value and says what to do, exit code 2, and no traceback."""
import gzip, os, sys, pytest
from helpers import PRETRAIN, TINY, places, run, torchrun, write_texts
from minimind.pretrain import main, parser

def complain(capsys, *flags):
    "Exit code and the error's line, in this process."
    try: code = main(parser.parse_args(list(map(str, flags))))
    except SystemExit as e: code = e.code
    err = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    return code, err[-1] if err else ""

CASES = {  # what is in the file, or None; flags; what the line must say
    "missing file": (None, ["--data_path", "no/such.jsonl"], ["no/such.jsonl", "no such file"]),
    "a folder": (None, ["--data_path", "."], ["is a folder"]),
    "empty file": (b"", [], ["texts.jsonl", "no text to train on"]),
    "not JSON": (b'{"text": "fine"}\n{"text": oops}\n', [], ["texts.jsonl:2", "not JSON"]),
    "no text": (b'{"text": "fine"}\n\n{"content": "x"}\n', [], ["texts.jsonl:3", "no field 'text'", "'content'", "--text_field"]),
    "null text": (b'{"text": null}\n', [], ["texts.jsonl:1", "null"]),
    "a list": (b'[1, 2]\n', [], ["texts.jsonl:1", "list"]),
    "not UTF-8": (b'{"text": "\xff\xfe"}\n', [], ["texts.jsonl:1", "UTF-8"]),
    "half a character": (b'{"text": "\\ud83d"}\n', [], ["texts.jsonl:1", "surrogate"]),
    "cut gzip": (gzip.compress(b'{"text": "fine"}\n' * 1000)[:-9], [], ["texts.jsonl.gz", "broken gzip"]),
    "too little": (b'{"text": "fine"}\n', ["--batch_size", 64], ["fewer than one batch (batch_size 64)"]),
    "no tokenizer": (b'{"text": "fine"}\n', ["--tokenizer_path", "nowhere"], ["nowhere"]),
    "wrong tokenizer": (b'{"text": "fine"}\n', ["--tokenizer_path", "texts.jsonl"], ["texts.jsonl"]),
    "heads": (b'{"text": "fine"}\n', ["--hidden_size", 100, "--num_attention_heads", 8], ["hidden_size 100", "num_attention_heads 8"]),
    "groups": (b'{"text": "fine"}\n', ["--num_attention_heads", 4, "--num_key_value_heads", 3], ["num_attention_heads 4", "num_key_value_heads 3"]),
    "experts": (b'{"text": "fine"}\n', ["--use_moe", 1, "--num_experts_per_tok", 5], ["num_experts_per_tok 5", "num_experts 4"]),
    "device": (b'{"text": "fine"}\n', ["--device", "cuda:99"], ["device", "cuda:99"]),
    "odd device": (b'{"text": "fine"}\n', ["--device", "gpu"], ["device 'gpu' is not there"]),
    "not a number": (None, ["--epochs", "many"], ["--epochs", "many"]),
    "unknown flag": (None, ["--epoch", "1"], ["--epoch"]),
    "a negative": (None, ["--batch_size", -1], ["batch_size", "-1"]),
    "no rate": (None, ["--learning_rate", "nan"], ["learning_rate", "nan"]),
    "an endless rate": (None, ["--learning_rate", "inf"], ["learning_rate", "inf"]),
    "a folder that can't be": (b'{"text": "fine, and a little more of it"}\n', ["--batch_size", 1, "--max_seq_len", 4, "--checkpoint_dir", "/dev/null/x"], ["cannot write to /dev/null/x"]),
    "neither 0 nor 1": (None, ["--use_moe", "yes"], ["'yes' is neither 0 nor 1"]),
    "a path as a name": (None, ["--save_weight", "../x"], ["'../x' is not a name"]),
    "no weights": (b'{"text": "fine"}\n', ["--batch_size", 1, "--from_weight", "other"], ["other_32.pth", "no such file"]),
    "a file for a folder": (b'{"text": "fine"}\n', ["--batch_size", 1, "--cache_dir", "/dev/null/x"], ["/dev/null", "--cache_dir"]),
}

@pytest.mark.parametrize("case", CASES)
def test_one_line(tmp_path, capsys, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    content, flags, words = CASES[case]
    name = "texts.jsonl.gz" if "gzip" in case else "texts.jsonl"
    if content is not None: (tmp_path / name).write_bytes(content); flags = ["--data_path", name, *flags]
    code, line = complain(capsys, *TINY, *places(tmp_path), "--val_fraction", 0, *flags)
    assert code == 2, (code, line)
    for word in words: assert word in line, line
    assert not list((tmp_path / "cache").glob(".*tmp")) and not list((tmp_path / "out").glob("*"))

def test_no_traceback_from_the_command(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    code, out, err = run([sys.executable, PRETRAIN, *TINY, "--data_path", "bad.jsonl"], tmp_path)
    assert code == 2 and err.strip().splitlines()[-1].startswith("minimind-pretrain: error:") and "Traceback" not in err
    code, out, err = run(torchrun(2, PRETRAIN, *TINY, "--data_path", "bad.jsonl"), tmp_path)
    assert code == 1 and err.count("minimind-pretrain: error:") == 1 and "pretrain.py\", line" not in err

def test_from_weight_is_strict(tmp_path, capsys):
    import torch
    data = write_texts(tmp_path / "texts.jsonl")
    flags = [*TINY, *places(tmp_path), "--data_path", data, "--max_steps", 2]
    assert complain(capsys, *flags)[0] == 0
    good = torch.load(tmp_path / "out/pretrain_32.pth", weights_only=True)
    assert complain(capsys, *flags, "--from_weight", "pretrain", "--save_weight", "second")[0] == 0
    for name, change in (("lacks", lambda w: w.pop("model.norm.weight")), ("has", lambda w: w.update(more=torch.ones(2))),
                         ("is", lambda w: w.update({"model.norm.weight": torch.ones(5)}))):
        weights = dict(good); change(weights); torch.save(weights, tmp_path / f"out/{name}_32.pth")
        code, line = complain(capsys, *flags, "--from_weight", name, "--save_weight", "third")
        assert code == 2 and name in line and ("model.norm.weight" in line or "more" in line)
    (tmp_path / "out/evil_32.pth").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    assert complain(capsys, *flags, "--from_weight", "evil", "--save_weight", "third")[0] == 2 and not os.path.exists("executed")

def test_nothing_is_overwritten_silently(tmp_path, capsys):
    data = write_texts(tmp_path / "texts.jsonl")
    flags = [*TINY, *places(tmp_path), "--data_path", data]
    (tmp_path / "out").mkdir(); (tmp_path / "out/pretrain_32.pth").write_text("precious")
    code, line = complain(capsys, *flags, "--max_steps", 2)
    assert code == 2 and "--overwrite 1" in line and (tmp_path / "out/pretrain_32.pth").read_text() == "precious"
    assert complain(capsys, *flags, "--max_steps", 2, "--overwrite", 1)[0] == 0
    assert (tmp_path / "out/pretrain_32.old0.pth").read_text() == "precious"
    code, line = complain(capsys, *flags, "--max_steps", 3)
    assert code == 2 and "another plan" in line
    assert complain(capsys, *flags, "--max_steps", 2)[0] == 0  # the same run again is fine
    assert (tmp_path / "checkpoints/.pretrain_32.gens.replaced0/0000000002").is_dir()

def test_not_finite_stops_with_its_own_code(tmp_path, capsys, monkeypatch):
    from minimind.trainer import Trainer
    from helpers import resume_data, steps
    data = write_texts(tmp_path / "texts.jsonl")
    backward = Trainer.backward
    monkeypatch.setattr(Trainer, "backward", lambda self, batches, n: [float("nan"), 0.0] if self.steps >= 5 else backward(self, batches, n))
    code, line = complain(capsys, *TINY, *places(tmp_path), "--data_path", data, "--save_interval", 1, "--max_steps", 12)
    assert code == 3 and "step 8" in line and "learning rate" in line and "rows" in line
    assert resume_data(tmp_path)["minimind"]["steps"] == 5 and len(steps(tmp_path)) == 5
