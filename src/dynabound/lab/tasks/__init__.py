"""What is trained: data sets, models, optimizers, batches."""
