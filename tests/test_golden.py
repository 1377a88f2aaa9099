"""The model against numbers that the original produced (../shared/golden), to 1e-5."""
import json
import pytest, torch
from torch.testing import assert_close
from minimind.config import MiniMindConfig
from minimind.model import MiniMindForCausalLM
from minimind.rope import rope_tables

NAMES = ["dense", "moe_top1", "moe_top2", "yarn"]
close = lambda a, b: assert_close(a, b, rtol=1e-5, atol=1e-5)

@pytest.fixture(params=NAMES)
def golden(request, shared):
    "The original's tensors, and our model with its weights."
    load_file = pytest.importorskip("safetensors.torch").load_file
    t = load_file(shared(f"golden/{request.param}.safetensors"))
    config = MiniMindConfig(**json.loads(shared(f"golden/{request.param}.json").read_text()))
    config.router_aux_loss_coef *= config.num_experts_per_tok  # the original counts every choice, we their mean
    model = MiniMindForCausalLM(config)
    weights = {k.removeprefix("weight."): v for k, v in t.items() if k.startswith("weight.")}
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return t, model

def test_loss_logits_gradients_and_a_step(golden):
    t, model = golden
    out = model(t["input_ids"], labels=t["labels"])
    close(out.logits, t["logits"]); close(out.loss, t["loss"].squeeze()); close(out.aux_loss, t["aux_loss"].squeeze())
    (out.loss + out.aux_loss).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    grads = {k: p.grad.clone() for k, p in model.named_parameters()}
    for k, g in grads.items(): close(g, t[f"grad.{k}"])
    close(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), t["grad_total_norm"].squeeze())
    optimizer.step()
    for k, p in model.named_parameters(): close(p.detach(), t[f"after_adamw.{k}"])

@torch.no_grad()
def test_cached_logits_and_greedy_ids(golden):
    t, model = golden
    ids = t["input_ids"]; model.eval()
    close(model(ids).logits, t["eval_logits"])
    out = model(ids[:, :10], use_cache=True); cached, past = [out.logits], out.past_key_values
    for i in range(10, ids.shape[1]):
        out = model(ids[:, i:i + 1], past_key_values=past); cached.append(out.logits); past = out.past_key_values
    close(torch.cat(cached, 1), t["cached_logits"])
    assert model.generate(ids[:1, :6], 12, temperature=0, eos_token_id=-1).tolist() == t["greedy_ids"].tolist()

def test_rope_tables(golden):
    t, model = golden
    c = model.config
    cos, sin = rope_tables(c.head_dim, c.max_position_embeddings, c.rope_theta, c.rope_scaling)
    close(cos[:64], t["rope_cos"]); close(sin[:64], t["rope_sin"])
