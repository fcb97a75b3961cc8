"""The mistakes, a module for each part of the product that could make them."""
