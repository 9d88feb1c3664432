"""Faults of the call cache: which calls are taken for repeated ones."""

from mutants import Mutant, Suite

KNOWN = (
    Suite("test_call_cache.py", "other_arguments or argument or overlapping"),
    Suite("test_plan_run.py"),
)

MUTANTS = (
    Mutant(
        "known calls: read-only arrays are written",
        "cpu/operands.py",
        "    if rank != operand[RANK] or array[FLAGS] & IS_WRITABLE != operand[WRITABLE]:",
        "    if rank != operand[RANK]:",
        "read-only flag of an `out` that was writable before",
        KNOWN,
    ),
    Mutant(
        "known calls: dtypes are not compared",
        "cpu/operands.py",
        "array[OBJECT_TYPE] != operand[OBJECT] or array[ARRAY_DTYPE] != operand[DTYPE]",
        "array[OBJECT_TYPE] != operand[OBJECT]",
        "wrong cache key: integers run the kernel of floats",
        KNOWN,
    ),
    Mutant(
        "known calls: strides are not compared",
        "cpu/operands.py",
        "        if extents[axis] != operand[EXTENTS + axis] or strides[axis] != operand[STRIDES + axis]:",
        "        if extents[axis] != operand[EXTENTS + axis]:",
        "wrong cache key: another layout runs this launch",
        KNOWN,
    ),
    Mutant(
        "known calls: overlap test turned round",
        "cpu/native_launch.py",
        "        near = distance + rules[4] < rules[2] and rules[1] < distance + rules[5]",
        "        near = distance + rules[4] < rules[1] and rules[2] < distance + rules[5]",
        "overlap test: outputs over inputs are written",
        (*KNOWN, Suite("test_plans.py", "known_again or in_place")),
    ),
    Mutant(
        "known calls: any output may be any input",
        "cpu/native_launch.py",
        "        if near and (distance != 0 or rules[6] == 0):",
        "        if near and distance != 0:",
        "overlap test: in place where the op does not allow it",
        (*KNOWN, Suite("test_plans.py", "known_again or in_place")),
    ),
    Mutant(
        "known calls: alignment is not checked",
        "cpu/native_launch.py",
        "        if place & rules[1] != 0 or place == 0:",
        "        if place == 0:",
        "check dropped: misaligned memory",
        KNOWN,
    ),
    Mutant(
        "known calls: floats are equal by type",
        "cpu/call_match.py",
        "    return at(value)[FLOAT] == fact if kind == BITS else tuple_size(value) == fact",
        "    return True if kind == BITS else tuple_size(value) == fact",
        "wrong cache key: another weight runs the launch of the first",
        (Suite("test_call_cache.py", "compared_exactly"),),
    ),
    Mutant(
        "known calls: options are equal by type",
        "cpu/call_match.py",
        "        return value == fact or compare(value, fact, EQ) == 1",
        "        return True",
        "wrong cache key: another axis runs the launch of the first",
        (Suite("test_call_cache.py"),),
    ),
    Mutant(
        "known runs: a workspace of any size",
        "cpu/call_cache.py",
        "    if _number(workspace, plan[BYTES_OF]) < plan[NEEDED] or threads < 1:",
        "    if threads < 1:",
        "check dropped: a workspace too small is written",
        (Suite("test_plan_run.py"),),
    ),
    Mutant(
        "known calls: an evicted record stays in the table of addresses",
        "cpu/call_cache.py",
        "        _move_to_front(records, last)\n        _move_to_front(addresses, last)\n        drop(gone)",
        "        _move_to_front(records, last)\n        drop(gone)",
        "records and addresses disagree: the wrong one is evicted",
        (Suite("test_call_cache.py", "evicted"),),
    ),
    Mutant(
        "known calls: a hit does not become the latest",
        "cpu/call_cache.py",
        "        if number > 0:\n            _move",
        "        if number > CAPACITY:\n            _move",
        "first in, first out: a call in use is evicted",
        (Suite("test_call_cache.py", "evicted"),),
    ),
)
