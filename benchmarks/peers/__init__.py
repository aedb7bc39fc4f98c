"""What others put on the wire, written from its description: each codes the same states as the library does.

None of their code is here. ``fireworks`` runs the package itself, in an environment of its own.
"""
