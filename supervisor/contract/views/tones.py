"""The tone of each state's name, for terminals and pages: good, warn, bad, or calm for what is over."""

from __future__ import annotations

_WORDS = {
    "good": "running succeeded ready recovered committed ok good stays",
    "warn": "waiting preparing suspected finishing stopping restarting recovering open cordoned draining "
    "drained blocked unknown collecting closing aside superseded goes",
    "bad": "failed lost gone faulty quarantined parked bad",
    "calm": "exited stopped",
}
TONES = {word: tone for tone, words in _WORDS.items() for word in words.split()}
"""A word's tone."""
