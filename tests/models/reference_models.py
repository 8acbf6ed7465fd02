"""Test only: full parameter lists {name: (shape, dtype)} of model records, written out tensor by tensor.

Shares no code with planner/models, which describes the same models by units.
"""
import json

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
ceil = lambda a, b: -(-a // b)

class P(dict):
    """Ordered parameter list; lin() marks weights that block-FP8 quantization would cover."""
    def __init__(self): super().__init__(); self.quantizable = set()
    def add(self, name, *shape, dtype="BF16"):
        assert name not in self and all(isinstance(s, int) and s > 0 for s in shape), (name, shape)
        self[name] = (list(shape), dtype)
    def lin(self, name, *shape): self.add(name, *shape); self.quantizable.add(name)

def gqa(p, pre, a, q_mult=1):
    h, hd = a["hidden"], a["head_dim"]
    p.lin(pre + "q_proj.weight", a["heads"] * hd * q_mult, h)       # q_mult 2: query + output gate
    p.lin(pre + "k_proj.weight", a["kv_heads"] * hd, h)
    p.lin(pre + "v_proj.weight", a["kv_heads"] * hd, h)
    p.lin(pre + "o_proj.weight", h, a["heads"] * hd)
    if a.get("qk_norm"): p.add(pre + "q_norm.weight", hd); p.add(pre + "k_norm.weight", hd)

def glu(p, pre, h, i, names=("gate_proj", "up_proj", "down_proj")):
    p.lin(f"{pre}{names[0]}.weight", i, h); p.lin(f"{pre}{names[1]}.weight", i, h); p.lin(f"{pre}{names[2]}.weight", h, i)

def mla(p, pre, a, gate=False):
    h, n = a["hidden"], a["heads"]
    p.lin(pre + "q_a_proj.weight", a["q_lora"], h);  p.add(pre + "q_a_layernorm.weight", a["q_lora"])
    p.lin(pre + "q_b_proj.weight", n * (a["nope"] + a["rope"]), a["q_lora"])
    p.lin(pre + "kv_a_proj_with_mqa.weight", a["kv_lora"] + a["rope"], h); p.add(pre + "kv_a_layernorm.weight", a["kv_lora"])
    p.lin(pre + "kv_b_proj.weight", n * (a["nope"] + a["v_dim"]), a["kv_lora"])
    p.lin(pre + "o_proj.weight", h, n * a["v_dim"])
    if gate: p.lin(pre + "g_proj.weight", n * a["v_dim"], h)

def mamba2(p, pre, a):
    """HF Mamba2 mixer: in_proj rows = [z d_in | x d_in | B g*N | C g*N | dt heads], conv over [x | B | C]."""
    d_in, gn = a["m_heads"] * a["m_head_dim"], a["n_groups"] * a["d_state"]
    p.lin(pre + "in_proj.weight", 2 * d_in + 2 * gn + a["m_heads"], a["hidden"])
    p.add(pre + "conv1d.weight", d_in + 2 * gn, 1, a["conv"]); p.add(pre + "conv1d.bias", d_in + 2 * gn)
    for n in ("dt_bias", "A_log", "D"): p.add(pre + n, a["m_heads"])
    p.add(pre + "norm.weight", d_in)
    p.lin(pre + "out_proj.weight", a["hidden"], d_in)

def embed_head(p, a, pre="model.", head="lm_head.weight", norm="norm.weight", emb="embed_tokens.weight"):
    p.add(pre + emb, a["vocab"], a["hidden"]); p.add(pre + norm, a["hidden"])
    if not a["tied"]: p.add(head, a["vocab"], a["hidden"])

def norms2(p, pre, h, second="post_attention_layernorm"):
    p.add(pre + "input_layernorm.weight", h); p.add(f"{pre}{second}.weight", h)

def llama(a):
    p = P(); embed_head(p, a)
    for i in range(a["layers"]):
        L = f"model.layers.{i}."; norms2(p, L, a["hidden"]); gqa(p, L + "self_attn.", a); glu(p, L + "mlp.", a["hidden"], a["inter"])
    return p

def mixtral(a):
    p = P(); embed_head(p, a)
    for i in range(a["layers"]):
        L = f"model.layers.{i}."; norms2(p, L, a["hidden"]); gqa(p, L + "self_attn.", a)
        p.add(L + "block_sparse_moe.gate.weight", a["experts"], a["hidden"])
        for e in range(a["experts"]): glu(p, f"{L}block_sparse_moe.experts.{e}.", a["hidden"], a["inter"], ("w1", "w3", "w2"))
    return p

def qwen3_moe(a):
    p = P(); embed_head(p, a)
    for i in range(a["layers"]):
        L = f"model.layers.{i}."; norms2(p, L, a["hidden"]); gqa(p, L + "self_attn.", a)
        p.add(L + "mlp.gate.weight", a["experts"], a["hidden"])
        for e in range(a["experts"]): glu(p, f"{L}mlp.experts.{e}.", a["hidden"], a["moe_inter"])
    return p

def deepseek(a):
    p = P(); embed_head(p, a); h = a["hidden"]
    for i in range(a["layers"] + a.get("mtp", 0)):
        L = f"model.layers.{i}."
        if i >= a["layers"]:                                   # MTP layer sits after the last one
            p.add(L + "embed_tokens.weight", a["vocab"], h); p.add(L + "enorm.weight", h); p.add(L + "hnorm.weight", h)
            p.add(L + "eh_proj.weight", h, 2 * h); p.add(L + "shared_head.norm.weight", h); p.add(L + "shared_head.head.weight", a["vocab"], h)
        norms2(p, L, h); mla(p, L + "self_attn.", a)
        if i < a["dense_layers"]: glu(p, L + "mlp.", h, a["inter"]); continue
        p.add(L + "mlp.gate.weight", a["experts"], h)
        p.add(L + "mlp.gate.e_score_correction_bias", a["experts"], dtype="F32")
        for e in range(a["experts"]): glu(p, f"{L}mlp.experts.{e}.", h, a["moe_inter"])
        glu(p, L + "mlp.shared_experts.", h, a["moe_inter"] * a["shared"])
    return p

def kimi_k3(a):
    p = P(); R = "language_model."; h, di = a["hidden"], a["kda_heads"] * a["kda_dim"]
    embed_head(p, a, R + "model.", R + "lm_head.weight")
    p.add(R + "model.output_attn_res_norm.weight", h); p.add(R + "model.output_attn_res_proj.weight", 1, h)
    for i in range(a["layers"]):
        L = f"{R}model.layers.{i}."; A = L + "self_attn."; norms2(p, L, h)
        for n in ("self_attention_res", "mlp_res"): p.add(f"{L}{n}_norm.weight", h); p.add(f"{L}{n}_proj.weight", 1, h)
        if i + 1 in a["full_attn_1based"]: mla(p, A, a, gate=True)
        else:
            for n in "qkv": p.lin(f"{A}{n}_proj.weight", di, h)
            for n in "qkv": p.add(f"{A}{n}_conv1d.weight", di, 1, a["conv"], dtype="F32")
            p.lin(A + "f_a_proj.weight", a["kda_dim"], h); p.lin(A + "f_b_proj.weight", di, a["kda_dim"])
            p.add(A + "dt_bias", di, dtype="F32"); p.add(A + "A_log", a["kda_dim"], dtype="F32")
            p.lin(A + "b_proj.weight", a["kda_heads"], h); p.lin(A + "g_proj.weight", di, h)
            p.add(A + "o_norm.weight", a["kda_dim"], dtype="F32"); p.lin(A + "o_proj.weight", h, di)
        if i < a["dense_layers"]: glu(p, L + "mlp.", h, a["inter"]); continue
        M = L + "block_sparse_moe."; z = a["latent"]
        p.add(M + "gate.weight", a["experts"], h); p.add(M + "gate.e_score_correction_bias", a["experts"], dtype="F32")
        p.lin(M + "routed_expert_down_proj.weight", z, h); p.lin(M + "routed_expert_up_proj.weight", h, z); p.add(M + "routed_expert_norm.weight", z)
        glu(p, M + "shared_experts.", h, a["moe_inter"] * a["shared"])
        for e in range(a["experts"]): glu(p, f"{M}experts.{e}.", z, a["moe_inter"], ("w1", "w3", "w2"))
    return p

def gdn_model(a, fused_proj, fused_experts, pre):
    """Qwen3-Next (fused in_proj_qkvz/ba, one tensor per expert) and Qwen3.5/3.8 (split in_proj, fused 3-D experts)."""
    p = P(); h = a["hidden"]; embed_head(p, a, pre)
    kd, vd = a["gdn_k_heads"] * a["gdn_k_dim"], a["gdn_v_heads"] * a["gdn_v_dim"]
    ssm = "BF16" if fused_proj else "F32"                      # Qwen3.5 config: mamba_ssm_dtype float32
    def moe(M, fused):
        p.add(M + "gate.weight", a["experts"], h); p.add(M + "shared_expert_gate.weight", 1, h)
        glu(p, M + "shared_expert.", h, a["shared_inter"])
        if fused: p.add(M + "experts.gate_up_proj", a["experts"], 2 * a["moe_inter"], h); p.add(M + "experts.down_proj", a["experts"], h, a["moe_inter"])
        else:
            for e in range(a["experts"]): glu(p, f"{M}experts.{e}.", h, a["moe_inter"])
    def attn(A): gqa(p, A, dict(a, qk_norm=True), q_mult=2)
    for i in range(a["layers"]):
        L = f"{pre}layers.{i}."; norms2(p, L, h)
        if (i + 1) % a["interval"] == 0: attn(L + "self_attn.")
        else:
            G = L + "linear_attn."
            if fused_proj: p.lin(G + "in_proj_qkvz.weight", 2 * kd + 2 * vd, h); p.lin(G + "in_proj_ba.weight", 2 * a["gdn_v_heads"], h)
            else:
                p.lin(G + "in_proj_qkv.weight", 2 * kd + vd, h); p.lin(G + "in_proj_z.weight", vd, h)
                p.lin(G + "in_proj_b.weight", a["gdn_v_heads"], h); p.lin(G + "in_proj_a.weight", a["gdn_v_heads"], h)
            p.add(G + "conv1d.weight", 2 * kd + vd, 1, a["conv"])
            p.add(G + "dt_bias", a["gdn_v_heads"]); p.add(G + "A_log", a["gdn_v_heads"], dtype=ssm)
            p.add(G + "norm.weight", a["gdn_v_dim"], dtype=ssm); p.lin(G + "out_proj.weight", h, vd)
        moe(L + "mlp.", fused_experts)
    for i in range(a.get("mtp", 0)):
        if i == 0:
            p.add("mtp.fc.weight", h, 2 * h)
            for n in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"): p.add(f"mtp.{n}.weight", h)
        L = f"mtp.layers.{i}."; norms2(p, L, h); attn(L + "self_attn."); moe(L + "mlp.", fused_experts and a.get("mtp_experts") != "split")
    if "vision" in a:
        v = a["vision"]; V = "model.visual."; w = v["hidden"]; m = w * v["merge"] ** 2
        def wb(n, o, *i): p.add(V + n + ".weight", o, *i); p.add(V + n + ".bias", o)
        wb("patch_embed.proj", w, 3, v["temporal"], v["patch"], v["patch"]); p.add(V + "pos_embed.weight", v["pos"], w)
        for b in range(v["depth"]):
            B = f"blocks.{b}."
            for n in ("norm1", "norm2"): wb(B + n, w)
            wb(B + "attn.qkv", 3 * w, w); wb(B + "attn.proj", w, w); wb(B + "mlp.linear_fc1", v["inter"], w); wb(B + "mlp.linear_fc2", w, v["inter"])
        wb("merger.norm", w); wb("merger.linear_fc1", m, m); wb("merger.linear_fc2", v["out"], m)
    return p

def nemotron_h(a):
    p = P(); h = a["hidden"]
    p.add("backbone.embeddings.weight", a["vocab"], h); p.add("backbone.norm_f.weight", h)
    if not a["tied"]: p.add("lm_head.weight", a["vocab"], h)
    def block(L, kind):
        X = L + "mixer."; p.add(L + "norm.weight", h)
        if kind == "M": mamba2(p, X, a)
        elif kind == "*": gqa(p, X, a)
        elif kind == "-": p.lin(X + "up_proj.weight", a["inter"], h); p.lin(X + "down_proj.weight", h, a["inter"])
        elif kind == "E":
            z = a.get("latent", h)
            p.add(X + "gate.weight", a["experts"], h); p.add(X + "gate.e_score_correction_bias", a["experts"], dtype="F32")
            if "latent" in a: p.lin(X + "fc1_latent_proj.weight", z, h); p.lin(X + "fc2_latent_proj.weight", h, z)
            p.lin(X + "shared_experts.up_proj.weight", a["shared_inter"], h); p.lin(X + "shared_experts.down_proj.weight", h, a["shared_inter"])
            for e in range(a["experts"]):
                p.lin(f"{X}experts.{e}.up_proj.weight", a["moe_inter"], z); p.lin(f"{X}experts.{e}.down_proj.weight", z, a["moe_inter"])
        else: raise ValueError(kind)
    for i, k in enumerate(a["pattern"]): block(f"backbone.layers.{i}.", k)
    mp = a.get("mtp_pattern", "")
    for i, k in enumerate(mp):
        L = f"mtp.layers.{i}."
        if i == 0: p.add(L + "enorm.weight", h); p.add(L + "hnorm.weight", h); p.add(L + "eh_proj.weight", h, 2 * h)
        block(L, k)
        if i == len(mp) - 1: p.add(L + "final_layernorm.weight", h)
    return p

def gpt_oss(a, mxfp4=False):
    p = P(); h, i_, E = a["hidden"], a["moe_inter"], a["experts"]; embed_head(p, a)
    for i in range(a["layers"]):
        L = f"model.layers.{i}."; A = L + "self_attn."; M = L + "mlp."; norms2(p, L, h); gqa(p, A, a)
        for n, r in (("q", a["heads"] * a["head_dim"]), ("k", a["kv_heads"] * a["head_dim"]), ("v", a["kv_heads"] * a["head_dim"]), ("o", h)): p.add(f"{A}{n}_proj.bias", r)
        p.add(A + "sinks", a["heads"]); p.add(M + "router.weight", E, h); p.add(M + "router.bias", E)
        for n, o, k in (("gate_up_proj", 2 * i_, h), ("down_proj", h, i_)):
            if mxfp4: p.add(f"{M}experts.{n}_blocks", E, o, ceil(k, 32), 16, dtype="U8"); p.add(f"{M}experts.{n}_scales", E, o, ceil(k, 32), dtype="U8")
            else: p.add(f"{M}experts.{n}", E, k, o)
            p.add(f"{M}experts.{n}_bias", E, o)
    return p

def bamba(a):
    p = P(); embed_head(p, a, norm="final_layernorm.weight")
    for i in range(a["layers"]):
        L = f"model.layers.{i}."; norms2(p, L, a["hidden"], "pre_ff_layernorm"); glu(p, L + "feed_forward.", a["hidden"], a["inter"])
        if i in a["attn_layers"]: gqa(p, L + "self_attn.", a)
        else: mamba2(p, L + "mamba.", a)
    return p

def zamba2(a):
    p = P(); h = a["hidden"]; embed_head(p, a, norm="final_layernorm.weight"); n = len(a["hybrid"])
    for i in range(a["layers"]):
        L = f"model.layers.{i}."
        if i not in a["hybrid"]: p.add(L + "input_layernorm.weight", h); mamba2(p, L + "mamba.", a); continue
        p.lin(L + "linear.weight", h, h)
        p.add(L + "mamba_decoder.input_layernorm.weight", h); mamba2(p, L + "mamba_decoder.mamba.", a)
        b = a["hybrid"].index(i)
        if b >= a["mem_blocks"]: continue                      # later hybrid layers reuse block b % mem_blocks
        S = L + "shared_transformer."; F = S + "feed_forward."
        p.add(S + "input_layernorm.weight", 2 * h); p.add(S + "pre_ff_layernorm.weight", h)
        q = a["heads"] * a["head_dim"]
        for x in "qkv": p.lin(f"{S}self_attn.{x}_proj.weight", q, 2 * h)
        p.lin(S + "self_attn.o_proj.weight", h, q)
        p.lin(F + "gate_up_proj.weight", 2 * a["inter"], h); p.lin(F + "down_proj.weight", h, a["inter"])
        for k in range(n):
            if k % a["mem_blocks"] == b:
                p.add(f"{F}gate_up_proj_adapter_list.{k}.0.weight", a["rank"], h); p.add(f"{F}gate_up_proj_adapter_list.{k}.1.weight", 2 * a["inter"], a["rank"])
    return p

FAMILY = {"llama": llama, "mixtral": mixtral, "qwen3_moe": qwen3_moe, "deepseek": deepseek, "kimi_k3": kimi_k3, "nemotron_h": nemotron_h,
          "bamba": bamba, "zamba2": zamba2, "gpt_oss": gpt_oss,
          "qwen3_next": lambda a: gdn_model(a, True, False, "model."), "qwen3_5_moe": lambda a: gdn_model(a, False, True, a["prefix"])}

def fp8_block128(p, scale="F32"):
    """DeepSeek/Qwen block FP8: every linear weight becomes F8_E4M3 plus a scale (F32 DeepSeek, BF16 Qwen) per 128x128 block (edges round up)."""
    out = P()
    for n, (s, d) in p.items():
        if n in p.quantizable: out.add(n, *s, dtype="F8_E4M3"); out.add(n + "_scale_inv", ceil(s[0], 128), ceil(s[1], 128), dtype=scale)
        else: out.add(n, *s, dtype=d)
    return out

def mxfp4_experts(p):
    """compressed-tensors mxfp4-pack-quantized on routed experts: two values per byte + one U8 scale per 32 columns."""
    out = P()
    for n, (s, d) in p.items():
        if ".experts." in n: out.add(n + "_packed", s[0], ceil(s[1], 2), dtype="U8"); out.add(n + "_scale", s[0], ceil(s[1], 32), dtype="U8")
        else: out.add(n, *s, dtype=d)
    return out

def load_records(path):
    with open(path) as f: m = json.load(f)["models"]
    for r in m.values():
        if "same_arch" in r: r["arch"] = m[r["same_arch"]]["arch"]
    return m

def build(rec):
    q = rec.get("quant")
    if rec["family"] == "gpt_oss": return gpt_oss(rec["arch"], q == "mxfp4")
    p = FAMILY[rec["family"]](rec["arch"])
    return fp8_block128(p, rec.get("scale_dtype", "F32")) if q == "fp8_block128" else mxfp4_experts(p) if q == "mxfp4_experts" else p

def numel(s):
    n = 1
    for x in s: n *= x
    return n

def is_scale(n): return n.endswith(("_scale_inv", "_scale", "_scales"))

def stats(p, skip=()):
    """tensors, logical parameters (scales not counted, packed 4-bit counted twice), bytes."""
    t = n = b = 0
    for name, (s, d) in p.items():
        if any(k in name for k in skip): continue
        e = numel(s); t += 1; b += e * BYTES[d]
        if not is_scale(name): n += e * (2 if d == "U8" else 1)
    return t, n, b
