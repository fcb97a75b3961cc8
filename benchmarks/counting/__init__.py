"""A benchmark: does a counter stay exact while workers die, come and leave?"""
