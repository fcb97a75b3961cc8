"""The promises of the product, written down a second time and checked at each write and each step."""
