"""Who carries out passes: on this machine's cores, over a tree, over many parts, on other machines."""

from globular.passes import cpu, tree  # whoever makes a shard finds all passes registered

__all__ = ["cpu", "tree"]
