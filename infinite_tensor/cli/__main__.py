"""Runs the command as `python -m infinite_tensor.cli`, for environments without the command on the path."""

from __future__ import annotations

from infinite_tensor.cli import main

if __name__ == "__main__":
    main()
