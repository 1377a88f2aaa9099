"""The tokenizer: golden ids, round trips, markers in texts, files of every kind of wrongness, and the shipped file's origin."""
import json, pickle, re, subprocess, sys
from pathlib import Path
import pytest, tokenizers
from hypothesis import given, settings, strategies as st
from minimind.config import UserError
from minimind.corpus import corpus_texts
from minimind.tokenizer import (ADDED_TOKENS, SHIPPED_DATA, SPECIAL_TOKENS, load_tokenizer, read_texts, train_shipped_tokenizer,
                                train_tokenizer)

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = load_tokenizer()
ODD = ["", " ", "\n\n", "\x00\x07\x7f", "太阳 and moon", "😀👨‍👩‍👧", "é", "\ufeff", "<|im_start|>user\n你好<|im_end|>", "<think>x</think>",
       "<|endoftext|>" * 3, "<tool_call>", "<|buffer9|>", "<tts_pad>", "a" * 3000, "\u202e\u0301"]

def data(shared): return {name: shared(f"data/{name}.jsonl") for name in SHIPPED_DATA}

@pytest.fixture
def original(shared): return load_tokenizer(shared("data/minimind_tokenizer"))

def test_golden_rows(original, shared):
    golden = json.loads(shared("golden/dataset_rows.json").read_text(encoding="utf-8"))
    assert (original.bos_id, original.eos_id, original.pad_id) == (golden["bos"], golden["eos"], golden["pad"])
    for row in golden["rows"]:
        ids = original.encode(row["text"], control=True)[:golden["max_length"] - 2]
        ids = [original.bos_id, *ids, original.eos_id]
        assert ids + [original.pad_id] * (golden["max_length"] - len(ids)) == row["input_ids"]

def test_same_reserved_tokens_as_the_original(original):
    for i, token in enumerate(SPECIAL_TOKENS + ADDED_TOKENS):
        assert SHIPPED.control.id_to_token(i) == original.control.id_to_token(i) == token
    added = lambda t: [{k: a[k] for k in ("id", "content", "special")} for a in t.spec["added_tokens"]]
    assert added(SHIPPED) == added(original)
    assert SHIPPED.vocab_size == original.vocab_size == 6400

@pytest.mark.parametrize("text", ODD)
def test_round_trip_and_no_control_ids(text):
    ids = SHIPPED.encode(text)
    assert SHIPPED.decode(ids) == text and min(ids, default=36) >= 36
    assert SHIPPED.encode_batch([text]) == [ids]

def test_the_original_too(original):
    for text in ODD:
        ids = original.encode(text)
        assert original.decode(ids) == text and min(ids, default=36) >= 36
    assert original.encode_batch(ODD, control=True) == [original.encode(t, control=True) for t in ODD]

@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_round_trip_of_anything(text):
    assert SHIPPED.decode(SHIPPED.encode(text)) == text

@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(SPECIAL_TOKENS + ADDED_TOKENS + ["<", "|>", " ", "天", "x"])))
def test_markers_never_become_control_ids(pieces):
    text = "".join(pieces)
    ids = SHIPPED.encode(text)
    assert SHIPPED.decode(ids) == text and min(ids, default=36) >= 36

def test_control_true_is_what_the_library_does():
    text = "<|im_start|>user\n你好<|im_end|>"
    ids = SHIPPED.encode(text, control=True)
    assert ids[0] == 1 and ids[-1] == 2
    assert SHIPPED.decode(ids) == "user\n你好" and SHIPPED.decode(ids, skip_special=False) == text

def test_bad_texts_name_the_place():
    with pytest.raises(UserError, match=r"'\\ud800' at character 2"): SHIPPED.encode("ab\ud800")
    with pytest.raises(UserError, match="text 2 of the batch has half"): SHIPPED.encode_batch(["a", "b", "\udfff", "c"])
    with pytest.raises(UserError, match="text 1 of the batch is None"): SHIPPED.encode_batch(["a", None])
    with pytest.raises(UserError, match="text is b'x'"): SHIPPED.encode(b"x")

def test_pickle_and_another_process():
    again = pickle.loads(pickle.dumps(SHIPPED))
    assert again.encode_batch(ODD) == SHIPPED.encode_batch(ODD) and again.fingerprint == SHIPPED.fingerprint
    code = "import sys, pickle; t = pickle.load(sys.stdin.buffer); print(t.encode('太阳 <|im_end|>'), t.fingerprint)"
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(SHIPPED), capture_output=True, cwd=ROOT, check=True)
    assert out.stdout.decode().strip() == f"{SHIPPED.encode('太阳 <|im_end|>')} {SHIPPED.fingerprint}"

