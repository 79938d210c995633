"""The update rule on GPUs: one launch of a Triton kernel for all tensors of a group."""
