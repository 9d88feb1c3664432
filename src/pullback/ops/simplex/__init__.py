"""Maps onto the probability simplex: softmax, log-softmax, sparsemax, 1.5-entmax."""

__all__: list[str] = []
