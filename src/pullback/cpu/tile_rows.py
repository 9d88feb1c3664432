"""Where the rows of a tile are in memory: see cpu/columns."""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, shuffle, splatted
from pullback.cpu.transfer import lane_bytes
from pullback.cpu.transpose import SIDE, lane_order

ALONG, LINES, ACROSS = range(3)


def size_of(p: types.CPointer) -> int:
    return p.dtype.bitwidth // 8


def steps_of_block(p: types.CPointer) -> int:
    return 8 if size_of(p) == 2 else 4


def packed(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    """A tuple of values, as Numba lays it out."""
    kinds = [v.type for v in values]
    same = all(kind == kinds[0] for kind in kinds)
    kind = ir.ArrayType(kinds[0], len(kinds)) if same else ir.LiteralStructType(kinds)
    out = ir.Constant(kind, ir.Undefined)
    for k, value in enumerate(values):
        out = b.insert_value(out, value, k)
    return out


class Rows:
    """The rows of one tensor's tile in memory: `places` of `width` words each, by groups of four
    columns of words."""

    def __init__(self, b, p, cursor, at, W, B, walk, back, main):
        self.b, self.p, self.W, self.B = b, p, W, B
        self.pointer, start, step, pitch = (b.extract_value(cursor, k) for k in range(4))
        k, c = at
        size = size_of(p)
        self.word = I32 if size == 2 else LLVM_ELEMENT[p.dtype]
        self.walk, self.back = walk, back
        # Rows of a line that ends here: lanes of 16 bits no machine below AVX-512 masks.
        self.may_be_short = walk == LINES and size_of(main) > 2
        first = b.add(start, b.mul(k, step))
        if walk == ACROSS:
            first = b.add(first, c)
            self.places = [b.add(first, b.mul(step, I64(s))) for s in range(B)]
            return
        self.columns_of_words = B // 2 if size == 2 else B
        self.per_word = 2 if size == 2 else 1
        if walk == LINES:
            first = b.add(first, b.mul(c, pitch))
            low = b.sub(first, I64(B - 1)) if back else first
            self.starts = [b.add(low, b.mul(pitch, I64(r))) for r in range(W)]
        else:
            low = b.sub(first, I64(B * W - 1)) if back else first
            self.starts = [b.add(low, I64(B * r)) for r in range(W)]
        # Rows that lie one after the other come in whole registers, several to each.
        self.together = walk == ALONG and lane_bytes_of(self.word) == 4 and B * size == 4 * SIDE
        self.lanes = None
        if walk == ALONG:
            order = lane_order(size_of(main), W)
            own = lane_order(4, W) if self.together else list(range(W))
            # Lane order[r] of the tile is row r of memory, which transposing puts in own[r].
            self.lanes = [own[order.index(lane)] for lane in range(W)]

    def mask(self, count):
        """The first `count` steps of a row."""
        numbers = list(range(self.B))[:: -1 if self.back else 1]
        lanes = ir.Constant(ir.VectorType(I64, self.B), numbers)
        return self.b.icmp_signed("<", lanes, splatted(self.b, count, self.B))

    def groups(self):
        """For each four columns of words: where their registers are, and of how many words."""
        for g in range(self.columns_of_words // SIDE):
            if self.together:
                yield self.starts[:: self.W // SIDE], self.W
            else:
                off = I64(g * SIDE * self.per_word)
                yield [self.b.add(at, off) for at in self.starts], SIDE

    def placed(self, columns, there):
        """Lanes from the order of transposing to that of the tile, or back."""
        if self.lanes is None or self.lanes == list(range(self.W)):
            return columns
        lanes = self.lanes if there else [self.lanes.index(k) for k in range(self.W)]
        return [shuffle(self.b, c, c, lanes) for c in columns]


def lane_bytes_of(word: ir.Type) -> int:
    return lane_bytes(ir.VectorType(word, 1))
