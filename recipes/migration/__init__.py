"""Programs as people have them: a line that ends in ``# was: …`` is changed, all others are as they were."""
