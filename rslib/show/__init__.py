"""What results look like: figures, tables, LaTeX, and ours beside the paper's numbers."""
