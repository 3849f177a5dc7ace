"""`python -m jaxckpt` is the shell."""

from jaxckpt.cli import main

if __name__ == "__main__":
    main()
