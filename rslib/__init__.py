"""rslib: replay scheduling for continual learning, the library below the notebooks."""
