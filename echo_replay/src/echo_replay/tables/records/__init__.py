"""Records: samples of varying length in a replay table. They arrive as chunks, are stored in pages, and are drawn as packed batches."""
