"""Shared bases: keyframes of a root, on which many runs begin, and the references by which runs keep them.

Four things are true, in this order, and so a base is never deleted while a run needs it:

1. A run's reference is put before the record that names the base, and stays until the run's log has retired it; the
   log never lets it be named again.
2. Who has put a reference looks whether the base is closed, and names it only if it is not.
3. A base is closed for ever. What is to hold the same is another generation of it.
4. The files of a closed base are deleted once all runs were looked at after it was closed, and none refers to it.
"""
