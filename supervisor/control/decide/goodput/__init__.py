"""The goodput ledger of a job: each second of its time is in one category. Pure."""
