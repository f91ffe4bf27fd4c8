import subprocess
import sys

import pytest

PROGRAM = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event}: {arguments}")

sys.addaudithook(refuse)

import espnet_distopt.bin.asr_train
import torch
import typeguard
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from espnet2.gan_tts.jets import alignments

weight = torch.nn.Parameter(torch.ones(2))
for kind in (torch.optim.SGD, torch.optim.Adam):
    optimizer = kind([weight], lr=0.5)
    weight.grad = torch.ones(2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
assert torch.allclose(weight, torch.zeros(2), atol=1e-6) and weight.is_leaf, weight

for name in ("g2p_en", "nltk", "scipy.stats", "scipy.signal", "torch._dynamo"):
    assert name not in sys.modules, name

try:
    RNNEncoder(40, hidden_size="320")
except typeguard.TypeCheckError as error:
    print(error)
print(isinstance(RNNEncoder(4, hidden_size=2, output_size=2), RNNEncoder))
print(alignments.betabinom.pmf(1, 2, 1, 1))
import scipy.stats
print(scipy.stats.betabinom.pmf(1, 2, 1, 1))
"""


def test_what_is_put_off_works_when_it_is_used():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    wrong, *rest = ran.stdout.splitlines()
    assert '"hidden_size" (str) is not an instance of int' in wrong
    assert rest[0] == "True"
    assert [float(each) for each in rest[1:3]] == pytest.approx([1 / 3, 1 / 3])
