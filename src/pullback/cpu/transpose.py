"""Register transposes, as IR: W rows of four words each to four columns of W lanes, and back.

Words of 32 bits are transposed in squares of four, each within 128 bits, so that a register may
hold several rows; then the lanes of a column are in the order `lane_order`. Words of 64 bits are
transposed four rows at a time.
"""

from llvmlite import ir

from pullback.cpu.emit import shuffle
from pullback.cpu.transfer import lane_bytes

SIDE = 4  # words of a row


def lane_order(size: int, W: int) -> list[int]:
    """In which lane row r of memory is, for rows that come several to a register."""
    if size == 8:
        return list(range(W))
    together = W // SIDE
    return [r % together * SIDE + r // together for r in range(W)]


def joined_all(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """Vectors of one type, one after the other."""
    while len(parts) > 1:
        n = 2 * parts[0].type.count
        parts = [shuffle(b, parts[i], parts[i + 1], range(n)) for i in range(0, len(parts), 2)]
    return parts[0]


def columns_of_rows(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Four columns. Four registers of 32-bit words may hold W / 4 rows each; else a row each, and
    then row r is lane r."""
    if len(rows) == 2:
        return [shuffle(b, rows[0], rows[1], (k, SIDE + k)) for k in range(SIDE)]
    if lane_bytes(rows[0].type) == 8:
        parts = [_square64(b, rows[k : k + SIDE]) for k in range(0, len(rows), SIDE)]
        return [joined_all(b, list(column)) for column in zip(*parts, strict=True)]
    return _squares32(b, [joined_all(b, rows[k::SIDE]) for k in range(SIDE)])


def rows_of_columns(b: ir.IRBuilder, columns: list[ir.Value], width: int = SIDE) -> list[ir.Value]:
    """The way back: registers of `width` words, more than one row in each if width says so."""
    n = columns[0].type.count
    if n == 2:
        pairs = [shuffle(b, columns[k], columns[k + 1], (0, 2, 1, 3)) for k in (0, 2)]
        return [shuffle(b, pairs[0], pairs[1], (r, r + 1, SIDE + r, SIDE + r + 1)) for r in (0, 2)]
    if lane_bytes(columns[0].type) == 8:
        parts = [[shuffle(b, c, c, range(k, k + SIDE)) for c in columns] for k in range(0, n, SIDE)]
        return [row for part in parts for row in _square64(b, part)]
    squares = _squares32(b, columns)
    return [shuffle(b, s, s, range(k, k + width)) for k in range(0, n, width) for s in squares]


def _square64(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    low, high = (
        [shuffle(b, rows[i], rows[i + 1], lanes) for i in (0, 2)]
        for lanes in ((0, 4, 2, 6), (1, 5, 3, 7))
    )
    halves = (0, 1, 4, 5), (2, 3, 6, 7)
    return [shuffle(b, pair[0], pair[1], lanes) for lanes in halves for pair in (low, high)]


def _squares32(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    n = rows[0].type.count

    def in_squares(u, v, lanes):
        return shuffle(b, u, v, [k // 4 * n + k % 4 + g for g in range(0, n, 4) for k in lanes])

    pairs = [
        (in_squares(rows[0], rows[1], part), in_squares(rows[2], rows[3], part))
        for part in ((0, 4, 1, 5), (2, 6, 3, 7))
    ]
    return [in_squares(u, v, part) for u, v in pairs for part in ((0, 1, 4, 5), (2, 3, 6, 7))]
