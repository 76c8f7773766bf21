"""The executor for our decoder in plain torch, on CPU and CUDA."""
