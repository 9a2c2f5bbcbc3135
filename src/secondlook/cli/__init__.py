"""The command line: `secondlook` and its commands."""
