"""Reductions by id, scatter and message passing."""

from case import Case

IDS = "np.array([0, 0, 0])"
PROD = "torch_gradient(lambda x: pb.segment_prod(x, torch.tensor([0, 0, 0]), 1), [2, 0, 4])"
SCATTER = "torch.zeros(1).scatter_reduce(0, torch.tensor([0, 0, 0]), x, 'prod', include_self=False)"
SUMS = "pb.segment_sum(noise(50000, 4), skewed(50000, 100), 100)"

CASES = [
    Case("product by id: gradient at a zero", "pytorch/pytorch#76523", "torch_scatter",
         quoted="[0, 0, 0]", ours=PROD, truth="[0, 8, 0]"),
    Case("product by id: gradient at a zero", "pytorch/pytorch#77382", "torch",
         theirs=f"torch_gradient(lambda x: {SCATTER}, [2., 0, 4], f32)",
         shown=[0.0, 8.0, 0.0], fixed=True, ours=PROD, truth="[0, 8, 0]"),
    Case("product by id: gradient", "jax-ml/jax#9296", "jax",
         theirs="raised(lambda: jax_gradient(lambda x: jax.ops.segment_prod("
         "x, jnp.zeros(3, int), 1), [2, 0, 4]))", shown="NotImplementedError",
         ours="jax_gradient(lambda x: pb.segment_prod(x, jnp.zeros(3, int), 1), [2, 0, 4])",
         truth="[0, 8, 0]", why="once wrong, now refused"),
    Case("multiplying at repeated ids: gradient", "jax-ml/jax#12469", "jax",
         theirs="raised(lambda: jax_gradient(lambda x: jnp.ones(1).at[jnp.zeros(3, int)]"
         ".multiply(x), [2, 0, 4]))", shown="NotImplementedError",
         ours="jax_gradient(lambda x: pb.segment_prod(x, jnp.zeros(3, int), 1), [2, 0, 4])",
         truth="[0, 8, 0]"),
    Case("scatter(reduce='multiply'): gradient", "pytorch/pytorch#88097", "torch",
         theirs="raised(lambda: torch_gradient(lambda x: torch.ones(1).double().scatter("
         "0, torch.tensor([0, 0, 0]), x, reduce='multiply'), [2, 0, 4]))",
         shown="RuntimeError", ours=PROD, truth="[0, 8, 0]"),
    Case("mean of an empty segment", "pytorch/pytorch#91500", "torch",
         theirs="torch.segment_reduce(torch.ones(2), 'mean', lengths=torch.tensor([0, 2]))",
         shown=["nan", 1.0],
         ours="pb.segment_mean(np.ones(2), offsets=np.array([0, 0, 2]))", truth="[0, 1]",
         why="no rows, no value: 0, or what `empty=` says"),
    Case("sum of an empty segment", "https://numpy.org/doc/stable/reference/generated/"
         "numpy.ufunc.reduceat.html", "numpy",
         theirs="np.add.reduceat(np.array([1., 2, 3]), [0, 1, 1])", shown=[1.0, 2.0, 5.0],
         ours="pb.segment_sum(np.array([1., 2, 3]), offsets=np.array([0, 1, 1, 3]))",
         truth="[1, 0, 5]", why="documented: the element at the border is given"),
    Case("sum of an empty group", "pydata/xarray#7808", "xarray",
         quoted="0 or NaN, by version", ours="[pb.segment_sum(np.ones(1), np.array([0]), 2)"
         ".tolist(), pb.segment_sum(np.ones(1), np.array([0]), 2, empty=nan).tolist()]",
         truth="[[1, 0], [1, nan]]"),
    Case("maximum by id: forward derivative with empty segments", "tensorflow/tensorflow#57002",
         "tensorflow", quoted="NaN", ours="torch.func.jvp(lambda x: pb.segment_max("
         "x, torch.tensor([0, 2]), 3), (torch.ones(2),), (torch.ones(2),))[1]",
         truth="[1, 0, 1]"),
    Case("mean by id: forward derivative with empty segments", "tensorflow/tensorflow#127449",
         "tensorflow", quoted="NaN", ours="torch.func.jvp(lambda x: pb.segment_mean("
         "x, torch.tensor([0, 2]), 3), (torch.ones(2),), (torch.ones(2),))[1]",
         truth="[1, 0, 1]"),
    Case("maximum by id: gradient of equal rows", "rusty1s/pytorch_scatter#399", "torch_scatter",
         quoted="one of them; on CUDA whichever is written last",
         ours=f"[pb.segment_max_backward(np.ones(1), np.ones(3), {IDS}, ties=t).tolist() "
         "for t in ('first', 'last', 'split')]",
         truth="[[1, 0, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]"),
    Case("maximum by id: NaN", "tensorflow/tensorflow#106602", "tensorflow",
         quoted="CPU, GPU and XLA give three answers",
         ours=f"[pb.segment_max(np.array(x), {IDS}, 1).tolist() "
         "for x in ([1, nan, 2], [nan, 1, 2], [1, 2, nan])]", truth="[[nan], [nan], [nan]]"),
    Case("minimum by id: NaN", "tensorflow/tensorflow#120235", "tensorflow",
         quoted="depends on the order of rows on the CPU",
         ours=f"[pb.segment_min(np.array(x), {IDS}, 1).tolist() "
         "for x in ([1, nan, 2], [nan, 1, 2], [1, 2, nan])]", truth="[[nan], [nan], [nan]]"),
    Case("maximum by id: gradient at NaN", "tensorflow/tensorflow#118673", "tensorflow on XLA",
         quoted="0 everywhere, in silence",
         ours=f"pb.segment_max_backward(np.ones(1), np.array([1, nan, 2]), {IDS})",
         truth="[0, 1, 0]"),
    Case("maximum by id: all rows are -inf", "https://github.com/rusty1s/pytorch_scatter",
         "torch_scatter",
         quoted="0: -inf is taken for an empty segment (read in its source)",
         ours="pb.segment_max(np.array([-inf, -inf]), np.array([0, 0]), 1)", truth="[-inf]"),
    Case("maximum by id: gradient where all rows are -inf", "https://docs.jax.dev/en/latest/"
         "_autosummary/jax.ops.segment_max.html", "jax",
         theirs="jax_gradient(lambda x: jax.ops.segment_max(x, jnp.zeros(2, int), 1), "
         "[-inf, -inf])", shown=[1 / 3, 1 / 3],
         ours="jax_gradient(lambda x: pb.segment_max(x, jnp.zeros(2, int), 1, ties='split'), "
         "[-inf, -inf])", truth="[0.5, 0.5]", why="the shares of two equal rows sum to one"),
    Case("mean by id in bfloat16", "https://github.com/rusty1s/pytorch_scatter", "torch_scatter",
         quoted="counts in bfloat16, which stops at 256 (read in its source)",
         ours="pb.segment_mean(torch.ones(1024, dtype=bf16), torch.zeros(1024).long(), 1)",
         truth="[1]"),
    Case("sum by id of ones in float32", "pytorch/pytorch#124783", "torch",
         theirs="torch.zeros(1).index_add(0, torch.zeros(2**24 + 8).int(), "
         "torch.ones(2**24 + 8))", shown=[2.0**24],
         ours="pb.segment_sum(np.ones(2**24 + 8, np.float32), "
         "offsets=np.array([0, 2**24 + 8]))", truth="[2**24 + 8]", tolerance=1e-8),
    Case("sum by offsets: second derivative", "rusty1s/pytorch_scatter#299", "torch_scatter",
         quoted="None, in silence", ours="torch_second(lambda x: torch_scatter.segment_csr("
         "x ** 3, torch.tensor([0, 1, 3])), [1, 2, 3])", truth="[36, 288, 972]"),
    Case("maximum by offsets: second derivative", "https://docs.pytorch.org/docs/stable/"
         "torch.html", "torch",
         theirs="raised(lambda: torch_second(lambda x: torch.segment_reduce(x ** 3, 'max', "
         "lengths=torch.tensor([1, 2])) ** 2, [1., 2, 3]))", shown="RuntimeError",
         ours="torch_second(lambda x: pb.segment_max(x ** 3, offsets=torch.tensor([0, 1, 3])) "
         "** 2, [1., 2, 3])", truth="[2 * 6 * 30, 0, 2 * 6 * 243 * 30 * 81]",
         why="d/dx (6 x⁵)² = 360 x⁹"),
    Case("training on a graph with a fixed seed", "pyg-team/pytorch_geometric#446",
         "torch_scatter on CUDA", quoted="accuracy between 69 and 73 %",
         ours=f"distinct(lambda: {SUMS})", truth="1"),
    Case("stacked aggregations", "pyg-team/pytorch_geometric#8866", "torch_scatter on CUDA",
         quoted="losses from 0.81 to 1.11",
         ours="distinct(lambda: pb.gather_segment_reduce(noise(1000, 8), skewed(50000, 1000), "
         "skewed(50000, 100), 100))", truth="1"),
    Case("grouping of unsorted ids", "rusty1s/pytorch_scatter#226", "torch_scatter on CUDA",
         quoted="called impossible in parallel",
         ours="distinct(lambda: pb.segment_mean(noise(50000, 4), skewed(50000, 100), 100))",
         truth="1"),
    Case("position of the maximum by id", "rusty1s/pytorch_scatter#59", "torch_scatter on CUDA",
         quoted="differs from run to run",
         ours="distinct(lambda: pb.segment_max(noise(50000, 4).round(), skewed(50000, 100), 100, "
         "return_indices=True)[1])", truth="1"),
    Case("sum by unsorted id with deterministic ops", "tensorflow/tensorflow#39751",
         "tensorflow on CUDA", quoted="differs from run to run, then refused",
         ours=f"distinct(lambda: {SUMS})", truth="1"),
    Case("adding at repeated ids, threads", "pytorch/pytorch#51366", "torch",
         quoted="differs on the CPU too", ours="distinct(lambda: pb.segment_sum(torch.from_numpy("
         "noise(50000, 4)), torch.from_numpy(skewed(50000, 100)), 100))", truth="1"),
    Case("setting values under the deterministic flag", "jax-ml/jax#27796", "jax on CUDA",
         quoted="wrong values in 0.5.3", ours="pb.segment_sum(np.array([1., 2, 4]), "
         "np.array([2, 0, 2]), 3)", truth="[2, 0, 5]"),
    Case("softmax by id: a segment of only -inf", "pytorch/pytorch#49724", "torch",
         theirs="torch_gradient(lambda x: torch.softmax(x[:2], 0), [-inf, -inf, 1])",
         shown=["nan", "nan", 0.0],
         ours="torch_gradient(lambda x: pb.segment_softmax(x, torch.tensor([0, 0, 1]), 2), "
         "[-inf, -inf, 1])", truth="[0, 0, 0]"),
    Case("log-sum-exp: gradient of only -inf", "pytorch/pytorch#31829", "torch",
         theirs="torch_gradient(lambda x: torch.logsumexp(x, 0), [-inf, -inf])",
         shown=["nan", "nan"],
         ours="torch_gradient(lambda x: pb.segment_logsumexp(x, torch.tensor([0, 0]), 1), "
         "[-inf, -inf])", truth="[0, 0]"),
    Case("log-sum-exp of two: gradient of only -inf", "jax-ml/jax#23842", "jax",
         theirs="jax_gradient(lambda x: jnp.logaddexp(x[0], x[1]), [-inf, -inf])",
         shown=["nan", "nan"],
         ours="jax_gradient(lambda x: pb.segment_logsumexp(x, jnp.array([0, 0]), 1), "
         "[-inf, -inf])", truth="[0, 0]"),
    Case("standard deviation of equal rows: gradient", "https://docs.jax.dev/en/latest/"
         "_autosummary/jax.numpy.std.html", "jax",
         theirs="jax_gradient(jnp.std, [1, 1])", shown=["nan", "nan"],
         ours="jax_gradient(lambda x: pb.segment_std(x, jnp.array([0, 0]), 1), [1, 1])",
         truth="[0, 0]", why="at the minimum 0 is a subgradient"),
    Case("an id out of range", "https://docs.jax.dev/en/latest/_autosummary/"
         "jax.ops.segment_sum.html", "jax",
         theirs="jax.ops.segment_sum(jnp.ones(3), jnp.array([0, 1, 5]), 2)", shown=[1.0, 1.0],
         ours="[raised(lambda: pb.segment_sum(np.ones(3), np.array([0, 1, 5]), 2)), "
         "str(pb.segment_sum(np.ones(3), np.array([0, 1, 5]), 2, out_of_range='skip').tolist())]",
         truth="['IndexOutOfRange', '[1.0, 1.0]']", why="dropped in silence; here it is asked for"),
]  # fmt: skip
