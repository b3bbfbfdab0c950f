"""What only `make` calls: run all notebooks, report, verify, reproducibility, benchmarks."""
