"""foredraft inside transformers: `model.generate(.., custom_generate=foredraft.speculate())`."""
