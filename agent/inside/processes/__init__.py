"""The processes of an attempt: started, weighed against others, and killed."""
