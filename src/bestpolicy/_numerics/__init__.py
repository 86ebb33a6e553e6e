"""What every room stands on: arrays, checked inputs, numbers that hang on no processor."""

__all__: list[str] = []
