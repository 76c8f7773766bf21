"""Draft trees as arrays: building, editing, fusing, cutting and selecting them."""
