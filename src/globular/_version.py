"""The version: git's tags decide it when the package is built, the installed package tells it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("globular")
except PackageNotFoundError:  # sources on the path that nobody installed
    __version__ = "0+unknown"
