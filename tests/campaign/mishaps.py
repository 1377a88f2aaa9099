"""What befalls the processes of a forked run at a chosen place: a wait, a signal, a number that is not finite, a clock that jumps."""
import hashlib, math, os, random, time
from pathlib import Path
import torch
from minimind.checkpoint import CheckpointStore
from minimind.trainer import Trainer

def rank(): return int(os.environ.get("RANK", 0))

def all_of(*hooks):
    "Several hooks, each (function, arguments ...)."
    for f, *args in hooks: f(*args)

PLACES = dict(step=(Trainer, "one_step", lambda self, *args: self.steps + 1), #        place: class, method, step that it belongs to
              forward=(Trainer, "forward", lambda self, *args: self.steps + 1),
              update=(Trainer, "update", lambda self, *args: self.steps + 1),
              told=(Trainer, "save", lambda self, *args: self.steps), #               on every process: a save begins
              save=(CheckpointStore, "commit", lambda self, number, *args: number), #  nothing is written yet
              commit=(CheckpointStore, "make_way", lambda self, final, *args: int(final.name)), # all is written, not renamed
              rotate=(CheckpointStore, "rotate", lambda self, *args: int(self.generations()[0].name))) # renamed

def at(place, step, ranks, act):
    "Call `act()` each time a process of `ranks` (None: any) comes to that place of that step."
    if ranks is not None and rank() not in ranks: return
    owner, name, step_of = PLACES[place]
    method = getattr(owner, name)
    def planted(self, *args, **kw):
        if step_of(self, *args) == step: act()
        return method(self, *args, **kw)
    setattr(owner, name, planted)

def pause(place, step, ranks, folder):
    "There, leave `folder`/here<rank> and wait for `folder`/go."
    def wait():
        (Path(folder) / f"here{rank()}").touch()
        while not (Path(folder) / "go").exists(): time.sleep(0.001)
    at(place, step, ranks, wait)

def strike(place, step, ranks, sent):
    "There, send this process a signal."
    at(place, step, ranks, lambda: os.kill(os.getpid(), sent))

def strike_at_start(ranks, sent):
    "Send a signal before the processes have met."
    if rank() in ranks: os.kill(os.getpid(), sent)

def note_end(folder):
    "Leave `folder`/end<rank> with the step after which `fit` returned."
    fit = Trainer.fit
    def noted(self):
        reason = fit(self)
        (Path(folder) / f"end{rank()}").write_text(str(self.steps))
        return reason
    Trainer.fit = noted

def note_weights(folder):
    "Append to `folder`/weights<rank> each step's number and a digest of this process's parameters and moments after it."
    one_step = Trainer.one_step
    def noted(self):
        record, sha = one_step(self), hashlib.sha256()
        for p in self.model.parameters():
            for t in (p, *self.optimizer.state.get(p, {}).values()): sha.update(t.detach().contiguous().numpy().tobytes())
        with open(Path(folder) / f"weights{rank()}", "a") as f: f.write(f"{self.steps} {sha.hexdigest()}\n")
        return record
    Trainer.one_step = noted

def not_finite(kind, bad_steps, ranks):
    "In these steps, on these ranks: a NaN loss, a gradient or one number of it, before or after the sum over processes, an overflow in float16."
    if rank() not in ranks: return
    forward, backward, bad = Trainer.forward, Trainer.backward, lambda self: self.steps + 1 in bad_steps
    def spoilt(gradient, value):
        gradient = gradient.clone(); gradient.view(-1)[-1] = value
        return gradient
    def bad_loss(self, *args):
        out = forward(self, *args)
        if bad(self): out.loss = out.loss * math.nan
        return out
    def bad_gradient(self, *args):
        *_, p = self.model.parameters()
        spoil = (lambda g: torch.full_like(g, math.inf)) if kind == "gradient" else (lambda g: spoilt(g, math.nan))
        hook = p.register_hook(spoil) if bad(self) else None
        try: return backward(self, *args)
        finally:
            if hook: hook.remove()
    def bad_sum(self, *args):
        shares, (*_, p) = backward(self, *args), self.model.parameters()
        if bad(self): p.grad = spoilt(p.grad, math.nan)
        return shares
    def overflow(self, *args):
        out, first = forward(self, *args), args[0] in (self.position, self.position + self.plan.batch_size * self.plan.accumulation_steps)
        if bad(self) and first: out.loss.register_hook(lambda g: g * 2.0**60)
        return out
    if kind == "loss": Trainer.forward = bad_loss
    elif kind == "overflow": Trainer.forward = overflow
    else: Trainer.backward = bad_sum if kind == "sum" else bad_gradient

def clock(offset, seed=None):
    "The wall clock is off by `offset` seconds; with a seed it also jumps by up to a year at each look. The monotonic one is left alone."
    now, now_ns, chance = time.time, time.time_ns, random.Random(seed)
    jump = lambda: offset + (chance.uniform(-3e7, 3e7) if seed is not None else 0)
    time.time, time.time_ns = lambda: now() + jump(), lambda: now_ns() + int(jump() * 10**9)

def slow_to_tell():
    "The name of the lock's holder appears a fifth of a second after the lock is taken."
    write_text = Path.write_text
    def slow(self, *args, **kw):
        if self.name.endswith(".owner"): time.sleep(0.2)
        return write_text(self, *args, **kw)
    Path.write_text = slow