def test_import_needs_no_torch():
    code = "import sys, minimind.corpus, minimind.tokenizer; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip() == "False"

def test_fingerprint_ignores_formatting_only(tmp_path):
    spec = json.loads(Path(SHIPPED.path).read_text(encoding="utf-8"))
    (tmp_path / "a.json").write_text(json.dumps(spec, indent=2, sort_keys=True), encoding="utf-8")
    assert load_tokenizer(tmp_path / "a.json").fingerprint == SHIPPED.fingerprint
    spec["added_tokens"].pop()
    (tmp_path / "b.json").write_text(json.dumps(spec), encoding="utf-8")
    assert load_tokenizer(tmp_path / "b.json").fingerprint != SHIPPED.fingerprint

def test_save_and_load(tmp_path):
    trained = train_tokenizer(corpus_texts(100), 400)
    path = trained.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.path == str(path) and loaded.vocab_size == 400 and loaded.fingerprint == trained.fingerprint
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]

def folder_with(tmp_path, vocab, config=None):
    "A folder with a little word tokenizer of another family."
    t = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(vocab)}, unk_token=vocab[0]))
    t.add_special_tokens([w for w in vocab if w.startswith("<")])
    t.enable_truncation(2); t.enable_padding(length=9)
    t.save(str(tmp_path / "tokenizer.json"))
    if config is not None: (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path

def test_marker_names(tmp_path):
    t = load_tokenizer(folder_with(tmp_path, ["x", "<s>", "</s>"]))
    assert (t.bos_id, t.eos_id, t.pad_id) == (1, 2, 2)  # padding falls back to the end marker
    t = load_tokenizer(folder_with(tmp_path, ["x", "<a>", "<b>", "<p>"], {"bos_token": {"content": "<a>"}, "eos_token": "<b>", "pad_token": "<p>"}))
    assert (t.bos_id, t.eos_id, t.pad_id) == (1, 2, 3)
    t = load_tokenizer(folder_with(tmp_path, ["x", "<|endoftext|>"], {"bos_token": None}))
    assert (t.bos_id, t.eos_id, t.pad_id) == (1, 1, 1)
    assert t.encode("x") == [0]  # a file's truncation and padding are not ours

def one_line(match): return pytest.raises(UserError, match=match)

def test_errors_are_one_line(tmp_path):
    with one_line("there is no tokenizer at .*nowhere"): load_tokenizer(tmp_path / "nowhere")
    with one_line("holds no tokenizer.json"): load_tokenizer(tmp_path)
    for content in (b"", b"{", b"[1]", b"{}", b'{"model": {"type": "BPE"}}', b"\xff\xfe", b'{"text": "a corpus"}'):
        (tmp_path / "t.json").write_bytes(content)
        with one_line("t.json is not a tokenizer file") as e: load_tokenizer(tmp_path / "t.json")
        assert "\n" not in str(e.value)
    with one_line("no bos token; looked for <|im_start|>, ".replace("|", r"\|")): load_tokenizer(folder_with(tmp_path, ["x", "</s>"]))
    with one_line("no eos token; looked for <z>"): load_tokenizer(folder_with(tmp_path, ["x", "<s>"], {"eos_token": "<z>"}))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with one_line("tokenizer_config.json is not JSON"): load_tokenizer(tmp_path)

def test_corpus_words_are_cheap():
    texts = list(corpus_texts(400, seed=9))
    mean = sum(map(len, SHIPPED.encode_batch(texts))) / len(texts)
    assert 25 < mean < 60

def test_table_in_the_notebook(shared, original):
    "The page's bytes-per-token table, measured again."
    cells = json.loads((ROOT / "nbs/06_tokenizer.ipynb").read_text(encoding="utf-8"))["cells"]
    prose = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    rows = {r[0]: (int(r[1].replace(",", "")), float(r[2]), float(r[3]))
            for r in re.findall(r"\| `(\w+)` \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", prose)}
    assert set(rows) == set(SHIPPED_DATA)
    for name, path in data(shared).items():
        texts = read_texts(path)
        size = sum(len(t.encode()) for t in texts)
        per_token = [size / sum(map(len, t.encode_batch(texts))) for t in (SHIPPED, original)]
        assert rows[name] == (size, *(pytest.approx(x, abs=0.0051) for x in per_token)), name
        assert per_token[0] > per_token[1]

def test_training_again_gives_the_shipped_file(shared, tmp_path):
    again = train_shipped_tokenizer(data(shared)["tang_poems_zh"].parent)
    assert again.fingerprint == SHIPPED.fingerprint, f"trained by tokenizers 0.23, tested with {tokenizers.__version__}"
    assert again.save(tmp_path / "t.json").read_bytes() == Path(SHIPPED.path).read_bytes()
