"""torchvision's ResNet-18, compiled: six training steps."""

import torch
import torchvision

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
model = torchvision.models.resnet18().cuda().to(memory_format=torch.channels_last)
compiled = torch.compile(model)
x = torch.randn(32, 3, 128, 128, device="cuda").to(memory_format=torch.channels_last)
y = torch.randint(0, 1000, (32,), device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(6):
    loss = torch.nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
# Some of torch's own reductions add in any order.
print("value", round(float(loss), 3))
