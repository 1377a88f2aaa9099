"""What is planted into a forked run before it starts: a kill, a wait, a NaN at a chosen place. Used as `Launch(hook=…)`."""
import os

def acknowledge(path):
    "Append the step to `path` each time a save has returned, as a person would see it."
    from minimind.trainer import Trainer
    save = Trainer.save
    def told(self, *args, **kw):
        done = save(self, *args, **kw)
        if done and self.world.is_main:
            with open(path, "a") as f: f.write(f"{self.saved_at}\n")
        return done
    Trainer.save = told

def truncate_tokens(cache, step):
    "Cut the token files below `cache` to half their length when step `step` is about to be read."
    from pathlib import Path
    from minimind.trainer import Trainer
    fetch = Trainer.fetch
    def cut(self, start, stop):
        if self.steps + 1 == step and self.world.is_main:
            for path in Path(cache).glob("*/train.tokens"): os.truncate(path, path.stat().st_size // 2)
        return fetch(self, start, stop)
    Trainer.fetch = cut

def other_code():
    "Pretend that a cell that defines the model was changed."
    import minimind.trainer
    minimind.trainer.code_digest = lambda: "changed0"
