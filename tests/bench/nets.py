"""nets.py NET THREADS NUMBERS...: PyTorch's twins of the nets of bench_nets.c.

For the name of each way that it reads it takes one training step that way, and answers with the
seconds of the step, of the optimizer in it, and of the processor, and with the bytes by which the
process has grown at its largest since before the first step; for a name that it does not know, with a dash."""

import logging
import os
import sys
import time

threads = int(sys.argv[2])
os.environ["OMP_NUM_THREADS"] = str(threads)
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(sys.prefix, "compiled"))

logging.disable(logging.WARNING)

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(threads)
torch.manual_seed(1)


class Cell(nn.Module):
    """A recurrent net written out: x (B, T, H) -> states (B, T, H)."""

    def __init__(self, kind, h):
        super().__init__()
        self.h, gates = h, {"rnn": 1, "gru": 3, "lstm": 4}[kind]
        self.ih, self.hh = nn.Linear(h, gates * h), nn.Linear(h, gates * h)
        self.cell = getattr(self, kind)

    def rnn(self, x, h, c):
        return torch.tanh(self.ih(x) + self.hh(h)), c

    def lstm(self, x, h, c):
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def gru(self, x, h, c):
        (r, z, n), (hr, hz, hn) = self.ih(x).chunk(3, 1), self.hh(h).chunk(3, 1)
        r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        n = torch.tanh(n + r * hn)
        return n + z * (h - n), c

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], self.h)
        out = []
        for i in range(x.shape[1]):
            h, c = self.cell(x[:, i], h, c)
            out.append(h)
        return torch.stack(out, 1)


