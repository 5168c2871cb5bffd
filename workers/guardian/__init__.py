"""The guard process and its shepherds: they run the commands of turns and end everything that a command started.

Standard library only: the process must start in milliseconds, stay small, and hold nothing worth stealing.
"""
