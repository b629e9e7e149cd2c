"""A small Llama of transformers with random weights, compiled.

llama.py train | eval | decode (reduce-overhead: CUDA graphs) | static (generate with a static cache), and a number of layers.
"""

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

mode, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 10
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=layers,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=8192,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
ids = torch.randint(0, 8192, (4, 512), device="cuda")
if mode == "train":
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    compiled = torch.compile(model)

    def step():
        out = compiled(input_ids=ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return out.loss

elif mode == "static":
    model.eval()
    model.generation_config.cache_implementation = "static"
    model.generation_config.pad_token_id = 0

    def step():
        prompt = ids[:, :64]
        return model.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False).sum()

else:
    model.eval()
    compiled = torch.compile(model, mode="reduce-overhead" if mode == "decode" else None)

    def step():
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(input_ids=ids).logits.float().sum().clone()


for _ in range(4):
    result = step()
torch.cuda.synchronize()
times_ms = []
for _ in range(steps):
    begin = time.perf_counter()
    result = step()
    torch.cuda.synchronize()
    times_ms.append((time.perf_counter() - begin) * 1e3)
print("time", sorted(times_ms)[len(times_ms) // 2], "ms a step")
# The gradient of the embedding is added up in any order.
print("value", round(float(result), 2) if mode == "train" else float(result))
