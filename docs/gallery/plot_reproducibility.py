"""
The same bits for any number of threads
=======================================

Sums of floating-point numbers depend on their order. Here the order follows from the shapes alone, so
that hashes of results are equal for any number of threads, for any layout, and on any processor.
"""

import hashlib

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import pullback as pb

images, labels = load_digits(return_X_y=True)
images = (images / 7).astype(np.float32)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


calls = {
    "segment_mean": lambda: pb.segment_mean(images, labels, 10),
    "embedding_backward": lambda: pb.embedding_backward(images, labels, 10),
    "softmax": lambda: pb.softmax(images),
    "logcumsumexp": lambda: pb.logcumsumexp(images, 0),
    "sparsemax": lambda: pb.sparsemax(images),
}

# %%
# Every call with 1, 2, 3 and 8 threads.
before = pb.get_num_threads()
table = {name: [] for name in calls}
for threads in (1, 2, 3, 8):
    pb.set_num_threads(threads)
    for name, call in calls.items():
        table[name].append(digest(call()))
pb.set_num_threads(before)
for name, hashes in table.items():
    print(f"{name:20} {hashes[0]}  equal for 1, 2, 3, 8 threads: {len(set(hashes)) == 1}")
    assert len(set(hashes)) == 1

# %%
# The same values in another layout.
transposed = np.asfortranarray(images)
assert digest(pb.softmax(transposed)) == table["softmax"][0]

# %%
# How much order matters otherwise: the mean image of the digit 3, added up in 200 random orders in
# float32. Each has its own last bits.
threes = images[labels == 3]
rng = np.random.default_rng(0)
spread = [threes[rng.permutation(len(threes)), 20].cumsum()[-1] / len(threes) for _ in range(200)]

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
axes[0].imshow(pb.segment_mean(images, labels, 10)[3].reshape(8, 8), cmap="gray_r")
axes[0].set(title="mean of the digit 3", xticks=[], yticks=[])
offset = np.float64(np.mean(threes[:, 20], dtype=np.float64))
axes[1].hist(np.array(spread, np.float64) - offset, 30)
axes[1].set(title="one pixel, 200 orders of addition", xlabel="difference to the exact mean")
plt.show()
