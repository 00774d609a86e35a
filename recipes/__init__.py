"""Short scripts for what people do with many clusters; each runs with ``python -m recipes.NAME [--small]``."""
