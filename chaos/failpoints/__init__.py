"""The product's failpoints: their list, the effects that lie in none, and runs that strike at each."""
