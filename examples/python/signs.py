"""README's program in Python: the same bits, so the same file. signs.py [FILE]"""
import sys

import numpy as np

import tally


def mlp(t, x, y):
    h = t.linear("l1", x, 16)
    z = t.linear("l2", h.tanh(), 2)
    return z.cross_entropy(y, tally.MEAN)


i = np.arange(200)
X = np.stack([i % 20, i // 20], 1).astype(np.float32) / np.float32([10, 5]) - 1
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)
m = tally.Model(seed=1)
t = tally.Tape(m)
opt = m.adamw(lr=1e-2)
for step in range(500):
    x, y = t.data(X), t.data(Y)
    loss = mlp(t, x, y)
    loss.backward()
    opt.step(t)
    if step % 100 == 0:
        print(step, "%g" % loss.item())
    t.reset()
tally.gradcheck(mlp, t.data(X), t.data(Y))
m.save(sys.argv[1] if len(sys.argv) > 1 else "signs.safetensors")
