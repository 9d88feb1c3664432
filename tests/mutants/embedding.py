"""Faults of embeddings and bags."""

from mutants import Fuzz, Mutant, Suite, laws

OP = "ops/embedding"

MUTANTS = (
    Mutant(
        "bags: an offset past the end is accepted",
        f"{OP}/cpu_bag.py",
        "(here < before or here > rows or (b == 0 and here != 0))",
        "(here < before or (b == 0 and here != 0))",
        "check dropped: reads indices outside their array",
        (Suite("test_embedding_laws.py", "bad_offsets"),),
    ),
    Mutant(
        "bags: offsets may descend at the border of chunks",
        f"{OP}/cpu_bag.py",
        "            before = border(task, offsets, c * BAG_CHUNK - 1)",
        "            before = border(task, offsets, c * BAG_CHUNK)",
        "check dropped between chunks of 8192 offsets",
        (Suite("test_embedding_laws.py", "descend"),),
    ),
    Mutant(
        "bags: positions after the last bag belong to it",
        f"{OP}/cpu_bag.py",
        "            bag_of[n] = b if b < bags else -1",
        "            bag_of[n] = b",
        "gradients of positions in no bag are read outside dout",
        (
            laws("embedding_bag_per_sample_weights_backward"),
            Fuzz("embedding_bag_per_sample_weights_backward"),
        ),
    ),
    Mutant(
        "bags: the size of a bag counts what is skipped",
        f"{OP}/cpu_bag.py",
        "                if row_of(task, ids, n, step) >= 0:\n                    kept += 1",
        "                kept += 1",
        "the gradient of a mean is divided by too much",
        (laws("embedding_bag_backward"),),
    ),
    Mutant(
        "bag maxima: a block that kept nothing wins",
        f"{OP}/cpu_bag_max.py",
        "        better = (m >= 0) & ((mark < 0) | beats(v, best))",
        "        better = (mark < 0) | beats(v, best)",
        "zeros of skipped blocks of long bags count as values",
        (Suite("test_embedding_laws.py", "all_padding"),),
    ),
    Mutant(
        "bag maxima: the first position never wins",
        f"{OP}/cpu_bag_max.py",
        "        if marks[j] >= 0:",
        "        if marks[j] > 0:",
        "off by one: output_index is -1 where the first row holds the maximum",
        (laws("embedding_bag"),),
    ),
    Mutant(
        "bag maxima: winners count from their block",
        f"{OP}/cpu_bag_max.py",
        "    marks = select(marks < 0, marks, marks + like(marks, start - first))\n",
        "",
        "dropped carry: output_index of long bags is wrong",
        (Suite("test_embedding_laws.py", "winners_of_long"),),
    ),
    Mutant(
        "bag maxima: rows no position holds are divided by zero",
        f"{OP}/cpu_bag_max.py",
        "max(frequencies[s], 1)",
        "frequencies[s]",
        "NaN or infinity in a scaled gradient",
        (Suite("test_embedding_laws.py", "no_position"),),
    ),
    Mutant(
        "sample weights: their stride is ignored",
        "ops/segment/cpu_list.py",
        "        return read_wide(pointer(task, WEIGHTS), n * word(task, WEIGHTS_STEP))",
        "        return read_wide(pointer(task, WEIGHTS), n)",
        "reads other weights where they are strided",
        (laws("embedding_bag"),),
    ),
    Mutant(
        "bags: padding rows are summed",
        "ops/segment/cpu_list.py",
        "            kept += (row >= 0) & (row < past) & (row != padding)",
        "            kept += (row >= 0) & (row < past)",
        "check dropped: the row at padding_idx counts",
        (laws("embedding_bag"),),
    ),
    Mutant(
        "bag gradient: the last bag receives nothing",
        f"{OP}/cpu.py",
        "values[at.BORDERS_AT] + 8 * desc.num_bags",
        "values[at.BORDERS_AT] + 8 * max(desc.num_bags - 1, 0)",
        "off by one: positions of the last bag are left out",
        (laws("embedding_bag_backward"),),
    ),
    Mutant(
        "embedding: range not checked before the lookup",
        f"{OP}/cpu.py",
        "check_phases(values) if values[at.STRICT] and offsets is None else ()",
        "()",
        "check dropped: an index out of range gives zeros instead of an error",
        (Suite("test_embedding_laws.py", "bad_index"),),
    ),
    Mutant(
        "sparse gradient: one position behind the last offset counts",
        f"{OP}/sparse.py",
        "np.arange(ids.size) < last",
        "np.arange(ids.size) <= last",
        "off by one: a row that received nothing is listed",
        (Suite("test_embedding_laws.py", "leaves_out"),),
    ),
    Mutant(
        "embedding: padding_idx is dropped",
        f"{OP}/functions.py",
        '    tensors = {"weight": weight, **_ids(indices)}\n    shapes = {"out"',
        '    tensors = {"weight": weight, **_ids(indices)}\n'
        '    desc = EmbeddingDescriptor(**{**vars(desc), "padding_idx": None})\n    shapes = {"out"',
        "option dropped: rows at padding_idx are read",
        (laws("embedding"),),
    ),
)
