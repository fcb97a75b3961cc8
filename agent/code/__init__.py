"""Shipped programs on this node: their archives are fetched, unpacked as hostile input, and kept by
digest.
"""
