"""The output dtypes of every operator and module that torch tests itself, with autocast off and on.

The rules say what autocast does with the operators that it knows; the fingerprint says what comes out, of
all the others and of what is made of several, too. It is held against a file for the pinned releases.
"""
