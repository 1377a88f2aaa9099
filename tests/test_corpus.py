"""The built-in corpus: pinned texts, one derivation each, and an entropy that samples confirm."""
import hashlib, json, math, os, subprocess, sys
import pytest
from hypothesis import given, settings, strategies as st
from minimind import corpus
from minimind.config import UserError
from minimind.corpus import (CORPUS, Grammar, all_texts, clashes, corpus_entropy, corpus_texts, derivations, dice, entropy,
                             log_prob, loss_floor, sample_text, slot_rules, surprise, template_parts, text_log_prob,
                             write_corpus)

# Pinned: a change here changes every run on the built-in corpus.
DICE = [6235967106033911276, 4964577235801436555, 5009519748041543987]  # seed 0, text 0
FIRST = ("One day Lily walked to the park with her frog. It was a rainy day. The frog found a green kite on a bench. "
         "The frog wanted the kite too, so they played together. Then Lily and the frog went home and had dinner.")
DIGEST_0, DIGEST_1 = "8f79482451f64336", "c5b8042d06b60b19"
ENTROPY = 20.77656812135153  # nats per text

def digest(texts): return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

def test_golden_dice_and_texts():
    rolls = dice(0, 0)
    assert [next(rolls) for _ in range(3)] == DICE
    assert next(corpus_texts(1)) == FIRST
    assert digest(corpus_texts(2000)) == DIGEST_0 and digest(corpus_texts(2000, seed=1)) == DIGEST_1
    assert corpus_entropy() == pytest.approx(ENTROPY, abs=1e-9)

def test_texts_do_not_depend_on_how_many():
    assert list(corpus_texts(50, 3)) == list(corpus_texts(400, 3))[:50]
    assert list(corpus_texts(0)) == []

def test_other_process_other_hash_seed_same_texts():
    code = "import hashlib; from minimind.corpus import corpus_texts as c; print(hashlib.sha256('\\0'.join(c(2000)).encode()).hexdigest()[:16])"
    out = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == DIGEST_0

def test_each_text_has_one_derivation():
    assert clashes(CORPUS) == []
    for text in corpus_texts(500, seed=11): assert len(list(derivations(CORPUS, text))) == 1

def test_grammar_is_complete():
    "Every rule is reachable, every slot is filled from one rule, every table knows every word it may be asked."
    seen, todo = set(), ["text"]
    while todo:
        rule = todo.pop()
        if rule in seen: continue
        seen.add(rule)
        todo += [p.rule for _, t in CORPUS.rules[rule] for p in template_parts(t) if hasattr(p, "rule")]
    assert seen == set(CORPUS.rules)
    filled = {}
    slots = slot_rules(CORPUS)
    for rule, options in CORPUS.rules.items():
        for weight, template in options:
            assert isinstance(weight, int) and weight > 0, (rule, template)
            for p in template_parts(template):
                if isinstance(p, corpus.Choose) and p.slot: assert filled.setdefault(p.slot, p.rule) == p.rule
                if isinstance(p, corpus.Recall):
                    words = {w for _, w in CORPUS.rules[slots[p.slot]]}
                    if p.table: assert words <= set(CORPUS.tables[p.table]), (template, p)
        assert len({t for _, t in options}) == len(options), rule

def test_entropy_agrees_with_samples():
    cost = [-text_log_prob(t) for t in corpus_texts(4000, seed=5)]
    mean = sum(cost) / len(cost)
    error = (sum((c - mean) ** 2 for c in cost) / len(cost) / len(cost)) ** .5
    assert abs(mean - corpus_entropy()) < 3 * error < 0.4

def test_the_two_languages_and_their_size():
    texts = list(corpus_texts(2000, seed=2))
    chinese = sum(any("\u4e00" <= c <= "\u9fff" for c in t) for t in texts)
    assert abs(chinese - 1000) < 4 * 500 ** .5
    assert len(set(texts)) > 1900  # nearly all different
    assert all(t == t.strip() and len(t) > 25 for t in texts)

words = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)

@settings(max_examples=60, deadline=None)
@given(words, words, st.lists(st.integers(1, 9), min_size=8, max_size=8), st.booleans())
def test_any_small_grammar(a, b, weights, again):
    "The structural check is right: no clash means one derivation for each text; then listing, entropy and probability agree."
    w = iter(weights)
    grammar = Grammar({"text": [(2, "{x=a}{b}" + "{=x}" * again), (1, ".{b}")],
                       "a": [(next(w), t) for t in a], "b": [(next(w), t) for t in b]})
    texts = list(all_texts(grammar))
    assert sum(p for _, p in texts) == 1
    if clashes(grammar): return
    assert len({t for t, _ in texts}) == len(texts)
    assert entropy(grammar) == pytest.approx(-sum(float(p) * math.log(p) for _, p in texts))
    for text, p in texts:
        assert log_prob(grammar, text) == pytest.approx(math.log(p)) and len(list(derivations(grammar, text))) == 1
    assert sample_text(grammar, dice(1, 2)) in dict(texts)

def test_ambiguity_is_found():
    for options in (["a", "ab"], ["a", "a"]):
        assert clashes(Grammar({"text": [(1, t) for t in options]}))
    assert clashes(Grammar({"text": [(1, "{n} b"), (1, "{m} b c")], "n": [(1, "x"), (1, "y")], "m": [(1, "y")]}))

def test_second_mentions_are_free_and_prefixes_add_up():
    import re
    for text in corpus_texts(30, seed=4):
        pieces = re.findall(r"\s?\S+", text) if text.isascii() else list(text)
        bars = surprise(text, pieces)
        assert sum(bars) == pytest.approx(-text_log_prob(text)) and min(bars) >= 0
    text = next(t for t in corpus_texts(99) if "In the end they took" in t)
    pieces = re.findall(r"\s?\S+", text)
    last = surprise(text, pieces)[-3:]  # colour, thing, home
    assert max(last) < 1e-9

def test_foreign_texts_are_refused():
    for text in ("", "Tom", "从前", next(corpus_texts(1)) + " ", next(corpus_texts(1))[:-1]):
        with pytest.raises(ValueError, match="cannot make"): text_log_prob(text)
    with pytest.raises(UserError, match="cannot make 'other'"): loss_floor([next(corpus_texts(1)), "other"], 10)
    with pytest.raises(UserError, match="cannot make"): surprise("abc", ["abc"])

def test_write_corpus(tmp_path):
    path = write_corpus(tmp_path / "new" / "c.jsonl", 20, seed=3)
    content = path.read_bytes()
    lines = content.decode("utf-8").splitlines()
    assert [json.loads(l) for l in lines] == [{"text": t} for t in corpus_texts(20, 3)]
    assert b"\\u" not in content and b"\r" not in content and content.endswith(b"\n")
    assert write_corpus(str(path), 20, seed=3).read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["c.jsonl"]

def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_corpus(tmp_path / "c.jsonl", 5)
    before = path.read_bytes()
    def broken(n, seed):
        yield "one"
        raise OSError("disk full")
    monkeypatch.setattr(corpus, "corpus_texts", broken)
    with pytest.raises(OSError): write_corpus(path, 9)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["c.jsonl"]
