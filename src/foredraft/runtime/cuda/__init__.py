"""The executor whose passes are CUDA graphs."""
