"""The model against transformers' Qwen3 and Qwen3-MoE with the same weights: the architecture is theirs."""
import pytest, torch
from torch.testing import assert_close
from minimind.config import MiniMindConfig
from minimind.model import MiniMindForCausalLM

transformers = pytest.importorskip("transformers")

def common(c):
    return dict(hidden_size=c.hidden_size, num_hidden_layers=c.num_hidden_layers, vocab_size=c.vocab_size, head_dim=c.head_dim,
                num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads,
                intermediate_size=c.intermediate_size, max_position_embeddings=c.max_position_embeddings,
                rms_norm_eps=c.rms_norm_eps, rope_theta=c.rope_theta, rope_parameters=dict(rope_type="default", rope_theta=c.rope_theta),
                tie_word_embeddings=True, attention_bias=False, use_cache=False, attn_implementation="sdpa")

@pytest.mark.parametrize("use_moe,k", [(False, 1), (True, 1), (True, 2)])
def test_same_logits_and_gradients(use_moe, k):
    torch.manual_seed(0)
    c = MiniMindConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
                       use_moe=use_moe, num_experts_per_tok=k, moe_intermediate_size=96, initializer_range=0.1)
    ours, weights = MiniMindForCausalLM(c), {}
    if use_moe:
        theirs = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **common(c), num_experts=c.num_experts, num_experts_per_tok=k, moe_intermediate_size=c.moe_intermediate_size,
            norm_topk_prob=c.norm_topk_prob, decoder_sparse_step=1))
        layout = theirs.state_dict()
        for name, tensor in ours.state_dict().items():
            if ".experts." not in name: weights[name] = tensor
        if any(n.endswith("experts.gate_up_proj") for n in layout):  # transformers 5 stacks the experts
            for i, layer in enumerate(ours.model.layers):
                e = layer.mlp.experts
                weights[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.stack(
                    [torch.cat((x.gate_proj.weight, x.up_proj.weight)) for x in e]).detach()
                weights[f"model.layers.{i}.mlp.experts.down_proj"] = torch.stack([x.down_proj.weight for x in e]).detach()
        else: weights = ours.state_dict()
    else: theirs, weights = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common(c))), ours.state_dict()
    theirs.load_state_dict(weights)
    ids = torch.randint(256, (2, 24))
    a, b = ours(ids, labels=ids), theirs(ids, labels=ids)
    assert_close(a.logits, b.logits, rtol=1e-5, atol=1e-5)
    assert_close(a.loss, b.loss.detach(), rtol=1e-5, atol=1e-5)
    a.loss.backward(); b.loss.backward()
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"):
        assert_close(ours.get_parameter(name).grad, theirs.get_parameter(name).grad, rtol=1e-4, atol=1e-5)
