"""
Word embeddings with the skew of real text
==========================================

Few words make up most of a text. The gradient of an embedding table then has rows that thousands of
positions add to, and many that none does. Here the text is Python's own language reference, which comes
with the interpreter; the model predicts a word from the bag of words around it.
"""

import re
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np
import torch

import pullback as pb

text = " ".join(topics[name] for name in sorted(topics))
words = re.findall(r"[a-z]+", text.lower())
names, ids, counts = np.unique(words, return_inverse=True, return_counts=True)
common = np.argsort(-counts)[:2000]
number = np.full(len(names), -1)
number[common] = np.arange(len(common))
ids = number[ids]
ids = torch.tensor(ids[ids >= 0][:60_000])
print(f"{len(ids)} words, {len(names)} different ones; the commonest is '{names[common[0]]}'")

# %%
# A bag for each position: the two words before it and the two after. Bags are rows of a matrix, so no
# offsets are needed. The loss compares with the true word and with five drawn at random.
torch.manual_seed(0)
bags = torch.stack([ids[k : len(ids) - 4 + k] for k in (0, 1, 3, 4)], 1)
truth = ids[2:-2]
table = (0.1 * torch.randn(2000, 32)).requires_grad_()
output = torch.zeros(2000, 32, requires_grad=True)
optimizer, losses = torch.optim.Adam([table, output], lr=0.01), []
for _ in range(60):
    batch = torch.randint(len(truth), (4096,))
    context = pb.embedding_bag(table, bags[batch])
    drawn = ids[torch.randint(len(ids), (4096, 5))]
    right = (context * pb.embedding(output, truth[batch])).sum(-1)
    wrong = (context[:, None] * pb.embedding(output, drawn)).sum(-1)
    loss = (
        torch.nn.functional.softplus(-right).mean()
        + torch.nn.functional.softplus(wrong).sum(1).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < losses[0] - 0.3

# %%
# The gradient as rows: only those that received something.
dout = np.ones((4096, 32), np.float32)
rows, values = pb.embedding_backward(dout, truth[:4096].numpy(), 2000, sparse=True)
print(f"{len(rows)} of 2000 rows get a gradient; the fullest from {int(values.max())} positions")

# %%
# How skewed the words are, and how the loss fell.
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
axes[0].loglog(np.arange(1, 2001), counts[common])
axes[0].set(title="Zipf's law", xlabel="rank of the word", ylabel="occurrences")
axes[1].plot(losses)
axes[1].set(title="training", xlabel="step", ylabel="loss")
plt.show()
