"""Callbacks and registrations for other frameworks.

Each module needs its own framework, which nothing else in dynabound needs:

- :mod:`dynabound.integrations.lightning`: ``LensCallback`` for Lightning's Trainer, ``suggest`` for a
  LightningModule;
- :mod:`dynabound.integrations.transformers`: ``LensCallback`` and ``suggest`` for the Trainer of Hugging Face
  transformers;
- :mod:`dynabound.integrations.timm`: ``register()`` makes the optimizers known to timm by name.
"""
