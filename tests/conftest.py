"""Settings that every test shares."""

from hypothesis import settings

# Deadlines of hypothesis measure the load of the machine; pytest-timeout bounds each test instead.
# Derandomised: the same inputs on every run, so that a failure here is a failure everywhere.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("full", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("test")
