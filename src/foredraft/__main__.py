"""`python -m foredraft` is the `foredraft` command."""

from .cli import main

if __name__ == "__main__":
    main()
