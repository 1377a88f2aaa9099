"""What is planted into a forked run before it starts: a kill, a wait, a NaN at a chosen place. Used as `Launch(hook=…)`."""
import os, signal, time

def acknowledge(path):
    "Append the step to `path` each time a save has returned, as a person would see it."
    from minimind.trainer import Trainer
    save = Trainer.save
    def told(self):
        done = save(self)
        if done and self.world.is_main:
            with open(path, "a") as f: f.write(f"{self.saved_at}\n")
        return done
    Trainer.save = told
