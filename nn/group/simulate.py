#!/usr/bin/env python3
"""simulate.py [OUT.svg]: what a group's ring costs a step of a Llama of 1.2 billion parameters.

Folds and sends are counted one by one, parameter by parameter and rank by rank; see README.md. The
rate of products is this library's, measured (tests/bench/README.md); network and machines are
assumed, and stand below.
"""
import sys

RATE = 32 * 140e9  # a rank: 32 cores, each at the 140 GFLOP/s of a gradient product
TOKENS = 8192  # of a rank and step
LATENCY, BANDWIDTH = 5e-6, 25e9  # seconds for a message, bytes a second
PIECE = 1 << 20  # bytes, in which gradients go round
LAYERS, WIDTH, KV, HIDDEN, VOCAB = 16, 2048, 512, 8192, 128256
LAYER = [WIDTH * WIDTH, WIDTH * KV, WIDTH * KV, WIDTH * WIDTH] + 3 * [WIDTH * HIDDEN]
WHOLE = LAYERS * LAYER + [VOCAB * WIDTH]  # elements; norms and their biases are next to nothing
RANKS = [2, 4, 8, 16, 32, 64, 128, 256, 512]
KINDS = [("whole parameters", None), ("parts of 4 Mi elements", 4 << 20), ("parts of 256 Ki elements", 256 << 10)]


def tiles(most):
    out = []
    for n in WHOLE:
        while most and n > most:
            out.append(most)
            n -= most
        out.append(n)
    return out


def step(ranks, most):
    """Seconds that folding and sharing take beyond the folds themselves, and those of a step."""
    parts = tiles(most)
    fold = [2 * TOKENS * n / RATE for n in parts]
    send = [LATENCY + 4 * n / BANDWIDTH for n in parts]
    before = [0.0] * len(parts)  # when the rank before has folded each
    for rank in range(ranks):
        at, done = 0.0, []
        for p, f in enumerate(fold):
            at = max(at, before[p] + (send[p] if rank else 0)) + f
            done.append(at)
        before = done
    total = 4 * sum(WHOLE)  # gradients, in pieces, rank after rank
    share = total / BANDWIDTH + (ranks - 1) * (LATENCY + PIECE / BANDWIDTH)
    return before[-1] + share - sum(fold), 3 * sum(fold)


def percent(ranks, most):
    more, whole = step(ranks, most)
    return 100 * more / whole


def plot(path, lines):
    colour = ["firebrick", "steelblue", "seagreen"]
    x = {r: 60 * i for i, r in enumerate(RANKS)}
    y = lambda v: 300 - 3 * min(v, 100)
    out = ["<svg xmlns='http://www.w3.org/2000/svg' viewBox='-60 -20 760 370' font-family='sans-serif' font-size='12'>",
           "<path d='M0 0V300H490' fill='none' stroke='gray'/>",
           f"<path d='M0 {y(10)}H490' stroke='gray' stroke-dasharray='4'/>"]
    out += [f"<text x='-8' y='{y(v) + 4}' text-anchor='end'>{v}%</text>" for v in (0, 10, 50, 100)]
    out += [f"<text x='{x[r]}' y='318' text-anchor='middle'>{r}</text>" for r in RANKS]
    out.append("<text x='245' y='338' text-anchor='middle'>ranks</text>")
    for c, (name, values) in zip(colour, lines):
        points = " ".join(f"{x[r]},{y(v):.1f}" for r, v in zip(RANKS, values))
        out.append(f"<polyline points='{points}' fill='none' stroke='{c}'/>")
        out.append(f"<text x='490' y='{y(values[-1]) + 4 + 14 * (c == colour[0]):.0f}' fill='{c}'> {name}</text>")
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    lines = [(name, [percent(r, most) for r in RANKS]) for name, most in KINDS]
    print("ranks  " + "  ".join(f"{name:>26}" for name, _ in KINDS))
    for i, r in enumerate(RANKS):
        print(f"{r:5}  " + "  ".join(f"{values[i]:25.1f}%" for _, values in lines))
    for name, most in KINDS:
        low, high = 1, 1024  # the share grows with ranks
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if percent(middle, most) <= 10 else (low, middle)
        print(f"{name}: over 10% of a step from {high} ranks on" if high < 1024 else f"{name}: under 10% up to 1023")
    if len(sys.argv) > 1:
        plot(sys.argv[1], lines)