class Layer(nn.Module):
    def __init__(self, kind, h):
        super().__init__()
        self.layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind](h, h, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


def recurrent(kind, h, t, b):
    x = torch.rand(b, t, h)
    return {"cell": Cell(kind, h), "layer": Layer(kind, h)}, lambda net: net(x).square().mean()


def lenet(b):
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    x, y = torch.rand(b, 1, 28, 28), torch.arange(b) % 10
    return {"eager": net}, lambda net: F.cross_entropy(net(x), y)


def mlp(b, hidden):
    net = nn.Sequential(
        nn.Linear(784, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden // 2),
        nn.ReLU(),
        nn.Linear(hidden // 2, 10),
    )
    x, y = torch.rand(b, 784), torch.arange(b) % 10
    return {"eager": net}, lambda net: F.cross_entropy(net(x), y)


class VAE(nn.Module):
    def __init__(self, hidden, latent):
        super().__init__()
        self.e1, self.e2 = nn.Linear(784, hidden), nn.Linear(hidden, 2 * latent)
        self.d1, self.d2 = nn.Linear(latent, hidden), nn.Linear(hidden, 784)

    def forward(self, x):
        mu, lv = self.e2(F.relu(self.e1(x))).chunk(2, 1)
        z = mu + torch.exp(0.5 * lv) * torch.randn_like(mu)
        seen = F.binary_cross_entropy_with_logits(self.d2(F.relu(self.d1(z))), x, reduction="sum")
        return (seen - 0.5 * (1 + lv - (mu.square() + lv.exp())).sum()) / x.shape[0]


def vae(b, hidden, latent):
    x = torch.rand(b, 784)
    return {"eager": VAE(hidden, latent)}, lambda net: net(x)


class Block(nn.Module):
    def __init__(self, width, heads, kv):
        super().__init__()
        d, hidden = width // heads, (width * 8 // 3 + 31) // 32 * 32
        self.heads, self.kv, self.d = heads, kv, d
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.o = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.k, self.v = nn.Linear(width, kv * d, False), nn.Linear(width, kv * d, False)
        self.gate, self.up = nn.Linear(width, hidden, False), nn.Linear(width, hidden, False)
        self.down = nn.Linear(hidden, width, False)

    def forward(self, x, cos, sin):
        b, s, w = x.shape

        def split(y, n):
            return y.view(b, s, n, self.d).transpose(1, 2)

        def turn(y):
            y1, y2 = y.chunk(2, -1)
            return y * cos + torch.cat((-y2, y1), -1) * sin

        h = self.norm1(x)
        a = F.scaled_dot_product_attention(
            turn(split(self.q(h), self.heads)),
            turn(split(self.k(h), self.kv)),
            split(self.v(h), self.kv),
            is_causal=True,
            enable_gqa=self.kv != self.heads,
        )
        x = x + self.o(a.transpose(1, 2).reshape(b, s, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, kv, s, vocab=256):
        super().__init__()
        d = width // heads
        angle = torch.outer(torch.arange(s), 10000.0 ** (-torch.arange(0, d, 2) / d))
        self.register_buffer("cos", torch.cat((angle, angle), 1).cos())
        self.register_buffer("sin", torch.cat((angle, angle), 1).sin())
        self.embed, self.out = nn.Embedding(vocab, width), nn.Linear(width, vocab, False)
        self.blocks = nn.ModuleList(Block(width, heads, kv) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-5)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.out(self.norm(x))


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, s, vocab=256):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, width), nn.Embedding(s, width)
        self.blocks = nn.Sequential(*(Gpt2Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.embed(ids) + self.positions.weight
        return F.linear(self.norm(self.blocks(x)), self.embed.weight)


def decoder(layers, width, heads, kv, b, s, bf16):
    x = torch.randint(256, (b, s))
    y = torch.randint(256, (b * s,))
    net = Llama(layers, width, heads, kv, s) if kv else Gpt2(layers, width, heads, s)
    net = net.bfloat16() if bf16 else net
    return {"eager": net}, lambda net: F.cross_entropy(net(x).view(b * s, -1), y)


llama = llama_larger = gpt2 = gpt2_larger = bf16 = decoder


def gradients(f, x, dy, repeats=1):
    """A step that trains nothing: f() and its gradients by x. It answers with the processor's
    seconds of backward in the optimizer's place, and with the least of its repeats."""

    def step():
        forward = backward = float("inf")
        start = time.perf_counter()
        for _ in range(repeats):
            a = time.process_time()
            y = f()
            b = time.process_time()
            if x:
                torch.autograd.grad(y, x, dy)
            c = time.process_time()
            forward, backward = min(forward, b - a), min(backward, c - b)
        return time.perf_counter() - start, backward, forward + backward

    return step


class Attention(nn.Module):
    """Causal attention of one sample, as projections leave q, k and v; written out or fused."""

    def __init__(self, heads, kv, s, d, fused):
        super().__init__()
        self.group, self.fused, self.scale = heads // kv, fused, d**-0.5
        self.q = nn.Parameter(torch.randn(1, s, heads, d))
        self.k, self.v = (nn.Parameter(torch.randn(1, s, kv, d)) for _ in "kv")
        self.register_buffer("later", torch.ones(s, s, dtype=torch.bool).triu(1))

    def forward(self):
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        if self.fused:
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.group > 1
            )
        if self.group > 1:
            k, v = (x.repeat_interleave(self.group, 1) for x in (k, v))
        p = (q @ k.transpose(-2, -1) * self.scale).masked_fill(self.later, -torch.inf)
        return F.softmax(p, -1) @ v


def attention(heads, kv, s, d):
    dy = torch.randn(1, s, heads, d).transpose(1, 2)
    nets = {way: Attention(heads, kv, s, d, way == "fused") for way in ("fused", "written")}
    return {way: gradients(net, [net.q, net.k, net.v], dy) for way, net in nets.items()}


def rows(n, width, repeats):
    x, x2 = (torch.rand(n, width, requires_grad=True) for _ in "12")
    gamma, beta = (torch.rand(width, requires_grad=True) for _ in "12")
    dy, p, ids = torch.rand(n, width), nn.Parameter(torch.rand(n, width)), torch.arange(n) % width
    p.grad = dy
    angle = torch.outer(torch.arange(64), 10000.0 ** (-torch.arange(0, width // 4, 2) / width * 4))
    cos, sin = torch.cat((angle, angle), 1).cos(), torch.cat((angle, angle), 1).sin()
    adamw = torch.optim.AdamW([p], lr=1e-3, weight_decay=0, fused=True)

    def rotary():
        y = x.view(n // 64, 4, 64, width // 4)
        y1, y2 = y.chunk(2, -1)
        return (y * cos + torch.cat((-y2, y1), -1) * sin).view(n, width)

    def norm(x):
        return F.rms_norm(x, (width,), gamma, 1e-5)

    def layer_norm():
        return F.layer_norm(x, (width,), gamma, beta, 1e-5)

    ways = {
        "rms_norm": (lambda: norm(x), [x, gamma], dy),
        "add_rms_norm": (lambda: norm(x + x2), [x, gamma, x2], dy),
        "layer_norm": (layer_norm, [x, gamma, beta], dy),
        "rotary": (rotary, [x], dy),
        "softmax": (lambda: F.softmax(x, -1), [x], dy),
        "cross_entropy": (lambda: F.cross_entropy(x, ids), [x], None),
        "cast": (lambda: x.bfloat16(), [x], dy.bfloat16()),
        "adamw": (adamw.step, [], None),
    }
    return {way: gradients(*args, repeats) for way, args in ways.items()}


def rnn(h, t, b):
    return recurrent("rnn", h, t, b)


def lstm(h, t, b):
    return recurrent("lstm", h, t, b)


def gru(h, t, b):
    return recurrent("gru", h, t, b)


make = globals()[sys.argv[1]]
numbers = [int(x) for x in sys.argv[3:]]
made = make(*numbers[: make.__code__.co_argcount])
steps = made if isinstance(made, dict) else {}
nets, loss = ({}, None) if steps else made


def open_way(way):
    net = nets[way if way in nets else "eager"]
    f = torch.compile(lambda: loss(net)) if way == "compile" else lambda: loss(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0, fused=True)

    def step():
        start, spent = time.perf_counter(), time.process_time()
        f().backward()
        before = time.perf_counter()
        optimizer.step()
        after = time.perf_counter()
        optimizer.zero_grad()
        return time.perf_counter() - start, after - before, time.process_time() - spent

    return step


def resident(what):
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith(what))


before_all = resident("VmRSS:")
for line in sys.stdin:
    way = line.strip()
    if nets and way not in steps and (way in nets or way == "compile"):
        steps[way] = open_way(way)
    print(*((*steps[way](), resident("VmHWM:") - before_all) if way in steps else "-"), flush=True)
