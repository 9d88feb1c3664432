"""
A Cox model with tied times
===========================

The partial likelihood needs, for each death, the log of a sum over everybody still at risk: a
``logcumsumexp`` from the longest time down. Ties need more care. Breslow's rule takes the same sum for
all deaths at one time, Efron's takes shares of the tied ones out. Both are compared with the published
figures for the remission times of 42 leukemia patients (Freireich and others, 1963).
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import pullback as pb

control = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
treated = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
relapsed = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
time = torch.tensor(control + treated)
event = torch.tensor([1] * 21 + relapsed).bool()
placebo = torch.tensor([1.0] * 21 + [0.0] * 21).double()

order = time.argsort(stable=True)
time, event, placebo = time[order], event[order], placebo[order]

# %%
# Rows of one time form a segment. Whoever is at risk at a time is in its segment or a later one.
times, group = time.unique_consecutive(return_inverse=True)
place = torch.cat([torch.zeros(1, dtype=int), event.cumsum(0)[:-1]])
start = pb.segment_min(place.double(), group).long()
rank = (place - start[group]).double()  # of a death among those of its time: 0, 1, ...
deaths = pb.segment_sum(event.double(), group)


def loss(beta, efron):
    """The negative log partial likelihood."""
    risk = beta * placebo
    at_risk = pb.logcumsumexp(pb.segment_logsumexp(risk, group), reverse=True)[group]
    if efron:
        dying = pb.segment_logsumexp(risk.masked_fill(~event, -torch.inf), group)[group]
        share = rank / deaths.clamp(min=1)[group]
        at_risk = at_risk + torch.log1p(-share * (dying - at_risk).exp())
    return (at_risk - risk)[event].sum()


def fit(efron):
    """Newton's method; the second derivative goes through the same functions."""
    beta = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(8):
        (first,) = torch.autograd.grad(loss(beta, efron), beta, create_graph=True)
        (second,) = torch.autograd.grad(first, beta)
        beta = (beta - first / second).detach().requires_grad_()
    return beta.item(), second.rsqrt().item()


# %%
# R's ``coxph`` prints 1.572 (0.412) for Efron's rule and 1.509 (0.410) for Breslow's.
published = {"efron": (1.572, 0.412), "breslow": (1.509, 0.410)}
for name, figures in published.items():
    found = fit(name == "efron")
    print(
        f"{name:8} coefficient {found[0]:.3f}, standard error {found[1]:.3f}; published {figures}"
    )
    assert np.allclose(found, figures, atol=6e-4)

# %%
# Both likelihoods over the coefficient, and remission in the two groups.
grid = torch.linspace(0, 3, 60).double()
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for name in published:
    axes[0].plot(grid, [-loss(b, name == "efron").item() for b in grid], label=name)
axes[0].set(title="log partial likelihood", xlabel="coefficient")
axes[0].legend()
for value, name in ((1, "placebo"), (0, "6-MP")):
    rows = placebo == value
    dead = pb.segment_sum((event & rows).double(), group)
    left = pb.cumsum(pb.segment_sum(rows.double(), group), reverse=True)
    axes[1].step(times, pb.cumprod(1 - dead / left.clamp(min=1)), where="post", label=name)
axes[1].set(title="in remission (Kaplan-Meier)", xlabel="weeks", ylim=(0, 1))
axes[1].legend()
plt.show()
