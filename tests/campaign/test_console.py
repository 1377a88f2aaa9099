"""Checkpoints are looked at, rolled back, moved and copied: what goes on from them ends as if nothing had happened."""
import shutil
import pytest
from minimind.checkpoint import console
from world import NAME, final, go, small_world, weights

@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    "Flags of a run of 12 steps, and the folder of one that was left alone."
    folder = tmp_path_factory.mktemp("ground")
    flags = [*small_world(folder), "--max_steps", 12, "--save_interval", 2, "--keep_every", 4]
    go(folder / "whole", flags)
    return flags, folder / "whole"

def ask(capsys, *args):
    "Exit code and output of `python -m minimind.checkpoint`."
    try: code = console(list(map(str, args)))
    except SystemExit as e: code = e.code
    return code, "".join(capsys.readouterr())

def test_back_and_on_again(ground, tmp_path, capsys):
    "Rolled back to a generation that was kept for good, the run goes on from there to the same end."
    flags, whole = ground
    ref, other = tmp_path / "checkpoints" / NAME, whole / "checkpoints" / NAME
    go(tmp_path, [*flags, "--stop_after", 8], want=75)
    assert [line.split()[0] for line in ask(capsys, "list", ref.parent)[1].splitlines()] == [f"{NAME}@{n}" for n in (8, 6, 4)]
    assert ask(capsys, "compare", ref, other)[0] == 1 and ask(capsys, "verify", ref) == (0, "".join(f"{NAME}@{n}  good\n" for n in (8, 6, 4)))
    code, text = ask(capsys, "rollback", f"{ref}@4")
    assert code == 2 and "give the run's --save_dir" in text and len(ask(capsys, "list", ref)[1].splitlines()) == 3
    code, text = ask(capsys, "rollback", f"{ref}@4", "--save_dir", tmp_path / "out")
    assert code == 0 and text.splitlines() == [f"{NAME}@8 set aside", f"{NAME}@6 set aside", f"{NAME}@4 is the newest now"]
    assert "after step 4 of 12" in go(tmp_path, [*flags, "--from_resume", 1]) and final(tmp_path) == final(whole)
    assert ask(capsys, "compare", ref, other)[1].endswith("model and optimizer: the same bits\n")

def test_a_plan_passes_over_damage(ground, tmp_path, capsys):
    "As a resume would, it says so and plans from the generation before; asked for the damaged one, it refuses."
    shutil.copytree(ground[1], tmp_path / "copy", symlinks=True)
    ref = tmp_path / "copy/checkpoints" / NAME
    (ref.parent / f".{NAME}.gens/0000000012/resume.pth").write_bytes(b"other")
    code, text = ask(capsys, "plan", ref, 2)
    assert code == 0 and "resume.pth has 5 of" in text and "after step 10: " in text
    assert ask(capsys, "plan", f"{ref}@12", 2)[0] == 2
    assert ask(capsys, "plan", ground[1] / "checkpoints" / NAME, 2) == (0, "after step 12: epoch 0, position 48 of 73, 0 steps left\n")

@pytest.mark.parametrize("args,word", [(["show", "nope"], "there is no checkpoint of nope"), (["verify", "{}@99"], "has no generation '99'"),
                                       (["plan", "{}", "0"], "0 processes can't train"), (["plan", "{}", "x"], "invalid int value"), ([], "required: command"),
                                       (["rollback", "{}"], "names no generation"), (["show", "../x y"], "is not a name")])
def test_mistakes_are_one_line(ground, capsys, args, word):
    code, text = ask(capsys, *[a.format(ground[1] / "checkpoints" / NAME) for a in args])
    assert code == 2 and word in text and len(text.strip().splitlines()) == 1

def test_copied_and_moved(ground, tmp_path):
    "The visible resume file alone goes on elsewhere, and so do the folders in another place, with the weights deleted."
    flags, whole = ground
    go(tmp_path / "first", [*flags, "--stop_after", 5], want=75)
    (tmp_path / "copy/checkpoints").mkdir(parents=True)
    shutil.copy(tmp_path / f"first/checkpoints/{NAME}_resume.pth", tmp_path / "copy/checkpoints")
    shutil.move(tmp_path / "first", tmp_path / "moved"); shutil.rmtree(tmp_path / "moved/out")
    for name in ("copy", "moved"):
        assert "exact, bit for bit" in go(tmp_path / name, [*flags, "--from_resume", 1]) and weights(tmp_path / name) == weights(whole)

def test_under_a_launcher_that_restarts(ground, tmp_path):
    "A planned stop is no failure there, and a restart resumes without being told to; without a checkpoint it starts."
    flags, whole = ground
    go(tmp_path, [*flags, "--stop_after", 2], TORCHELASTIC_MAX_RESTARTS="3")
    go(tmp_path, flags, TORCHELASTIC_RESTART_COUNT="1", TORCHELASTIC_MAX_RESTARTS="3")
    go(tmp_path / "new", flags, TORCHELASTIC_RESTART_COUNT="1")
    assert final(tmp_path) == final(tmp_path / "new") == final(whole)

@pytest.mark.parametrize("more", [["--dtype", "float16"], ["--dtype", "bfloat16", "--use_moe", 1], ["--packing", "none"]], ids=lambda m: " ".join(map(str, m)))
def test_same_bits_in_other_types(ground, tmp_path, more):
    "--same_bits 1 on one process, and on three, four and two of them: half precision with its scaler, a mixture, padded rows."
    flags = [*ground[0], "--same_bits", 1, "--batch_size", 1, "--accumulation_steps", 6, "--max_steps", 7, *more]
    name = NAME + "_moe" * ("--use_moe" in more)
    go(tmp_path / "one", flags)
    go(tmp_path / "many", [*flags, "--stop_after", 1], want=75)
    for size, stop in ((3, 2), (4, 2), (2, 0)): go(tmp_path / "many", [*flags, "--from_resume", 1, "--stop_after", stop], size, want=75 if stop else 0)
    assert final(tmp_path / "many", name) == final(tmp_path / "one", name)
