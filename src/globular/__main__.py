"""``python -m globular`` is the command ``globular``."""

from globular.cli.main import main

if __name__ == "__main__":
    main()
