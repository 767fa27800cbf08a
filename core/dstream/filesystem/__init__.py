"""``dstream://``: the files of a generation for every library that reads through fsspec.

``paths.py`` says what a path means, ``contents.py`` which files a generation shows, ``plan.py``
which reads the wanted ranges become, ``spec.py`` is the file system itself.
"""
