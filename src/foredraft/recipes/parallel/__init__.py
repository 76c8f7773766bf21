"""Methods whose drafter works beside the target: how they are put together, and how the machine is shared."""
