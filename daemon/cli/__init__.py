"""The operator's commands: each module is one group of them, each command one function from arguments to an exit code.

`parser` names the command's function, `daemon.__main__` calls it and turns what it raises into a sentence and an exit code
(`exits`). Commands reach the database by `session` and by statements of their own, never through the worker's insides.
"""
