"""torch's flex_attention, compiled, with documents of uneven lengths."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(2)
lengths = torch.tensor([100, 1500, 300, 148], device="cuda")
document = torch.repeat_interleave(torch.arange(4, device="cuda"), lengths)


def in_document(b, h, q, k):
    return (document[q] == document[k]) & (q >= k)


mask = create_block_mask(in_document, None, None, 2048, 2048, device="cuda")
q, k, v = (torch.randn(1, 8, 2048, 64, device="cuda", dtype=torch.float16) for _ in range(3))
compiled = torch.compile(flex_attention)
for _ in range(3):
    out = compiled(q, k, v, block_mask=mask)
print("value", float(out.double().sum()))
