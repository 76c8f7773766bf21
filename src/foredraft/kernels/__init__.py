"""The room of all Triton kernels. They know tensors and records (`types`), and no part of the engine.

Most files hold a kernel with its launcher; the reference in torch is beside it, or in the module that the first lines
name. `streamed_gemv`, `row_gemv`, `tree_rows` and `padded_rows` are bare kernels: their launchers choose sizes by the
layers and layouts of `models` and `runtime`, which this room does not import.
"""
