"""From JSONL to rows: the original's rows exactly, every token once, one build for many processes, steady memory."""
import gzip, json, sys
import numpy as np
from hypothesis import given, settings, strategies as st
from helpers import ROOT, run, start, write_texts
from minimind.dataset import Documents, PretrainDataset, SplitWriter, tokenise
from minimind.tokenizer import load_tokenizer

def test_the_originals_rows(tmp_path, shared):
    golden = json.loads(shared("golden/dataset_rows.json").read_text())
    tokenizer = load_tokenizer(shared("data/minimind_tokenizer"))
    path = tmp_path / "golden.jsonl"
    path.write_text("".join(json.dumps({"text": r["text"]}) + "\n" for r in golden["rows"]))
    data = PretrainDataset(path, tokenizer, golden["max_length"], packing="none", cache_dir=tmp_path / "cache", progress=False)
    assert len(data) == len(golden["rows"])
    for i, row in enumerate(golden["rows"]):
        assert data[i]["input_ids"].tolist() == row["input_ids"] and data[i]["labels"].tolist() == row["labels"]

@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=30), T=st.integers(2, 25))
def test_every_token_is_a_target_once(tmp_path_factory, lengths, T):
    folder = tmp_path_factory.mktemp("docs")
    documents = [[1, *range(100 * i + 10, 100 * i + 10 + n - 2), 2] for i, n in enumerate(lengths)]
    w = SplitWriter(folder, "train", "<u2"); w.add(documents, 0)
    (folder / "header.json").write_text(json.dumps(dict(dtype="<u2", splits=dict(train=w.close()))))
    class Tokenizer: pad_id = 0
    data = PretrainDataset(Documents(folder), Tokenizer, T)
    batch = data.__getitems__(range(len(data)))
    labels, ids, numbers = (batch[k].numpy() for k in ("labels", "input_ids", "document_ids"))
    targets = labels[labels != -100]
    assert targets.tolist() == [t for d in documents for t in d[1:]]
    for row in range(len(data)):
        for t in range(1, T):  # a target's context is its own document's
            if labels[row, t] != -100: assert numbers[row, t] == numbers[row, t - 1] >= 0 and labels[row, t] == ids[row, t]
            elif numbers[row, t] >= 0: assert ids[row, t] == 1
    assert (labels[:, 0] == -100).all() and (numbers[-1] == -1).sum() == len(data) * (T - 1) + 1 - sum(lengths)

def test_several_files_plain_and_gz(tmp_path):
    a = write_texts(tmp_path / "a.jsonl", 10)
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as f: f.write(a.read_bytes())
    docs = Documents(tokenise([a, tmp_path / "b.jsonl.gz"], load_tokenizer(), tmp_path / "cache", progress=False))
    assert len(docs) == 20 and all(np.array_equal(docs[i], docs[i + 10]) for i in range(10))

def test_held_out_documents_are_never_trained_on(tmp_path):
    data = write_texts(tmp_path / "a.jsonl", 400)
    folder = tokenise(data, load_tokenizer(), tmp_path / "cache", val_fraction=0.2, progress=False)
    train, val = ({tuple(d) for d in Documents(folder, s)} for s in ("train", "val"))
    assert train and val and not train & val
    assert len(Documents(folder, "train")) + len(Documents(folder, "val")) == 400

def test_processes_that_start_cold_build_once(tmp_path):
    data = write_texts(tmp_path / "a.jsonl", 3000)
    code = ("import sys, os; from minimind.dataset import *; from minimind.tokenizer import load_tokenizer; import minimind.dataset as d\n"
            "build = d.build_tokens; d.build_tokens = lambda *a: (print('built'), build(*a))\n"
            f"print(tokenise({str(data)!r}, load_tokenizer(), {str(tmp_path / 'cache')!r}, progress=False))")
    both = [start([sys.executable, "-c", code], ROOT) for _ in range(2)]
    outs = [p.communicate(timeout=120)[0] for p in both]
    assert sum(o.count("built") for o in outs) == 1 and outs[0].split()[-1] == outs[1].split()[-1]

def test_memory_does_not_grow_with_the_corpus(tmp_path):
    "Eight times the text needs less than a fifth more memory to tokenise."
    peaks = []
    for times in (1, 8):
        path = tmp_path / f"{times}.jsonl"
        line = json.dumps({"text": "the sun sets in the west and the moon rises " * 40}) + "\n"
        with open(path, "w") as f:
            for i in range(2000 * times): f.write(line)
        code = ("import resource; from minimind.dataset import tokenise; from minimind.tokenizer import load_tokenizer\n"
                f"tokenise({str(path)!r}, load_tokenizer(), {str(tmp_path / 'cache')!r}, progress=False)\n"
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
        peaks.append(int(run([sys.executable, "-c", code], ROOT)[1].split()[-1]))
    assert peaks[1] < 1.2 * peaks[0], peaks

def test_an_edited_file_is_tokenised_again(tmp_path):
    data = write_texts(tmp_path / "a.jsonl", 30)
    tokens = lambda: Documents(tokenise(data, load_tokenizer(), tmp_path / "cache", progress=False)).tokens.tolist()
    first = tokens()
    text = data.read_text(); data.write_text(text.replace("sun", "sea"))  # the same size
    assert tokens() != first
    data.write_text(text)
    assert tokens() == first
