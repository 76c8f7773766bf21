"""From logits to distributions: sampling parameters, penalties, masks, top-k search."""
