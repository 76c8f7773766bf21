"""From files to weights: names of models, fetching, GGUF, llama2.c and safetensors, vocabularies."""
