"""The order of the rows: whatever the process counts, sizes and stops, each row is read once, in the same step."""
from collections import Counter
import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st
from minimind.sampler import SkipBatchSampler, epoch_order, micro_batches, rows_in_run, steps_in_epoch

def test_any_schedule_of_processes(campaign):
    examples = campaign.cases(500, 100_000)
    settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))(any_schedule)()
    campaign.passed("order of the rows", examples, "schedules")

@given(n=st.integers(1, 100), batch=st.integers(1, 9), micro=st.integers(1, 9), seed=st.integers(0, 2**63), epoch=st.integers(0, 50), data=st.data())
def any_schedule(n, batch, micro, seed, epoch, data):
    order, G = epoch_order(n, seed, epoch), batch * micro
    assert sorted(order.tolist()) == list(range(n))
    read, p = [], 0
    while p < n:
        world = data.draw(st.integers(1, 8))
        stop = min(p + G, n)
        per_rank = [micro_batches(p, stop, batch, r, world) for r in range(world)]
        assert [x for part in per_rank for x in part] == micro_batches(p, stop, batch)       # the same micro-batches, in order
        assert max(map(len, per_rank)) - min(map(len, per_rank)) <= 1                        # shared out evenly
        loaders = [iter(SkipBatchSampler(order, batch, p, G, r, world)) for r in range(world)]
        step = [row for part, it in zip(per_rank, loaders) for _ in part for row in next(it)]
        assert step == order[p:stop].tolist()
        read += step; p = stop
    assert Counter(read) == Counter(range(n))

@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 100), G=st.integers(1, 40), epochs=st.integers(1, 3), max_steps=st.integers(0, 30))
def test_where_a_run_ends(n, G, epochs, max_steps):
    total = steps = 0
    while steps < (max_steps or epochs * steps_in_epoch(n, G)):
        total += min(G, n - total % n); steps += 1
    assert rows_in_run(n, G, epochs, max_steps) == total

def test_seeds_and_epochs_differ_and_nothing_is_near_its_place():
    orders = [epoch_order(5000, s, e) for s in range(3) for e in range(3)]
    assert len({o.tobytes() for o in orders}) == 9
    for o in orders: assert abs(np.corrcoef(o, np.arange(5000))[0, 1]) < 0.06
