"""The output dtypes of every operator and module that torch's own tests cover, with autocast off and on.

The rules describe the operators with a rule; the fingerprint records the outputs of every operator, including operators
without a rule and composite ones. It is compared with a file for the pinned releases.
"""
