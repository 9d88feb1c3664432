"""Where the rows of a tile are in memory: see cpu/columns."""

from llvmlite import ir
from numba import types

from pullback.cpu.emit import I32, I64, LLVM_ELEMENT, shuffle, splatted
from pullback.cpu.scan_words import block_steps
from pullback.cpu.transfer import either, lane_bytes
from pullback.cpu.transpose import SIDE, lane_order

ALONG, LINES, ACROSS, APART = range(4)


def size_of(p: types.CPointer) -> int:
    return p.dtype.bitwidth // 8


def steps_of_block(p: types.CPointer) -> int:
    return block_steps(size_of(p))


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
    columns of words. `back` is 1 where the steps of a line run against memory order, else 0."""

    def __init__(self, b, p, cursor, at, W, B, walk, back, main):
        self.b, self.p, self.W, self.B = b, p, W, B
        self.pointer, start, step, pitch = (b.extract_value(cursor, k) for k in range(4))
        k, c = at
        size = size_of(p)
        self.word = I32 if size == 2 else LLVM_ELEMENT[p.dtype]
        self.walk, self.back = walk, back
        # Rows of a line that ends here: lanes of 16 bits no machine below AVX-512 masks.
        self.may_be_short = walk == LINES and size_of(main) > 2
        self.columns_of_words = B // 2 if size == 2 else B
        self.per_word = 2 if size == 2 else 1
        if walk == APART:
            low = b.sub(start, b.mul(back, I64(B - 1)))
            self.starts = [b.add(low, b.and_(place, c)) for place in lanes_apart(b, k, back)]
            self.together, self.lanes = False, list(range(W))
            self.lanes_back = self.lanes
            return
        first = b.add(start, b.mul(k, step))
        if walk == ACROSS:
            first = b.add(first, c)
            self.places = [b.add(first, b.mul(step, I64(s))) for s in range(B)]
            return
        # Rows that lie one after the other come in whole registers, several to each.
        same = lane_bytes_of(self.word) == 4 and B * size == 4 * SIDE
        self.together = walk == ALONG and same and W > SIDE
        # The lowest address of the first row, and how far it is to the next.
        low, apart = b.sub(first, b.mul(back, I64(B - 1))), pitch
        if walk == LINES:
            low = b.add(low, b.mul(c, pitch))
        elif self.together:
            low, apart = b.sub(first, b.mul(back, I64(B * W - 1))), I64(B)
        else:
            apart = b.sub(I64(B), b.mul(back, I64(2 * B)))
        self.starts = [b.add(low, b.mul(apart, I64(r))) for r in range(W)]
        self.lanes = self.lanes_back = list(range(W))
        if walk == ALONG:
            # Lane order[r] of the tile is block r of the walk, which transposing puts in own[r].
            order = lane_order(size_of(main), W)
            own = lane_order(4, W) if self.together else list(range(W))
            self.lanes = [own[order.index(lane)] for lane in range(W)]
            own = own[::-1] if self.together else own
            self.lanes_back = [own[order.index(lane)] for lane in range(W)]

    def if_back(self, back, ahead):
        """One of two lists of values."""
        b = self.b
        runs_back = b.icmp_signed("!=", self.back, I64(0))
        values = either(b, runs_back, lambda: packed(b, back()), lambda: packed(b, ahead()))
        return [b.extract_value(values, k) for k in range(values.type.count)]

    def mask(self, count):
        """The first `count` steps of a row."""
        return first_lanes(self.b, self.B, count, self.back)

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

        def by(lanes):
            lanes = lanes if there else [lanes.index(k) for k in range(self.W)]
            if lanes == list(range(self.W)):
                return columns
            return [shuffle(self.b, c, c, lanes) for c in columns]

        if self.lanes == self.lanes_back:
            return by(self.lanes)
        return self.if_back(lambda: by(self.lanes_back), lambda: by(self.lanes))

    def in_walk_order(self, columns):
        """Columns from memory order to that of the walk, or back."""
        return self.if_back(lambda: columns[::-1], lambda: columns)


def lanes_apart(b: ir.IRBuilder, k: ir.Value, back: ir.Value) -> list[ir.Value]:
    """How far each lane is from the first step, in elements: the same for all tensors."""
    way = b.sub(I32(1), b.shl(b.trunc(back, I32), I32(1)))
    places = b.mul(k, splatted(b, way, k.type.count))
    return [b.sext(b.extract_element(places, I32(r)), I64) for r in range(k.type.count)]


def lane_bytes_of(word: ir.Type) -> int:
    return lane_bytes(ir.VectorType(word, 1))


def first_lanes(b: ir.IRBuilder, n: int, count: ir.Value, back: ir.Value) -> ir.Value:
    """A mask of the first `count` of n lanes, a power of two; of the last ones if `back` is 1."""
    kind = ir.VectorType(I64, n)
    numbers = ir.Constant(kind, list(range(n)))
    numbers = b.xor(numbers, splatted(b, b.mul(back, I64(n - 1)), n))
    return b.icmp_signed("<", numbers, splatted(b, count, n))
