"""Online speculative decoding: a head that goes on learning from the texts that it drafts for."""
