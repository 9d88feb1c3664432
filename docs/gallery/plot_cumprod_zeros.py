"""
Gradients of products at zeros
==============================

The derivative of a running product with respect to a factor that is zero is not zero: it is the
product of all the others. Rules that divide by the factor give NaN there. Ours runs a recurrence
from the end, ``R[j] = dy[j] + x[j+1] R[j+1]``, and multiplies by the product before ``j``.
"""

import matplotlib.pyplot as plt
import numpy as np

import pullback as pb

x = np.array([1.2, 0.8, 1.1, 0.0, 1.3, 0.9, 1.2])
dy = np.ones_like(x)

# %%
# The rule of the textbooks divides by ``x``. One zero is enough.
y = pb.cumprod(x)
with np.errstate(all="ignore"):
    divided = np.cumsum((dy * y)[::-1])[::-1] / x
print("by division:", divided)

# %%
# Ours, and the definition by differences in high precision.
gradient = pb.cumprod_backward(dy, x, y)
print("pullback:   ", gradient)

step = 1e-6
differences = np.array(
    [
        (np.cumprod(x + step * unit).sum() - np.cumprod(x - step * unit).sum()) / (2 * step)
        for unit in np.eye(len(x))
    ]
)
assert np.allclose(gradient, differences)

# %%
# The gradient with respect to the zero as it passes through it: smooth, and without a gap.
values = np.linspace(-0.5, 0.5, 101)
rows = np.repeat(x[None], len(values), 0)
rows[:, 3] = values
gradients = pb.cumprod_backward(np.ones_like(rows), rows, pb.cumprod(rows))

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
axes[0].bar(np.arange(len(x)) - 0.2, gradient, 0.4, label="pullback")
axes[0].bar(
    np.arange(len(x)) + 0.2, np.nan_to_num(divided), 0.4, label="by division (NaN left out)"
)
axes[0].set(title="gradient of the sum of running products", xlabel="position")
axes[0].legend()
axes[1].plot(values, gradients[:, 2], label="position 2")
axes[1].plot(values, gradients[:, 3], label="position 3, which is varied")
axes[1].set(title="as one factor passes through zero", xlabel="its value")
axes[1].legend()
plt.show()
