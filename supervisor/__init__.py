"""The supervisor half of tf-supervisor: contract, adapters, leader, API and command line."""
