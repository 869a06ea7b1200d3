"""Is this kernel valid, and how fast is it?"""
