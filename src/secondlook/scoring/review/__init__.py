"""Handing images to people: a folder of rejected images, and files for the tools in which people look at images."""
