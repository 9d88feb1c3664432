"""Row lookups in a table, one by one or gathered in bags."""

from pullback.ops.embedding.contract import (
    EmbeddingArgs,
    EmbeddingBackwardArgs,
    EmbeddingBackwardDescriptor,
    EmbeddingBackwardPlan,
    EmbeddingBagArgs,
    EmbeddingBagBackwardArgs,
    EmbeddingBagBackwardDescriptor,
    EmbeddingBagBackwardPlan,
    EmbeddingBagDescriptor,
    EmbeddingBagPlan,
    EmbeddingDescriptor,
    EmbeddingPlan,
)
from pullback.ops.embedding.functions import (
    embedding,
    embedding_backward,
    embedding_bag,
    embedding_bag_backward,
    embedding_bag_per_sample_weights_backward,
)

__all__ = [
    "EmbeddingArgs",
    "EmbeddingBackwardArgs",
    "EmbeddingBackwardDescriptor",
    "EmbeddingBackwardPlan",
    "EmbeddingBagArgs",
    "EmbeddingBagBackwardArgs",
    "EmbeddingBagBackwardDescriptor",
    "EmbeddingBagBackwardPlan",
    "EmbeddingBagDescriptor",
    "EmbeddingBagPlan",
    "EmbeddingDescriptor",
    "EmbeddingPlan",
    "embedding",
    "embedding_backward",
    "embedding_bag",
    "embedding_bag_backward",
    "embedding_bag_per_sample_weights_backward",
]
