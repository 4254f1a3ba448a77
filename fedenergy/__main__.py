"""python -m fedenergy: the command line where its script is not on the path."""

from fedenergy.cli import main

if __name__ == "__main__":
    main()
