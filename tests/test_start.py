"""Start-up: lists load no torch; neither networks nor training without compiling loads torch's compiler."""

import subprocess
import sys

from tests.clone import ROOT

# In their order, and what they may not have loaded by then.
PROGRAM = """
import contextlib, io, sys
from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from excb.zoo.__main__ import main as zoo

def check(call, *heavy):
    with contextlib.redirect_stdout(io.StringIO()):
        call()
    if loaded := [name for name in heavy if name in sys.modules]:
        sys.exit(f"{call.__name__} loads {loaded}")

def zoo_list(): assert zoo(["list"]) == 0
def zoo_show(): assert zoo(["show", "rn50_400ep"]) == 0
def pretrain_list(): assert pretrain(["list"]) == 0
def pretrain_show(): assert pretrain(["show", "rn50_400ep"]) == 0
def eval_cache(): assert evaluate(["cache"]) == 0
def claims(): assert evaluate(["reproduce", "--list"]) == 0
def checkpoints(): assert len(__import__("excb").checkpoints()) > 50
def load(): __import__("excb").load("conv4_photos")
def torchvision(): __import__("torchvision")
def timm(): __import__("timm")
def training(): train(torch.nn.Linear(3, 2))

for call in (zoo_list, zoo_show, pretrain_list, pretrain_show, eval_cache, claims, checkpoints):
    check(call, "torch", "torchvision", "timm", "matplotlib", "sklearn", "faiss")
check(load, "torch._dynamo", "torch._inductor", "torchvision", "timm", "matplotlib", "sklearn", "faiss")
check(torchvision, "torch._dynamo", "torch._inductor")
check(timm, "torch._dynamo", "torch._inductor")

import torch

def train(network, compiled=lambda function: function):
    torch.manual_seed(0)
    [torch.nn.init.normal_(parameter) for parameter in network.parameters()]
    optimizers = [torch.optim.SGD([network.weight], 0.1, 0.9), torch.optim.AdamW([network.bias], 0.1)]
    forward = compiled(lambda rows: network(rows).square().mean())
    for _ in range(3):
        [optimizer.zero_grad() for optimizer in optimizers]
        forward(torch.ones(4, 3)).backward()
        [optimizer.step() for optimizer in optimizers]
    [optimizer.load_state_dict(optimizer.state_dict()) for optimizer in optimizers]
    return network.weight.detach(), network.bias.detach()

check(training, "torch._dynamo", "torch._inductor")
outside = torch.compiler.disable(lambda rows: rows + 1)
@torch.compiler.disable(recursive=False)
def decorated(rows): return rows + 2
assert (outside(1), decorated(1)) == (2, 3)
plain = train(torch.nn.Linear(3, 2))
assert "torch._dynamo" not in sys.modules

from torch._dynamo.utils import is_compile_supported  # only now
from torchvision.ops import roi_align
deferred = roi_align.__globals__["is_compile_supported"]
assert all(deferred(device) == is_compile_supported(device) for device in ("cpu", "cuda", "mps"))

# Whatever was hidden from the compiler before it was loaded is hidden from it now, and it changes no figure.
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
compiled = train(torch.nn.Linear(3, 2), lambda function: torch.compile(function, backend=counter))
assert counter.frame_count and all(map(torch.allclose, compiled, plain))
frames = counter.frame_count
for function in (outside, decorated):
    torch.compile(lambda rows: function(rows), backend=counter)(torch.ones(3))
assert counter.frame_count == frames
"""


def test_lists_load_no_torch_and_a_network_no_compiler() -> None:
    # A new interpreter: this one has loaded everything.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
