"""timm's vision transformer, compiled, inference."""

import timm
import torch

torch.manual_seed(7)
model = timm.create_model("vit_tiny_patch16_224", pretrained=False).cuda().eval()
compiled = torch.compile(model)
x = torch.randn(8, 3, 224, 224, device="cuda")
with torch.no_grad():
    for _ in range(3):
        out = compiled(x)
print("value", float(out.double().sum()))
