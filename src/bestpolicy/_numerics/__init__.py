"""What every room stands on: arrays, sparse matrices, one thread, checked numbers, decisions that hold everywhere."""

__all__: list[str] = []
