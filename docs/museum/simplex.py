"""Maps onto the simplex, embeddings and interpolation."""

from case import Case

MASKED = "[[-inf, -inf], [0, 0]]"
LOGITS = f"w * torch.tensor([1., 2]) + torch.tensor({MASKED})"
FREQUENT = "F.embedding_bag(torch.tensor([0, 0, 0, 1, 2]), w, torch.tensor([0]), mode='sum', "
WIDE = "torch.linspace(0, 3, 4000).to(bf16)"
HALF = "torch.linspace(-1, 1, 1000)"

CASES = [
    Case("softmax: a row that is masked out", "pytorch/pytorch#41508", "torch",
         theirs=f"torch.softmax(torch.tensor({MASKED}), -1)", shown=[["nan", "nan"], [0.5, 0.5]],
         ours=f"pb.softmax(np.array({MASKED}, float))", truth="[[0, 0], [0.5, 0.5]]",
         why="no entry may have mass"),
    Case("softmax: a masked row ruins the gradient of a weight", "pytorch/pytorch#131060", "torch",
         theirs=f"torch_gradient(lambda w: torch.softmax({LOGITS}, -1)[:, 0], [1.])",
         shown=["nan"], ours=f"torch_gradient(lambda w: pb.softmax({LOGITS})[:, 0], [1.])",
         truth="[-exp(1) / (1 + exp(1)) ** 2]"),
    Case("softmax: a row that is masked out", "jax-ml/jax#6811", "jax",
         theirs=f"jax.nn.softmax(jnp.array({MASKED}))", shown=[["nan", "nan"], [0.5, 0.5]],
         ours=f"pb.softmax(jnp.array({MASKED}))", truth="[[0, 0], [0.5, 0.5]]"),
    Case("softmax: a row that is masked out", "https://docs.scipy.org/doc/scipy/reference/generated/"
         "scipy.special.softmax.html", "scipy",
         theirs=f"scipy.special.softmax(np.array({MASKED}), -1)",
         shown=[["nan", "nan"], [0.5, 0.5]], ours=f"pb.softmax(np.array({MASKED}, float))",
         truth="[[0, 0], [0.5, 0.5]]"),
    Case("softmax: gradient of a masked row", "pytorch/pytorch#196170", "torch",
         theirs="torch_gradient(lambda x: torch.softmax(x, -1)[..., 0], [[-inf, -inf], [0, 0]])",
         shown=[["nan", "nan"], [0.25, -0.25]],
         ours="torch_gradient(lambda x: pb.softmax(x)[..., 0], [[-inf, -inf], [0, 0]])",
         truth="[[0, 0], [0.25, -0.25]]"),
    Case("log_softmax: a row that is masked out", "pytorch/pytorch#49724", "torch",
         theirs="torch.log_softmax(torch.tensor([-inf, -inf]), -1)", shown=["nan", "nan"],
         ours="pb.log_softmax(np.array([-inf, -inf]))", truth="[-inf, -inf]"),
    Case("cross-entropy of a masked row", "pytorch/pytorch#41508", "torch",
         theirs="F.cross_entropy(torch.tensor([[-inf, -inf]]), torch.tensor([0]))", shown="nan",
         ours="pb.softmax_loss(np.array([[-inf, -inf]]), np.array([0]))", truth="[0]"),
    Case("softmax: an entry of +inf", "https://docs.pytorch.org/docs/stable/generated/"
         "torch.nn.functional.softmax.html", "torch",
         theirs="torch.softmax(torch.tensor([inf, 0.]), -1)", shown=["nan", "nan"],
         ours="pb.softmax(np.array([inf, 0.]))", truth="[1, 0]", why="the limit"),
    Case("sparsemax: entries of 1e8", "tensorflow/addons#2314", "tensorflow-addons",
         quoted="NaN", ours="pb.sparsemax(np.array([1e8, 1e8 - 8, 0], np.float32))",
         truth="[1, 0, 0]"),
    Case("sparsemax: no shift by the maximum", "https://github.com/linkedin/Liger-Kernel",
         "Liger-Kernel", quoted="loses all digits of large rows (read in its source)",
         ours="pb.sparsemax(np.array([1e6 + 0.5, 1e6], np.float32))", truth="[0.75, 0.25]"),
    Case("sparsemax: a row that is masked out", "deep-spin/entmax#16", "entmax",
         theirs="raised(lambda: entmax.sparsemax(torch.tensor([[-inf, -inf]])))",
         shown="RuntimeError", ours="pb.sparsemax(np.array([[-inf, -inf]]))", truth="[[0, 0]]"),
    Case("entmax by bisection: a row that is masked out", "deep-spin/entmax#16", "entmax",
         theirs="entmax.entmax_bisect(torch.tensor([[-inf, -inf]]), 1.3)",
         shown=[["nan", "nan"]], ours="pb.entmax(np.array([[-inf, -inf]]), 1.3)",
         truth="[[0, 0]]"),
    Case("entmax by bisection in float16", "deep-spin/entmax#30", "entmax",
         theirs=f"entmax.entmax_bisect({HALF}.half(), 1.5).double().sum()", shown=1.00035, fixed=True,
         ours=f"pb.entmax({HALF}.half(), 1.5).double().sum()", truth="1", tolerance=2e-2),
    Case("entmax15 in bfloat16: the sum of probabilities", "deep-spin/entmax#30", "entmax",
         theirs=f"entmax.entmax15({WIDE}).double().sum()", shown=1.0222,
         ours=f"pb.entmax15({WIDE}).double().sum()", truth="1", tolerance=2**-8),
    Case("entmax15: second derivative outside the support", "https://github.com/deep-spin/entmax", "entmax",
         theirs="torch_second(lambda x: entmax.entmax15(x[None])[0, 0], [1, 0, -9])",
         shown=["nan", "nan", "nan"],
         ours="torch_second(lambda x: pb.entmax15(x)[0], [1, 0, -9])[2]", truth="0",
         why="an entry far outside the support has no influence"),
    Case("sparsemax under the deterministic flag", "deep-spin/entmax#38", "entmax on CUDA",
         quoted="refused, because of its cumsum",
         ours="distinct(lambda: pb.sparsemax(noise(50, 5000)))", truth="1"),
    Case("bags: gradient divided by frequency", "https://docs.pytorch.org/docs/stable/generated/"
         "torch.nn.functional.embedding_bag.html", "torch",
         theirs=f"torch_gradient(lambda w: {FREQUENT}scale_grad_by_freq=True), [[0.], [0], [0]])",
         shown=[[1.0], [1 / 3], [1 / 3]],
         ours="pb.embedding_bag_backward(np.ones((1, 1)), np.array([0, 0, 0, 1, 2]), "
         "np.array([0]), 3, mode='sum', scale_grad_by_freq=True)", truth="[[1], [1], [1]]",
         why="3 times a third; once; once"),
    Case("bags: only the weights need a gradient", "pytorch/pytorch#136457", "torch",
         theirs="torch_gradient(lambda p: F.embedding_bag(torch.tensor([0, 1]), torch.ones(2, 2)"
         ".double(), torch.tensor([0]), mode='sum', per_sample_weights=p), [1., 2.])",
         shown=[2.0, 2.0], fixed=True,
         ours="torch_gradient(lambda p: pb.embedding_bag(torch.ones(2, 2).double(), "
         "torch.tensor([0, 1]), torch.tensor([0]), mode='sum', per_sample_weights=p), [1., 2.])",
         truth="[2, 2]"),
    Case("bags under vmap", "pytorch/pytorch#86819", "torch",
         theirs="torch.vmap(lambda w: F.embedding_bag(torch.tensor([0, 1]), w, "
         "torch.tensor([0]), mode='sum'))(torch.ones(3, 2, 2))",
         shown=[[[2.0, 2.0]]] * 3, fixed=True,
         ours="torch.vmap(lambda w: pb.embedding_bag(w, torch.tensor([0, 1]), "
         "torch.tensor([0]), mode='sum'))(torch.ones(3, 2, 2))",
         truth="[[[2, 2]], [[2, 2]], [[2, 2]]]"),
    Case("bags: gradient of weights in bfloat16", "pytorch/pytorch#185808", "torch on CUDA",
         quoted="missing until June 2026",
         ours="pb.embedding_bag_per_sample_weights_backward(torch.ones(1, 300, dtype=bf16), "
         "torch.ones(2, 300, dtype=bf16), torch.tensor([0, 1]), torch.tensor([0]))",
         truth="[300, 300]"),
    Case("lookup: gradient in bfloat16", "pytorch/pytorch#137425", "torch.compile",
         quoted="50 times as slow, or no kernel: there is no bfloat16 atomic",
         ours="pb.embedding_backward(torch.ones(1000, 1, dtype=bf16), torch.zeros(1000).long(), "
         "2)", truth="[[1000], [0]]"),
    Case("lookup: the same gradient in every run", "pytorch/pytorch#170589", "torch on CUDA",
         quoted="not deterministic by default since January 2026",
         ours="distinct(lambda: pb.embedding_backward(noise(20000, 8), skewed(20000, 500), 500))",
         truth="1"),
    Case("checkpoints of a run with a fixed seed", "jax-ml/jax#13672", "jax on CUDA",
         quoted="differ from run to run", ours="distinct(lambda: jax.grad(lambda w: (pb.embedding("
         "w, jnp.array(skewed(5000, 50))) ** 2).sum())(jnp.array(noise(50, 8))))", truth="1"),
    Case("lookup: two ways because of one gradient", "NVIDIA/Megatron-LM#7126", "torch on CUDA",
         quoted="a deterministic way and a fast one are kept",
         ours="distinct(lambda: pb.embedding_bag_backward(noise(500, 8), skewed(20000, 500), "
         "np.arange(0, 20000, 40), 500, mode='sum'))", truth="1"),
    Case("interpolation of non-negative float16", "pytorch/pytorch#196067", "torch on MPS",
         quoted="negative values", ours="pb.lerp(np.array([0, 1], np.float16), "
         "np.array([1, 0], np.float16), 0.001)", truth="[float(np.float16(0.001)), "
         "float(np.float16(0.999))]"),
    Case("interpolation of float16", "nestordemeure/ManifoldMixupV2#1", "torch",
         theirs="torch.lerp(torch.zeros(1).half(), torch.ones(1).half(), 0.25)", shown=[0.25],
         fixed=True, ours="pb.lerp(np.zeros(1, np.float16), np.ones(1, np.float16), 0.25)",
         truth="[0.25]"),
]  # fmt: skip
